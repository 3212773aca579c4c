"""Tables from the files that run.sh makes.

    tables.py prediction MOCK.json CUDA.json    what the mock device predicts beside what the card took
    tables.py allocators TABLE.csv              nanoseconds of each allocator, and ours over PyTorch's

Exits with 1 where a figure misses its bound.
"""

import csv
import json
import sys

# The mock's total driver time may be off by this share.
PREDICTION = 0.25
# Ours is at most this share of PyTorch's native allocator.
OF_NATIVE = 1 / 3


def prediction(mock_path, cuda_path):
    """One row for each trace, and the total."""
    mock = {row["trace"]: row for row in json.load(open(mock_path))}
    cuda = {row["trace"]: row for row in json.load(open(cuda_path))}
    print(f"{'trace':28} {'reserved MiB':>21} {'driver ms':>19} {'worker ms':>19} {'host ns':>15}")
    print(f"{'':28} {'mock':>10} {'card':>10} {'mock':>9} {'card':>9} {'mock':>9} {'card':>9} {'mock':>7} {'card':>7}")
    totals = [0.0] * 4
    for name in mock:
        m, c = mock[name], cuda[name]
        times = [m["driver_time_us"], c["driver_time_us"], m["worker_driver_time_us"], c["worker_driver_time_us"]]
        totals = [total + time / 1e3 for total, time in zip(totals, times)]
        reserved = [row["peak_reserved_bytes"] / 2**20 for row in (m, c)]
        print(f"{name:28} {reserved[0]:10.0f} {reserved[1]:10.0f}", *(f"{time / 1e3:9.2f}" for time in times),
              *(f"{row['host_ns_per_op']:7.0f}" for row in (m, c)))
    print(f"{'total':28} {'':21}", *(f"{total:9.2f}" for total in totals))
    both = (totals[0] + totals[2]) / (totals[1] + totals[3])
    print(f"predicted over measured, both threads: {both:.3f} (asked: within {PREDICTION:.0%})")
    return abs(both - 1) <= PREDICTION


def allocators(path):
    """One row for each case, one column for each allocator."""
    rows = list(csv.DictReader(open(path)))
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    ns = {(row["allocator"], row["case"]): float(row["mean"]) for row in rows}
    print(f"{'ns per pair, mean':26}", *(f"{name:>16}" for name in names), f"{'ours / native':>16}")
    good = True
    for case in cases:
        ours = max(ns[name, case] for name in ("vmm-rust", "vmm-c"))
        ratio = ours / ns["torch-native", case]
        good &= ratio <= OF_NATIVE
        print(f"{case:26}", *(f"{ns[name, case]:16.1f}" for name in names), f"{ratio:16.3f}")
    return good


if __name__ == "__main__":
    tables = {"prediction": prediction, "allocators": allocators}
    if len(sys.argv) < 3 or sys.argv[1] not in tables:
        sys.exit(__doc__)
    sys.exit(0 if tables[sys.argv[1]](*sys.argv[2:]) else 1)
