"""Times of allocations and of a transformer encoder with one allocator, as JSON.

usage: small.py --allocator native|expandable|vmm [--limit BYTES] [--turns IN,OUT] WHAT...
WHAT: pairs, mixed, encoder, batch
"""

import builtins
import json
import random
import statistics
import time

import allocators
import turns

KIB, MIB = 1 << 10, 1 << 20

# What follows the name of a case where the figure is peak reserved over peak requested.
RESERVED = ", reserved"

# Where this process's turn may end and those of others come.
steps = builtins.range

# vmm's own figures, by what had been done before.
figures = {}


def median_ns(body, count, repeats=25):
    """The median time of one of `count` rounds of `body(count)`, in nanoseconds."""
    times = []
    for _ in steps(repeats):
        begin = time.perf_counter_ns()
        body(count)
        times.append((time.perf_counter_ns() - begin) / count)
    return statistics.median(times)


def pairs(torch):
    """One tensor allocated and freed at a time, through torch.empty and below it."""
    raw_alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
    raw_delete = torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream

    def tensors(count, length):
        for _ in range(count):
            torch.empty(length, dtype=torch.uint8, device="cuda")

    def raw(count, length):
        for _ in range(count):
            raw_delete(raw_alloc(length, stream))

    lengths = {"0.5 KiB": 512, "64 KiB": 64 * KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
    # What runs for the first time is slow for reasons that are not the allocator's.
    for length in lengths.values():
        tensors(20_000, length)
        raw(20_000, length)
    found = {}
    for name, length in lengths.items():
        found[f"torch.empty {name}"] = median_ns(lambda n, length=length: tensors(n, length), 4000)
        found[f"raw {name}"] = median_ns(lambda n, length=length: raw(n, length), 4000)
    return found


def replacing(torch, exponents, live, count, device="cuda"):
    """The time of one replacement of a random live tensor, of lengths from two to the power of the
    first exponent to that of the second."""
    rng = random.Random(0)
    lengths = [int(2 ** rng.uniform(*exponents)) for _ in range(live + count)]
    slots = [rng.randrange(live) for _ in range(count)]
    held = [torch.empty(n, dtype=torch.uint8, device=device) for n in lengths[:live]]

    def replace(count):
        for n in range(count):
            held[slots[n]] = None
            held[slots[n]] = torch.empty(lengths[live + n], dtype=torch.uint8, device=device)

    replace(count)
    return median_ns(replace, count, 3)


def mixed(torch):
    """Many tensors that live side by side, one replaced at a time, and the peak reserved over the peak
    requested that this takes."""
    found = {}
    for name, *case in (
        ("1000 small (128 B to 16 KiB)", (7, 14), 1000, 20_000),
        ("100 000 small", (7, 14), 100_000, 20_000),
        ("1000 mixed (512 B to 32 MiB)", (9, 25), 1000, 20_000),
        ("100 large (32 to 256 MiB)", (25, 28), 100, 2000),
    ):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        found[name] = replacing(torch, *case)
        found[name + RESERVED] = reserved(torch)
        figures[name] = allocators.figures()
    return found


def reserved(torch):
    """Peak reserved over peak requested."""
    stats = torch.cuda.memory_stats()
    return stats["reserved_bytes.all.peak"] / stats["requested_bytes.all.peak"]


def bert(torch):
    """An encoder of the size of BERT-base, in half precision."""
    layer = torch.nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return model.half().cuda().eval()


def encoder(torch):
    """Latencies at varying batches and lengths, and the share of allocation in them: the number of
    allocations, times what one replacement among mixed lengths takes here."""
    model = bert(torch)
    rng = random.Random(0)
    shapes = [(rng.randrange(1, 33), rng.randrange(8, 512)) for _ in range(200)]
    times = []
    with torch.no_grad():
        for measured in (False, True):
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            for index in steps(len(shapes)):
                batch, length = shapes[index]
                x = torch.randn(batch, length, 768, device="cuda", dtype=torch.half)
                torch.cuda.synchronize()
                start = time.perf_counter()
                model(x)
                torch.cuda.synchronize()
                if measured:
                    times.append((time.perf_counter() - start) * 1e3)
            count = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    ratio = reserved(torch)
    del model, x
    torch.cuda.empty_cache()
    one = replacing(torch, (9, 25), 200, 20_000)
    times.sort()
    return {
        "p50 ms": times[len(times) // 2],
        "p99 ms": times[int(len(times) * 0.99)],
        "allocations": count,
        "share of allocation": count * one / 1e6 / sum(times),
        "peak reserved / requested": ratio,
    }


def batch(torch):
    """The largest batch with which 40 steps of random length finish within the limit."""
    model = bert(torch)

    def finishes(size):
        rng = random.Random(0)
        try:
            with torch.no_grad():
                for _ in range(40):
                    length = rng.randrange(64, 512)
                    model(torch.randn(size, length, 768, device="cuda", dtype=torch.half))
            torch.cuda.synchronize()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()

    low, high = 0, 8
    while finishes(high):
        low, high = high, high * 2
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if finishes(middle) else (low, middle)
    return {"largest batch": low}


def main():
    parser = allocators.arguments(__doc__)
    parser.add_argument("--turns", type=turns.parsed)
    parser.add_argument("what", nargs="+", choices=["pairs", "mixed", "encoder", "batch"])
    options = parser.parse_args()
    torch = allocators.choose(options)
    torch.zeros(1, device="cuda")
    taking = None
    if options.turns:
        global steps
        taking = turns.Turns(torch.cuda.synchronize, *options.turns)
        steps = taking.range
    found = {}
    try:
        for what in options.what:
            found.update(globals()[what](torch))
            figures[what] = allocators.figures()
            torch.cuda.empty_cache()
    finally:
        if taking:
            taking.leave()
    print(json.dumps({"found": found, "vmm": figures}))


if __name__ == "__main__":
    main()
