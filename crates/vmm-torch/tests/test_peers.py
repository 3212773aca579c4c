"""Two cards: copies, and kernels on the other card's memory."""

import unittest

import support
from support import MIB


def setUpModule():
    if support.gpus() < 2:
        raise unittest.SkipTest("there is one GPU or none here")
    support.gpu_or_skip()


class Copying:
    """For both doors, see also test_peers_plain.py."""

    def test_copies_of_every_kind(self):
        torch = self.torch
        x = torch.arange(4 * MIB, dtype=torch.float32, device="cuda:0").reshape(2048, 2048)
        for copy, expected in (
            (x.to("cuda:1"), x),
            (x.t().to("cuda:1"), x.t()),
            (x[::2, 1::3].to("cuda:1"), x[::2, 1::3]),
            (x.to("cuda:1", torch.float64), x.double()),
            (x.to("cuda:1").to("cuda:0"), x),
        ):
            self.assertTrue(torch.equal(copy.cpu(), expected.cpu()))

    def test_memory_made_after_access_was_given(self):
        torch = self.torch
        torch.ones(10, device="cuda:0").to("cuda:1")
        grown = [torch.full((64 * MIB,), n, dtype=torch.uint8, device="cuda:0") for n in range(8)]
        for n, tensor in enumerate(grown):
            self.assertTrue(bool((tensor[::2].to("cuda:1") == n).all()))

    def test_memory_of_both_ways(self):
        torch = self.torch
        x, y = (torch.full((4 * MIB,), n + 1.0, device=f"cuda:{n}") for n in (0, 1))
        # Kernels run on the card that is copied from, and write to the other one.
        y[::2].copy_(x[::2])
        x[1::2].copy_(y[1::2])
        expected = torch.tensor([1.0, 2.0]).repeat(2 * MIB)
        self.assertTrue(torch.equal(x.cpu(), expected) and torch.equal(y.cpu(), expected))


class Copies(Copying, support.GpuTest):
    def test_statistics_are_those_of_the_device(self):
        torch = self.torch
        before = [torch.cuda.memory_allocated(n) for n in (0, 1)]
        x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
        after = [torch.cuda.memory_allocated(n) for n in (0, 1)]
        self.assertEqual([b - a for a, b in zip(before, after, strict=True)], [0, 5 * MIB])
        with torch.cuda.device(1):
            del x
        self.assertEqual(torch.cuda.memory_allocated(1), before[1])


if __name__ == "__main__":
    unittest.main()
