"""The plain door: PyTorch's pluggable allocator."""

import gc
import unittest

import support
from foreign_streams import ForeignStreams
from support import MIB

import vmm_torch


def setUpModule():
    support.gpu_or_skip(door="plain")


class PlainDoor(ForeignStreams, unittest.TestCase):
    def setUp(self):
        import torch

        self.torch = torch
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def live(self):
        torch = self.torch
        torch.zeros(1, device="cuda")
        return vmm_torch.stats(0)["live_bytes"]

    def test_tensors_come_and_go(self):
        torch = self.torch
        before = self.live()
        x = torch.full((3 * MIB,), 2.0, device="cuda")
        empty = torch.empty(0, device="cuda")
        self.assertEqual(self.live() - before, 12 * MIB)
        self.assertTrue(bool((x * 2 == 4).all()))
        del x, empty
        self.assertEqual(self.live(), before)
        torch.cuda.empty_cache()
        self.assertLess(vmm_torch.stats(0)["reserved_bytes"], 64 * MIB)

    def test_out_of_memory_is_an_error_in_words(self):
        torch = self.torch
        self.live()
        self.addCleanup(vmm_torch.set_limit, 0)
        vmm_torch.set_limit("1GiB")
        with self.assertRaisesRegex(RuntimeError, "CUDA out of memory. Tried to allocate 2.00 GiB"):
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        torch.empty(512 * MIB, dtype=torch.uint8, device="cuda").fill_(1)

    def test_a_fraction_is_kept(self):
        torch = self.torch
        self.live()
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        torch.cuda.set_per_process_memory_fraction(0.05)
        total = torch.cuda.get_device_properties(0).total_memory
        with self.assertRaisesRegex(RuntimeError, "CUDA out of memory"):
            torch.empty(total // 10, dtype=torch.uint8, device="cuda")

    def test_a_fraction_of_nothing_leaves_nothing(self):
        torch = self.torch
        self.live()
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        torch.cuda.set_per_process_memory_fraction(0.0)
        with self.assertRaisesRegex(RuntimeError, "CUDA out of memory"):
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    def test_record_stream(self):
        torch = self.torch
        side = torch.cuda.Stream()
        source = torch.full((4 * MIB,), 1.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            copy = source.clone()
        source.record_stream(side)
        del source
        others = [torch.full((4 * MIB,), 2.0, device="cuda") for _ in range(4)]
        torch.cuda.current_stream().wait_stream(side)
        self.assertTrue(bool((copy == 1).all()))
        del others

    def test_graphs_have_memory_of_their_own(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x * 2 + 1).cumsum(0)
        for n in range(5):
            x.fill_(n)
            garbage = [torch.full((MIB,), -7.0, device="cuda") for _ in range(10)]
            graph.replay()
            expected = torch.full((MIB,), 2.0 * n + 1, device="cuda").cumsum(0)
            self.assertTrue(torch.equal(y, expected))
            del garbage
        del graph, y
        gc.collect()
        torch.cuda.empty_cache()

    def test_a_capture_that_failed_keeps_no_memory(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            # PyTorch leaves the stream of a capture that failed in place.
            with torch.cuda.stream(torch.cuda.current_stream()):
                support.failed_capture(self, graph)
            graph = None
            gc.collect()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            z = x + 1
        graph.replay()
        self.assertTrue(bool((z == 2).all()))
        self.assertEqual(vmm_torch.stats(0)["private_pools"], 1)
        del graph, z
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(vmm_torch.stats(0)["private_pools"], 0)

    def test_what_pytorch_does_not_offer_here_is_refused(self):
        torch = self.torch
        self.live()
        for call in (torch.cuda.memory_stats, torch.cuda.memory_snapshot, torch.cuda.MemPool):
            with self.assertRaisesRegex(RuntimeError, "does not yet support"):
                call()


if __name__ == "__main__":
    unittest.main()
