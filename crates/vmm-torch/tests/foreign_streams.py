"""Tests of streams that PyTorch does not own and of streams of another card, for both doors."""

import ctypes

import support
from support import MIB

import vmm_torch
from vmm_torch import build

# Some tens of milliseconds on most cards.
LONG = 50_000_000


class ForeignStreams:
    """For a test case that has PyTorch as `torch`."""

    def leave(self, length):
        """Limits the first card to so much beyond what lives."""
        self.torch.zeros(1, device="cuda")
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        vmm_torch.set_limit(vmm_torch.stats(0)["live_bytes"] + length)
        self.addCleanup(vmm_torch.set_limit, 0)

    def new_stream(self):
        """A handle that PyTorch knows nothing of."""
        handle = ctypes.c_void_p()
        # cudaStreamNonBlocking
        self.assertEqual(self.runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1), 0)
        return handle

    def destroy(self, handle):
        self.assertEqual(self.runtime.cudaStreamDestroy(handle), 0)

    @property
    def runtime(self):
        return ctypes.CDLL(build.loaded("libcudart.so"))

    def test_external_streams_may_be_destroyed(self):
        torch = self.torch
        self.leave(300 * MIB)
        for n in range(1, 21):
            handle = self.new_stream()
            foreign = torch.cuda.ExternalStream(handle.value)
            used = torch.full((64 * MIB,), n, dtype=torch.uint8, device="cuda")
            foreign.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(foreign):
                made = used.clone()
                wrong = (made != n).any().item()
            used.record_stream(foreign)
            self.assertFalse(wrong)
            del made, used
            foreign.synchronize()
            self.destroy(handle)
            # Not to be had without the memory of both.
            large = torch.full((240 * MIB,), n, dtype=torch.uint8, device="cuda")
            self.assertTrue(support.all_are(large, n))
            del large
        torch.cuda.empty_cache()

    def test_a_stream_that_is_destroyed_before_its_work_is_over(self):
        torch = self.torch
        self.leave(200 * MIB)
        copy = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
        for n in range(1, 6):
            handle = self.new_stream()
            foreign = torch.cuda.ExternalStream(handle.value)
            used = torch.full((64 * MIB,), n, dtype=torch.uint8, device="cuda")
            foreign.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(foreign):
                torch.cuda._sleep(LONG)
                copy.copy_(used)
            used.record_stream(foreign)
            del used
            self.destroy(handle)
            # New ones may have its handle.
            others = [self.new_stream() for _ in range(8)]
            large = torch.full((100 * MIB,), 255, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            self.assertTrue(support.all_are(copy, n))
            del large
            for other in others:
                self.destroy(other)

    def test_a_tensor_may_outlive_its_external_stream(self):
        torch = self.torch
        torch.zeros(1, device="cuda")
        before = vmm_torch.stats(0)["reserved_bytes"]
        handle = self.new_stream()
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            tensor = torch.full((64 * MIB,), 7, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.destroy(handle)
        self.assertTrue(support.all_are(tensor, 7))
        del tensor
        torch.cuda.empty_cache()
        large = torch.full((240 * MIB,), 3, dtype=torch.uint8, device="cuda")
        self.assertTrue(support.all_are(large, 3))
        del large
        torch.cuda.empty_cache()
        self.assertLess(vmm_torch.stats(0)["reserved_bytes"] - before, 64 * MIB)

    def test_streams_of_another_card(self):
        if support.gpus() < 2:
            self.skipTest("there is one GPU here")
        torch = self.torch
        copy = self.runtime.cudaMemcpyPeerAsync
        place = [ctypes.c_void_p, ctypes.c_int]
        copy.argtypes = [*place, *place, ctypes.c_size_t, ctypes.c_void_p]
        for side in (torch.cuda.Stream(1), torch.cuda.default_stream(1)):
            for _ in range(5):
                source = torch.full((4 * MIB,), 1.0, device="cuda:0")
                target = torch.zeros(4 * MIB, device="cuda:1")
                side.wait_stream(torch.cuda.current_stream(0))
                side.wait_stream(torch.cuda.current_stream(1))
                places = (target.data_ptr(), 1, source.data_ptr(), 0)
                # The number of a default stream is that of the current device's.
                with torch.cuda.stream(side):
                    torch.cuda._sleep(LONG)
                    self.assertEqual(copy(*places, source.nbytes, side.cuda_stream), 0)
                source.record_stream(side)
                del source
                others = [torch.full((4 * MIB,), 2.0, device="cuda:0") for _ in range(4)]
                torch.cuda.synchronize(1)
                self.assertTrue(bool((target == 1).all()))
                del others, target
