"""Two cards: copies, kernels on the other card's memory, and torch.distributed with NCCL."""

import socket
import tempfile
import unittest

import support
from support import MIB


def setUpModule():
    if support.gpus() < 2:
        raise unittest.SkipTest("there is one GPU or none here")
    support.gpu_or_skip()


class Copies(support.GpuTest):
    def test_copies_of_every_kind(self):
        torch = self.torch
        x = torch.arange(4 * MIB, dtype=torch.float32, device="cuda:0").reshape(2048, 2048)
        for copy, expected in (
            (x.to("cuda:1"), x),
            (x.t().to("cuda:1"), x.t()),
            (x[::2, 1::3].to("cuda:1"), x[::2, 1::3]),
            (x.to("cuda:1", torch.float64), x.double()),
            (x.to("cuda:1").to("cuda:0"), x),
        ):
            self.assertTrue(torch.equal(copy.cpu(), expected.cpu()))

    def test_memory_made_after_access_was_given(self):
        torch = self.torch
        torch.ones(10, device="cuda:0").to("cuda:1")
        grown = [torch.full((64 * MIB,), n, dtype=torch.uint8, device="cuda:0") for n in range(8)]
        for n, tensor in enumerate(grown):
            self.assertTrue(bool((tensor[::2].to("cuda:1") == n).all()))

    def test_statistics_are_those_of_the_device(self):
        torch = self.torch
        before = [torch.cuda.memory_allocated(n) for n in (0, 1)]
        x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
        after = [torch.cuda.memory_allocated(n) for n in (0, 1)]
        self.assertEqual([b - a for a, b in zip(before, after, strict=True)], [0, 5 * MIB])
        with torch.cuda.device(1):
            del x
        self.assertEqual(torch.cuda.memory_allocated(1), before[1])


JOB = """
import os, sys, torch
import vmm_torch
vmm_torch.install()
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
for n in (1, 1000, 1 << 20, 1 << 26):
    x = torch.full((n,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    assert bool((x == 3).all()), n
pieces = [torch.empty(1 << 20, device="cuda") for _ in range(2)]
dist.all_gather(pieces, torch.full((1 << 20,), float(rank), device="cuda"))
assert all(bool((p == n).all()) for n, p in enumerate(pieces))
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
both = [torch.zeros_like(total) for _ in range(2)]
dist.all_gather(both, total)
assert torch.equal(both[0], both[1])
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
assert bool((y == 4).all())
del graph
dist.barrier()
dist.destroy_process_group()
print("done", rank)
"""


class Distributed(unittest.TestCase):
    def test_all_reduce_and_a_training_step(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        with tempfile.TemporaryDirectory() as folder:
            jobs = [
                support.start(JOB, folder, RANK=str(rank), LOCAL_RANK=str(rank), **common)
                for rank in range(2)
            ]
            results = [support.ended(job, 90) for job in jobs]
        for rank, (status, output) in enumerate(results):
            self.assertEqual(status, 0, output)
            self.assertIn(f"done {rank}", output)


if __name__ == "__main__":
    unittest.main()
