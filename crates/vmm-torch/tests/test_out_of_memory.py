"""Out of memory: what it says, what it leaves, and limits."""

import time
import unittest

import support
from support import MIB

import vmm_torch

GIB = 1 << 30


def setUpModule():
    support.gpu_or_skip()


class OutOfMemory(support.GpuTest):
    def bytes(self, count):
        return self.torch.empty(count, dtype=self.torch.uint8, device="cuda")

    def limited(self, room):
        """Sets a limit of `room` bytes above what is live."""
        vmm_torch.set_limit(self.before + room)
        self.addCleanup(vmm_torch.set_limit, 0)

    def test_the_error_has_the_facts_and_a_retry_works(self):
        self.limited(GIB)
        held = self.bytes(700 * MIB)
        before = self.torch.cuda.memory_stats()["num_ooms"]
        with self.assertRaises(self.torch.OutOfMemoryError) as caught:
            self.bytes(600 * MIB)
        text = str(caught.exception)
        self.assertIn("CUDA out of memory. Tried to allocate 600.00 MiB", text)
        self.assertRegex(text, r"vmm_torch: [0-9.]+ MiB is in use of [0-9.]+ [MG]iB reserved")
        self.assertRegex(text, r"the limit \(.*\) is [0-9.]+ GiB")
        self.assertEqual(self.torch.cuda.memory_stats()["num_ooms"], before + 1)
        held.fill_(7)
        del held
        again = self.bytes(600 * MIB).fill_(3)
        self.assertTrue(support.all_are(again, 3))

    def test_more_than_any_device_has(self):
        self.bytes(1)
        before = vmm_torch.stats(0)["failures"]
        with self.assertRaisesRegex(self.torch.OutOfMemoryError, "the memory of the device is"):
            self.bytes(1 << 50)
        self.assertEqual(vmm_torch.stats(0)["failures"], before + 1)
        # PyTorch itself refuses this one.
        with self.assertRaises(RuntimeError):
            self.bytes((1 << 63) - 1)
        self.assertEqual(self.live(), 0)
        self.bytes(MIB).fill_(1)

    def test_free_memory_in_pieces_serves_a_long_request(self):
        self.limited(GIB + 64 * MIB)
        pieces = [self.bytes(20 * MIB).fill_(n % 251) for n in range(48)]
        kept = pieces[::2]
        del pieces
        long = self.bytes(500 * MIB).fill_(255)
        for n, piece in enumerate(kept):
            self.assertTrue(support.all_are(piece, 2 * n % 251))
        self.assertTrue(support.all_are(long, 255))

    def test_a_fraction_is_kept(self):
        cuda = self.torch.cuda
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        for wrong in (-0.1, 1.1):
            with self.assertRaises(ValueError):
                cuda.set_per_process_memory_fraction(wrong)
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction(0.1)
        self.bytes(int(total * 0.08))
        with self.assertRaises(self.torch.OutOfMemoryError):
            self.bytes(int(total * 0.11))
        self.assertLessEqual(cuda.max_memory_reserved(), int(total * 0.1))
        cuda.set_per_process_memory_fraction(1.0)
        self.bytes(int(total * 0.11))

    def test_no_memory_is_made_because_of_a_fraction_or_a_later_limit(self):
        cuda = self.torch.cuda
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        self.addCleanup(vmm_torch.set_limit, 0)
        held = self.bytes(64 * MIB)
        before = cuda.memory_reserved()
        cuda.set_per_process_memory_fraction(0.95)
        vmm_torch.set_limit("30GiB")
        time.sleep(1)
        self.assertLessEqual(cuda.memory_reserved(), before + 64 * MIB)
        del held

    def test_a_fraction_of_nothing_leaves_nothing(self):
        cuda = self.torch.cuda
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        cuda.set_per_process_memory_fraction(0.0)
        self.assertEqual(cuda.get_per_process_memory_fraction(), 0.0)
        with self.assertRaises(self.torch.OutOfMemoryError):
            self.bytes(64 * MIB)
        cuda.set_per_process_memory_fraction(1.0)
        self.bytes(64 * MIB)

    def test_observers_learn_of_it(self):
        seen = []
        attach = self.torch._C._cuda_attach_out_of_memory_observer
        attach(lambda device, wanted, total, free: seen.append((device, wanted, total, free)))
        self.limited(GIB)
        with self.assertRaises(self.torch.OutOfMemoryError):
            self.bytes(2 * GIB)
        self.assertEqual(len(seen), 1)
        self.assertEqual(seen[0][:2], (0, 2 * GIB))

    def test_the_limit_is_never_passed(self):
        self.limited(512 * MIB)
        held = []
        with self.assertRaises(self.torch.OutOfMemoryError):
            for n in range(1000):
                held.append(self.bytes((n % 7 + 1) * MIB))
        self.assertGreater(self.live(), 480 * MIB)
        self.assertLessEqual(self.torch.cuda.memory_reserved(), self.before + 512 * MIB)


if __name__ == "__main__":
    unittest.main()
