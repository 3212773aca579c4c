"""torch.cuda.MemPool."""

import ctypes
import gc
import subprocess
import tempfile
import threading
import unittest
from contextlib import contextmanager
from pathlib import Path

import support
from support import MIB

import vmm_torch
from vmm_torch import build

# An allocator of the user's, which counts.
FOREIGN = """
#include <cstddef>
extern "C" int cudaMalloc(void **, size_t);
extern "C" int cudaFree(void *);
extern "C" { int made, gone;
void *foreign_malloc(size_t size, int, void *) {
    void *p = nullptr; if (cudaMalloc(&p, size) != 0) return nullptr; ++made; return p; }
void foreign_free(void *p, size_t, int, void *) { cudaFree(p); ++gone; } }
"""


def setUpModule():
    support.gpu_or_skip()


class MemPools(support.GpuTest):
    def test_allocations_go_where_they_are_sent(self):
        torch = self.torch
        pool = torch.cuda.MemPool()
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
            inside = torch.full((3 * MIB,), 1.0, device="cuda")
        outside = torch.full((3 * MIB,), 2.0, device="cuda")
        self.assertEqual(pool.use_count(), 1)
        self.assertEqual(self.pool_of(inside), tuple(pool.id))
        self.assertEqual(self.pool_of(outside), (0, 0))
        listed = pool.snapshot()
        self.assertTrue(all(tuple(s["segment_pool_id"]) == tuple(pool.id) for s in listed))
        self.assertEqual(sum(s["allocated_size"] for s in listed), 12 * MIB)
        del pool
        gc.collect()
        self.assertTrue(bool((inside == 1).all()) and bool((outside == 2).all()))

    def test_memory_stays_the_pools_while_that_lives(self):
        torch = self.torch
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            address = torch.empty(32 * MIB, device="cuda").data_ptr()
        eager = [torch.empty(32 * MIB, device="cuda") for _ in range(4)]
        self.assertNotIn(address, [tensor.data_ptr() for tensor in eager])
        with torch.cuda.use_mem_pool(pool):
            again = torch.empty(32 * MIB, device="cuda")
        self.assertEqual(again.data_ptr(), address)
        del again, eager, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.check_reserved(self.before, 100 * MIB)

    def test_only_the_own_thread_is_sent_there(self):
        torch = self.torch
        pool = torch.cuda.MemPool()
        found = []

        def other():
            found.append(torch.empty(MIB, device="cuda"))

        with torch.cuda.use_mem_pool(pool):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        self.assertEqual(self.pool_of(found[0]), (0, 0))

    def test_nested(self):
        torch = self.torch
        outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(outer):
            a = torch.empty(MIB, device="cuda")
            with torch.cuda.use_mem_pool(inner):
                b = torch.empty(MIB, device="cuda")
            c = torch.empty(MIB, device="cuda")
        self.assertEqual(self.pool_of(a), tuple(outer.id))
        self.assertEqual(self.pool_of(b), tuple(inner.id))
        self.assertEqual(self.pool_of(c), tuple(outer.id))

    def test_a_pool_as_last_resort(self):
        torch = self.torch
        vmm_torch.set_limit(self.before + 512 * MIB)
        self.addCleanup(vmm_torch.set_limit, 0)
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        tensor = torch.full((280 * MIB,), 3, dtype=torch.uint8, device="cuda")
        self.assertEqual(self.pool_of(tensor), tuple(pool.id))
        self.assertTrue(support.all_are(tensor, 3))

    @contextmanager
    def users(self):
        """An allocator of the user's, and how often it gave memory and got some back."""
        compiler = build.compiler()
        if compiler is None:
            self.skipTest("there is no C++ compiler here")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "foreign.so")
            command = [*compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
            command += ["-x", "none", build.loaded("libcudart.so")]
            subprocess.run(command, input=FOREIGN.encode(), check=True)
            allocator = self.torch.cuda.memory.CUDAPluggableAllocator(
                str(library), "foreign_malloc", "foreign_free"
            )
            counts = ctypes.CDLL(str(library))
            made, gone = (ctypes.c_int.in_dll(counts, name) for name in ("made", "gone"))
            yield allocator.allocator(), made, gone
            # Nothing is left that would need it.
            gc.collect()
            self.torch.cuda.empty_cache()
            self.assertEqual(made.value, gone.value)

    def test_an_allocator_of_the_users(self):
        torch = self.torch
        with self.users() as (allocator, made, gone):
            pool = torch.cuda.MemPool(allocator)
            with torch.cuda.use_mem_pool(pool):
                tensor = torch.full((3 * MIB,), 5.0, device="cuda")
            self.assertEqual((made.value, gone.value), (1, 0))
            self.assertTrue(bool((tensor == 5).all()))
            self.assertEqual([s["address"] for s in pool.snapshot()], [tensor.data_ptr()])
            del tensor
            # Work may still be queued on it.
            self.assertEqual(gone.value, 0)
            with torch.cuda.use_mem_pool(pool):
                tensor = torch.full((3 * MIB,), 6.0, device="cuda")
            self.assertEqual(made.value, 1)
            del tensor, pool
            gc.collect()
            torch.cuda.empty_cache()
            self.assertEqual(gone.value, 1)

    def test_small_tensors_share_what_an_allocator_of_the_users_gave(self):
        torch = self.torch
        with self.users() as (allocator, made, gone):
            pool = torch.cuda.MemPool(allocator)
            with torch.cuda.use_mem_pool(pool):
                tensors = [torch.full((1024,), float(n), device="cuda") for n in range(1000)]
            self.assertEqual(made.value, 2)
            self.assertEqual(len(pool.snapshot()), 2)
            live = sum(segment["allocated_size"] for segment in pool.snapshot())
            self.assertEqual(live, 1000 * 4096)
            self.assertTrue(all(bool((t == n).all()) for n, t in enumerate(tensors)))
            del tensors, pool

    def test_memory_of_an_allocator_of_the_users_serves_again_after_record_stream(self):
        torch = self.torch
        side = torch.cuda.Stream()
        copy = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
        with self.users() as (allocator, made, gone):
            pool = torch.cuda.MemPool(allocator)
            for n in range(1, 51):
                with torch.cuda.use_mem_pool(pool):
                    tensor = torch.full((16 * MIB,), n, dtype=torch.uint8, device="cuda")
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(20_000_000)
                    copy.copy_(tensor)
                tensor.record_stream(side)
                del tensor
                with torch.cuda.use_mem_pool(pool):
                    # The other one is still in use.
                    other = torch.full((16 * MIB,), 255, dtype=torch.uint8, device="cuda")
                torch.cuda.synchronize()
                self.assertTrue(support.all_are(copy, n))
                del other
            self.assertEqual(made.value, 2)
            del pool

    def test_a_limit_holds_for_an_allocator_of_the_users(self):
        torch = self.torch
        vmm_torch.set_limit(self.before + 512 * MIB)
        self.addCleanup(vmm_torch.set_limit, 0)
        with self.users() as (allocator, made, gone):
            pool = torch.cuda.MemPool(allocator)
            with torch.cuda.use_mem_pool(pool):
                tensor = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
                with self.assertRaises(torch.OutOfMemoryError):
                    torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
            self.assertEqual(made.value, 1)
            del tensor, pool


if __name__ == "__main__":
    unittest.main()
