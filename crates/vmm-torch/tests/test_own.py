"""What vmm_torch offers beyond PyTorch's functions."""

import unittest

import support
from support import MIB

import vmm_torch


def setUpModule():
    support.gpu_or_skip(target="256MiB", retention="long", log="info")


class Own(support.GpuTest):
    def test_figures(self):
        torch = self.torch
        held = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        # The pool makes memory up to its target meanwhile.
        before = torch.cuda.memory_reserved()
        stats = vmm_torch.stats(0)
        self.assertGreaterEqual(stats["requested_bytes"], 100 * MIB)
        self.assertTrue(before <= stats["reserved_bytes"] <= torch.cuda.memory_reserved())
        self.assertEqual(stats["target"], 256 * MIB)
        self.assertTrue(0 <= stats["fragmentation"] < 1)
        self.assertGreater(stats["driver_calls"], 0)
        self.assertEqual(set(vmm_torch.stats()), {0})
        with self.assertRaises(vmm_torch.VmmError):
            vmm_torch.stats(99)
        del held

    def test_trim(self):
        torch = self.torch
        held = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        del held
        released = vmm_torch.trim(wait=True)
        self.assertGreaterEqual(released, 300 * MIB)
        self.assertLess(torch.cuda.memory_reserved(), 300 * MIB)

    def test_a_limit_of_the_moment(self):
        torch = self.torch
        torch.zeros(1, device="cuda")
        self.addCleanup(vmm_torch.set_limit, 0)
        vmm_torch.set_limit("512MiB")
        self.assertEqual(vmm_torch.stats(0)["limit"], 512 * MIB)
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
        vmm_torch.set_limit(0)
        torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")

    def test_twice(self):
        with self.assertRaises(vmm_torch.VmmError):
            vmm_torch.install()


if __name__ == "__main__":
    unittest.main()
