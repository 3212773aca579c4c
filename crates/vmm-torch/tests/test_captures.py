"""Captures that fail, pause, or are another library's; waits for the device beside them."""

import ctypes
import gc
import threading
import unittest

import support
from support import MIB

import vmm_torch
from vmm_torch import build

# A host function that needs Python is queued, and a graph has gone whose memory waits for the device.
# Whoever waits for the device now with Python's lock waits for ever.
HOST_FUNCTION = """
import ctypes, gc, threading, torch, vmm_torch
from vmm_torch import build
vmm_torch.install()
x = torch.ones(1 << 20, device="cuda")
def leave_a_graph():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
leave_a_graph()
gc.collect()
ran = threading.Event()
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.set())
runtime = ctypes.CDLL(build.loaded("libcudart.so"))
torch.cuda._sleep(500_000_000)
stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
assert runtime.cudaLaunchHostFunc(stream, function, None) == 0
assert not ran.is_set()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    y = torch.empty(1 << 20, device="cuda")
del y, pool
gc.collect()
assert ran.wait(30)
torch.cuda.empty_cache()
assert vmm_torch.stats(0)["private_pools"] == 0, vmm_torch.stats(0)
print("done")
"""

# Memory outside the cache, beside a capture that forbids cudaMalloc to all threads, and what those who
# follow memory are told of it.
UNCACHED = """
import threading, torch, vmm_torch
vmm_torch.install()
import torch.cuda._gpu_trace as gpu_trace
x = torch.ones(1 << 20, device="cuda")
made, gone = [], []
gpu_trace.register_callback_for_memory_allocation(made.append)
gpu_trace.register_callback_for_memory_deallocation(gone.append)
torch._C._activate_gpu_trace()
graph = torch.cuda.CUDAGraph()
kept = []
def other():
    with torch.cuda.stream(torch.cuda.Stream()):
        kept.append(torch.empty(1 << 20, device="cuda"))
with torch.cuda.stream(torch.cuda.Stream()):
    graph.capture_begin(capture_error_mode="global")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    x.add_(1)
    graph.capture_end()
graph.replay()
torch.cuda.synchronize()
assert bool((x == 2).all())
address = kept[0].data_ptr()
assert address in made and address not in gone
kept.clear()
assert address in gone
print("done")
"""


def setUpModule():
    support.gpu_or_skip()


class Captures(support.GpuTest):
    def test_a_failed_capture_can_be_tried_again(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        before = vmm_torch.stats(0)["private_pools"]
        for with_memory in (False, True):
            # In its own pool that is refused by PyTorch's allocator of host memory.
            for fails in (True, False):
                graph = torch.cuda.CUDAGraph()
                pool = torch.cuda.graph_pool_handle()
                if fails:
                    with self.assertRaises(RuntimeError):
                        with torch.cuda.graph(graph, pool=pool):
                            if with_memory:
                                torch.add(x, 1)
                            torch.cuda.synchronize()
                else:
                    with torch.cuda.graph(graph, pool=pool):
                        y = x * 3
                    graph.replay()
                    self.assertTrue(bool((y == 3).all()))
            del graph, y
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(vmm_torch.stats(0)["private_pools"], before)

    def test_use_mem_pool_goes_on_when_another_library_captures(self):
        torch = self.torch
        runtime = ctypes.CDLL(build.loaded("libcudart.so"))
        side = torch.cuda.Stream()
        torch.empty(MIB, device="cuda")
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            with torch.cuda.stream(side):
                relaxed = ctypes.c_int(2)
                stream = ctypes.c_void_p(side.cuda_stream)
                self.assertEqual(runtime.cudaStreamBeginCapture(stream, relaxed), 0)
                captured = torch.empty(MIB, device="cuda")
                graph = ctypes.c_void_p()
                ended = runtime.cudaStreamEndCapture(stream, ctypes.byref(graph))
                self.assertEqual(ended, 0)
            torch.cuda.empty_cache()
            after = torch.empty(MIB, device="cuda")
        self.assertEqual(runtime.cudaGraphDestroy(graph), 0)
        self.assertEqual(self.pool_of(captured), tuple(pool.id))
        self.assertEqual(self.pool_of(after), tuple(pool.id))
        self.assertEqual(pool.use_count(), 1)

    def test_no_wait_breaks_a_capture_whose_route_is_paused(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        gone = torch.cuda.CUDAGraph()
        with torch.cuda.graph(gone):
            torch.add(x, 1)
        graph = torch.cuda.CUDAGraph()
        device, pool = torch.cuda.current_device(), torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
            y = x * 2
            torch._C._cuda_endAllocateToPool(device, pool)
            del gone
            gc.collect()
            thread = threading.Thread(target=torch.cuda.empty_cache)
            thread.start()
            thread.join()
            torch._C._cuda_beginAllocateCurrentThreadToPool(device, pool)
            z = y + 1
        # The route that was begun again had a user of its own.
        torch._C._cuda_releasePool(device, pool)
        graph.replay()
        self.assertTrue(bool((z == 3).all()))


class Processes(unittest.TestCase):
    def test_no_device_is_waited_for_with_pythons_lock(self):
        status, output = support.python(HOST_FUNCTION)
        self.assertEqual(status, 0, output)
        self.assertIn("done", output)

    def test_memory_outside_the_cache(self):
        status, output = support.python(UNCACHED, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        self.assertEqual(status, 0, output)
        self.assertIn("done", output)


if __name__ == "__main__":
    unittest.main()
