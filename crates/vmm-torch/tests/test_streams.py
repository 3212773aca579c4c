"""Streams, threads, and memory that passes between them."""

import threading
import unittest

import support
from foreign_streams import LONG, ForeignStreams
from support import MIB

import vmm_torch


def setUpModule():
    support.gpu_or_skip()


class Streams(ForeignStreams, support.GpuTest):
    def test_record_stream_keeps_memory_until_the_other_stream_is_done(self):
        torch = self.torch
        side = torch.cuda.Stream()
        for _ in range(5):
            source = torch.full((4 * MIB,), 1.0, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(LONG)
                copy = source.clone()
            source.record_stream(side)
            del source
            others = [torch.full((4 * MIB,), 2.0, device="cuda") for _ in range(4)]
            torch.cuda.current_stream().wait_stream(side)
            self.assertTrue(bool((copy == 1).all()))
            del others, copy

    def test_memory_counts_until_the_other_stream_is_done(self):
        torch = self.torch

        def used():
            stats = torch.cuda.memory_stats()
            names = ("allocated_bytes", "active_bytes", "requested_bytes")
            return [stats[f"{name}.all.current"] for name in names]

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = used()
        side = torch.cuda.Stream()
        source = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(4 * LONG)
        with torch.cuda.stream(side):
            torch.cuda._sleep(4 * LONG)
        source.record_stream(side)
        del source
        # As with the native allocator.
        held = [16 * MIB + length for length in before[1:]]
        self.assertEqual(used(), [before[0], *held])
        # So much more that the pool makes memory rather than have streams wait for each other.
        other = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
        peaks = torch.cuda.memory_stats()
        for name, length in zip(("active_bytes", "requested_bytes"), held):
            self.assertGreaterEqual(peaks[f"{name}.all.peak"], length + 1024 * MIB)
        del other
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual(used(), before)

    def test_memory_of_one_stream_taken_by_another_is_ordered(self):
        torch = self.torch
        side = torch.cuda.Stream()
        bad = torch.zeros((), dtype=torch.bool, device="cuda")
        # Both tensors at once would not fit, so that their memory has to cross.
        vmm_torch.set_limit(self.before + 56 * MIB)
        self.addCleanup(vmm_torch.set_limit, 0)
        waits = vmm_torch.stats(0)["device_waits"]
        for n in range(50):
            first = torch.empty(8 * MIB, device="cuda")
            torch.cuda._sleep(1_000_000)
            first.fill_(n)
            del first
            with torch.cuda.stream(side):
                second = torch.full((8 * MIB,), -1.0, device="cuda")
                torch.cuda._sleep(1_000_000)
                wrong = (second != -1).any()
            torch.cuda.current_stream().wait_stream(side)
            bad |= wrong
            wrong.record_stream(torch.cuda.current_stream())
            del second, wrong
        self.assertFalse(bool(bad))
        self.assertGreater(vmm_torch.stats(0)["device_waits"] - waits, 10)

    def test_a_program_that_never_synchronises_stays_bounded(self):
        torch = self.torch
        side = torch.cuda.Stream()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(300):
            tensor = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                tensor.fill_(1)
            tensor.record_stream(side)
            del tensor
        self.assertLess(torch.cuda.max_memory_reserved() - self.before, 4 << 30)

    def test_the_priority_and_external_streams(self):
        torch = self.torch
        urgent = torch.cuda.Stream(priority=-1)
        foreign = torch.cuda.ExternalStream(urgent.cuda_stream)
        with torch.cuda.stream(foreign):
            tensor = torch.full((MIB,), 5.0, device="cuda")
        foreign.synchronize()
        self.assertTrue(bool((tensor == 5).all()))

    def test_threads(self):
        torch = self.torch
        faults = []

        def work(number):
            try:
                generator = torch.Generator().manual_seed(number)
                with torch.cuda.stream(torch.cuda.Stream()):
                    held = []
                    for _ in range(400):
                        length = int(torch.randint(1, 2 * MIB, (1,), generator=generator))
                        held.append(torch.full((length,), number, dtype=torch.uint8, device="cuda"))
                        if len(held) > 10:
                            tensor = held.pop(0)
                            if not bool((tensor == number).all()):
                                faults.append(f"thread {number}: {length} bytes changed")
                    torch.cuda.current_stream().synchronize()
            except Exception as error:
                faults.append(repr(error))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])
        self.assertEqual(self.live(), 0)


if __name__ == "__main__":
    unittest.main()
