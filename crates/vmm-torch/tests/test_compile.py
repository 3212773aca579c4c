"""torch.compile with CUDA graph trees: checkpoints of private pools."""

import copy
import unittest
import unittest.mock

import support

import vmm_torch


def setUpModule():
    support.gpu_or_skip()
    try:
        import triton  # noqa: F401
    except ImportError:
        raise unittest.SkipTest("Triton is not installed here") from None
    from torch._inductor import config

    # Checks the live blocks of the private pool after each step against PyTorch's own list.
    config.triton.slow_path_cudagraph_asserts = True


class ReduceOverhead(support.GpuTest):
    def setUp(self):
        super().setUp()
        from torch._dynamo.utils import counters

        self.torch._dynamo.reset()
        counters.clear()
        self.skips = counters["inductor"]
        self.replays = 0
        replay = self.torch.cuda.CUDAGraph.replay

        def counted(graph):
            self.replays += 1
            return replay(graph)

        patch = unittest.mock.patch.object(self.torch.cuda.CUDAGraph, "replay", counted)
        patch.start()
        self.addCleanup(patch.stop)

    def check_graphs_were_used(self, least):
        self.assertEqual(self.skips["cudagraph_skips"], 0)
        self.assertGreaterEqual(self.replays, least)
        self.assertGreater(vmm_torch.stats(0)["private_pools"], 0)

    def test_paths_that_branch(self):
        torch = self.torch

        @torch.compile(mode="reduce-overhead")
        def first(x):
            return torch.relu(x @ x).sin(), x * 2

        @torch.compile(mode="reduce-overhead")
        def left(a, b):
            return (a + b).cos()

        @torch.compile(mode="reduce-overhead")
        def right(a, b):
            return (a - b).softmax(-1) @ b

        x = torch.randn(256, 256, device="cuda")
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            a, b = first(x)
            branch, expected = (
                (left, lambda a, b: (a + b).cos())
                if step % 3
                else (right, lambda a, b: (a - b).softmax(-1) @ b)
            )
            y = branch(a, b)
            wanted = expected(torch.relu(x @ x).sin(), x * 2)
            self.assertTrue(torch.allclose(y, wanted, atol=1e-3, rtol=1e-3), step)
            del a, b, y
        # The first runs of each path warm up and record.
        self.check_graphs_were_used(12)

    def test_training(self):
        torch = self.torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)
        ).cuda()
        x = torch.randn(64, 128, device="cuda")

        def train(model, forward):
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
            losses = []
            for _ in range(15):
                torch.compiler.cudagraph_mark_step_begin()
                loss = forward(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(loss))
            return torch.tensor(losses)

        eager = copy.deepcopy(model)
        expected = train(eager, eager)
        losses = train(model, torch.compile(model, mode="reduce-overhead"))
        self.assertLess(float(expected[-1]), float(expected[0]) * 0.9)
        self.assertTrue(torch.allclose(losses, expected, rtol=1e-2), (losses, expected))
        # Forward and backward, but for warming up.
        self.check_graphs_were_used(15)


if __name__ == "__main__":
    unittest.main()
