"""All-reduce and training steps over NCCL with one allocator, a process for each GPU, as JSON.

usage: distributed.py --allocator native|expandable|vmm

The GPUs are those of CUDA_VISIBLE_DEVICES. The first process starts the others.
"""

import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import allocators

GIB = 1 << 30


def main():
    options = allocators.arguments(__doc__).parse_args()
    rank = int(os.environ.setdefault("RANK", "0"))
    others = []
    if rank == 0:
        count = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))
        os.environ.update(
            WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
        )
        command = [sys.executable, *sys.argv]
        ranks = range(1, count)
        others = [
            subprocess.Popen(command, env={**os.environ, "RANK": str(other)}) for other in ranks
        ]
    try:
        found = measured(options, rank)
        for other in others:
            if other.wait() != 0:
                raise SystemExit(f"a rank ended with status {other.returncode}")
    finally:
        for other in others:
            other.kill()
    if rank == 0:
        print(json.dumps({"found": found, "vmm": {"distributed": allocators.figures()}}))


def measured(options, rank):
    torch = allocators.choose(options)
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        return {**all_reduce(torch), **training(torch, rank)}
    finally:
        torch.distributed.destroy_process_group()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def timed(torch, body, repeats):
    """The median time of a call, in seconds, until the device is done."""
    times = []
    for _ in range(repeats):
        torch.distributed.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        body()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def all_reduce(torch):
    """GB of a tensor of 1 GiB that are reduced per second: in one tensor again and again, and in a
    new one each time."""
    kept = torch.ones(GIB // 4, device="cuda")

    def again():
        torch.distributed.all_reduce(kept)

    def anew():
        torch.distributed.all_reduce(torch.ones(GIB // 4, device="cuda"))

    def filled():
        torch.ones(GIB // 4, device="cuda")

    for body in (again, anew):
        body()
    return {
        "all-reduce of 1 GiB, GB/s": GIB / timed(torch, again, 20) / 1e9,
        "the same in new tensors": GIB / (timed(torch, anew, 20) - timed(torch, filled, 20)) / 1e9,
    }


def training(torch, rank):
    """Steps of a DistributedDataParallel encoder, and a digest of what it has learnt."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    lengths = torch.randint(64, 512, (40,), generator=torch.Generator().manual_seed(1)).tolist()

    def step():
        length = lengths.pop()
        x = torch.randn(8, length, 1024, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    seconds = timed(torch, step, 30)
    learnt = hashlib.sha256()
    for parameter in model.parameters():
        learnt.update(parameter.detach().cpu().numpy().tobytes())
    return {"training step, ms": seconds * 1e3, "learnt": learnt.hexdigest()[:16]}


if __name__ == "__main__":
    main()
