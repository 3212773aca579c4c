"""Recorded histories and snapshots, as PyTorch's tools read them."""

import pickle
import tempfile
import unittest
from pathlib import Path

import support
from support import MIB

import vmm_torch


def setUpModule():
    support.gpu_or_skip()


class History(support.GpuTest):
    def setUp(self):
        super().setUp()
        self.memory = self.torch.cuda.memory
        self.addCleanup(self.memory._record_memory_history, enabled=None)

    def here(self, length):
        return self.torch.empty(length, dtype=self.torch.uint8, device="cuda")

    def test_events_have_the_stacks_of_python(self):
        self.memory._record_memory_history(max_entries=1000, stacks="python")
        kept = self.here(3 * MIB)
        self.here(5 * MIB)
        snapshot = self.memory._snapshot()
        events = snapshot["device_traces"][0]
        actions = [(event["action"], event["size"]) for event in events]
        for expected in (
            ("alloc", 3 * MIB),
            ("alloc", 5 * MIB),
            ("free_requested", 5 * MIB),
            ("free_completed", 5 * MIB),
        ):
            self.assertIn(expected, actions)
        first = next(event for event in events if event["size"] == 3 * MIB)
        self.assertEqual(first["addr"], kept.data_ptr())
        self.assertIn("here", [frame["name"] for frame in first["frames"]])
        times = [event["time_us"] for event in events]
        self.assertEqual(times, sorted(times))
        blocks = [
            block
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_allocated" and block["requested_size"] == 3 * MIB
        ]
        self.assertIn("here", [frame["name"] for frame in blocks[0]["frames"]])

    def test_pytorchs_viewers_read_it(self):
        from torch.cuda import _memory_viz

        self.memory._record_memory_history(max_entries=1000)
        kept = [self.here(n * MIB) for n in range(1, 5)]
        del kept[1]
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder, "s.pickle"))
            self.memory._dump_snapshot(file)
            with open(file, "rb") as opened:
                snapshot = pickle.load(opened)
        self.assertIn("del b # 2.0MiB", _memory_viz.trace(snapshot))
        self.assertTrue(_memory_viz.segsum(snapshot))
        for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
            self.assertIn("<script", plot(snapshot))

    def test_the_last_entries_are_kept_and_off_is_off(self):
        self.memory._record_memory_history(max_entries=10, context=None)
        for _ in range(50):
            self.here(MIB)
        self.assertEqual(len(self.memory._snapshot()["device_traces"][0]), 10)
        self.memory._record_memory_history(enabled=None)
        self.here(MIB)
        self.assertEqual(self.memory._snapshot()["device_traces"][0], [])

    def test_out_of_memory_is_an_event(self):
        self.memory._record_memory_history(max_entries=100, context=None)
        vmm_torch.set_limit(self.before + 64 * MIB)
        self.addCleanup(vmm_torch.set_limit, 0)
        with self.assertRaises(self.torch.OutOfMemoryError):
            self.here(1 << 30)
        actions = [event["action"] for event in self.memory._snapshot()["device_traces"][0]]
        self.assertIn("oom", actions)

    def test_own_snapshots(self):
        kept = self.here(7 * MIB)
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder, "own.pickle"))
            vmm_torch.snapshot(file)
            with open(file, "rb") as opened:
                snapshot = pickle.load(opened)
        sizes = [event["size"] for event in snapshot["device_traces"][0]]
        self.assertIn(7 * MIB, sizes)
        del kept


if __name__ == "__main__":
    unittest.main()
