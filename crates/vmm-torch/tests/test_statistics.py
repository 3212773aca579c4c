"""Memory statistics, as PyTorch's users read them."""

import unittest

import support
from support import MIB


def setUpModule():
    support.gpu_or_skip()


class Statistics(support.GpuTest):
    def test_allocated_follows_tensors(self):
        torch = self.torch
        small = torch.empty(1000, dtype=torch.uint8, device="cuda")
        self.assertEqual(self.live(), 1024)
        large = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(self.live(), 10 * MIB + 1024)
        view = large[MIB:]
        del large
        self.assertEqual(self.live(), 10 * MIB + 1024)
        del view
        self.assertEqual(self.live(), 1024)
        del small
        self.assertEqual(self.live(), 0)

    def test_empty_tensors_take_nothing(self):
        empty = [self.torch.empty(0, device="cuda") for _ in range(10)]
        self.assertEqual(self.live(), 0)
        self.assertEqual(len({t.data_ptr() for t in empty}), 1)

    def test_peaks_and_their_reset(self):
        torch = self.torch
        held = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(torch.cuda.max_memory_allocated() - self.before, 100 * MIB)
        self.assertGreaterEqual(torch.cuda.max_memory_reserved(), 100 * MIB)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated() - self.before, 30 * MIB)
        del held

    def test_accumulated_and_their_reset(self):
        torch = self.torch
        torch.cuda.reset_accumulated_memory_stats()
        for _ in range(5):
            torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        stats = torch.cuda.memory_stats()
        self.assertEqual(stats["allocation.all.allocated"], 5)
        self.assertEqual(stats["allocation.large_pool.freed"], 5)
        self.assertEqual(stats["allocated_bytes.all.allocated"], 10 * MIB)
        torch.cuda.reset_accumulated_memory_stats()
        self.assertEqual(torch.cuda.memory_stats()["allocation.all.allocated"], 0)

    def test_requested_and_rounded_differ(self):
        torch = self.torch
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        tensor = torch.empty(513, dtype=torch.uint8, device="cuda")
        stats = torch.cuda.memory_stats()
        self.assertEqual(stats["requested_bytes.all.current"] - before, 513)
        self.assertEqual(self.live(), 1024)
        del tensor

    def test_reserved_covers_allocated_and_goes_with_empty_cache(self):
        torch = self.torch
        held = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
        self.assertGreaterEqual(torch.cuda.memory_reserved(), 200 * MIB)
        del held
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved(), 200 * MIB)
        free, total = torch.cuda.mem_get_info()
        self.assertTrue(0 < free <= total)

    def test_summary_and_nested_statistics(self):
        torch = self.torch
        tensor = torch.empty(MIB, device="cuda")
        self.assertIn("Allocated memory", torch.cuda.memory_summary())
        self.assertIn("GPU reserved memory", torch.cuda.memory_summary(abbreviated=True))
        nested = torch.cuda.memory_stats_as_nested_dict()
        self.assertGreaterEqual(nested["allocated_bytes"]["all"]["current"], 4 * MIB)
        del tensor

    def test_a_snapshot_has_what_is_live(self):
        torch = self.torch
        tensors = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (100, 5000, 3 * MIB)]
        blocks = {}
        for segment in torch.cuda.memory_snapshot():
            at = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    blocks[at] = block
                at += block["size"]
            self.assertEqual(at, segment["address"] + segment["total_size"])
        for tensor in tensors:
            self.assertEqual(blocks[tensor.data_ptr()]["requested_size"], tensor.numel())
        total = sum(block["size"] for block in blocks.values())
        self.assertEqual(total, torch.cuda.memory_allocated())

    def test_the_backend_has_a_name(self):
        self.assertEqual(self.torch.cuda.get_allocator_backend(), "vmm")

    def test_the_profiler_follows_memory(self):
        torch = self.torch
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            tensor = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
            del tensor
        seen = [event.device_memory_usage for event in profile.key_averages()]
        self.assertIn(8 * MIB, seen)


if __name__ == "__main__":
    unittest.main()
