"""torch.distributed with NCCL, one process for each card."""

import socket
import tempfile
import unittest

import support

BEGIN = """
import os, torch
import vmm_torch
vmm_torch.install()
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
total = world * (world + 1) // 2
"""

END = """
dist.barrier()
dist.destroy_process_group()
print("done", rank)
"""

COLLECTIVES = """
for n in (1, 1000, 1 << 20, 1 << 26):
    x = torch.full((n,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    assert bool((x == total).all()), n
pieces = [torch.empty(1 << 20, device="cuda") for _ in range(world)]
dist.all_gather(pieces, torch.full((1 << 20,), float(rank), device="cuda"))
assert all(bool((p == n).all()) for n, p in enumerate(pieces))
# Without a wait, so that memory is freed and taken while NCCL's stream works.
for n in range(50):
    x = torch.full((1 << 20,), float(n), device="cuda")
    work = dist.all_reduce(x, async_op=True)
    others = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(3)]
    work.wait()
    assert bool((x == n * world).all()), n
    del x, work, others
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(30):
    x = torch.randn(64 + 16 * (step % 5), 512, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
total = sum(p.double().sum() for p in model.parameters())
all_totals = [torch.zeros_like(total) for _ in range(world)]
dist.all_gather(all_totals, total)
assert all(torch.equal(all_totals[0], other) for other in all_totals)
# A captured all-reduce.
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 1
    dist.all_reduce(y)
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
assert bool((y == world * world).all())
del graph
"""

REGISTRATION = """
backend = dist.group.WORLD._get_backend(torch.device("cuda"))
def summed():
    x = torch.full((3 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    assert bool((x == total).all())
    return x
summed()
# The memory of the allocator's own pools moves, so that they are refused.
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = summed()
try:
    backend.register_mem_pool(pool)
except RuntimeError as error:
    assert "torch.cuda.MemPool(backend.mem_allocator)" in str(error), error
else:
    raise SystemExit("it registered memory that moves")
del x, pool
summed()
# NCCL's own memory stays where it is: pieces from before and from after.
pool = torch.cuda.MemPool(backend.mem_allocator)
with torch.cuda.use_mem_pool(pool):
    before = summed()
backend.register_mem_pool(pool)
with torch.cuda.use_mem_pool(pool):
    pieces = [summed() for _ in range(4)]
    assert len({p.data_ptr() for p in [before, *pieces]}) == 5
    del pieces
    again = [summed() for _ in range(4)]
summed()
backend.deregister_mem_pool(pool)
del before, again, pool
torch.cuda.empty_cache()
summed()
"""

# PyTorch is told late, and by its other name, to register all memory with NCCL.
LATE = f"""
torch.cuda.set_device(int(os.environ["RANK"]))
os.environ["NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "t"
early = [torch.ones(1 << 22, device="cuda") for _ in range(4)]
{BEGIN.split("vmm_torch.install()")[1]}
del early
# What was free moves.
torch.ones(3 << 22, device="cuda")
"""


def setUpModule():
    # Each test starts processes that install; this one does not use CUDA.
    if support.gpus() == 0:
        raise unittest.SkipTest("there is no GPU here")


class Distributed(unittest.TestCase):
    def run_job(self, job, world, begin=BEGIN, said=""):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        with tempfile.TemporaryDirectory() as folder:
            jobs = [
                support.start(begin + job + END, folder, RANK=str(rank), LOCAL_RANK=str(rank), **common)
                for rank in range(world)
            ]
            results = [support.ended(job, 90) for job in jobs]
        for rank, (status, output) in enumerate(results):
            self.assertEqual(status, 0, output)
            self.assertIn(f"done {rank}", output)
            self.assertIn(said, output)

    def run_on_two(self, job, **more):
        if support.gpus() < 2:
            self.skipTest("there is one GPU here")
        self.run_job(job, 2, **more)

    def test_one_rank(self):
        self.run_job(COLLECTIVES, 1)

    def test_two_ranks(self):
        self.run_on_two(COLLECTIVES)

    def test_registration_of_a_pool(self):
        self.run_job(REGISTRATION, 1)

    def test_registration_of_a_pool_by_two_ranks(self):
        self.run_on_two(REGISTRATION)

    def test_no_memory_that_moves_is_registered(self):
        begin = BEGIN.split("import torch.distributed")[0] + LATE
        self.run_job(COLLECTIVES, 1, begin=begin, said="NCCL registers no tensors but those")

    def test_no_memory_that_moves_is_registered_by_two_ranks(self):
        begin = BEGIN.split("import torch.distributed")[0] + LATE
        self.run_on_two(COLLECTIVES, begin=begin, said="NCCL registers no tensors but those")


if __name__ == "__main__":
    unittest.main()
