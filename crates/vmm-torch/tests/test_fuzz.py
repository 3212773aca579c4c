"""Ten thousand random operations whose contents are checked on the device."""

import random
import unittest

import support

import vmm_torch


def setUpModule():
    support.gpu_or_skip()


class Fuzz(support.GpuTest):
    OPERATIONS = 10_000
    MOST = 3 << 30

    def run_with(self, seed, limit):
        torch = self.torch
        rng = random.Random(seed)
        streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]
        wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
        # Checks take no memory, which may be short.
        count = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
        flags = [torch.empty(2048, dtype=torch.bool, device="cuda") for _ in streams]
        torch.cuda.synchronize()
        live, total, failures = [], 0, 0
        vmm_torch.set_limit(limit)
        self.addCleanup(vmm_torch.set_limit, 0)

        def look(sample, value, at):
            differs = flags[at][: sample.numel()]
            with torch.cuda.stream(streams[at]):
                torch.ne(sample, value, out=differs)
                torch.sum(differs, 0, dtype=torch.int64, out=count[at])
                wrong[at].add_(count[at])

        def check(entry):
            tensor, value, at = entry
            look(tensor[:: max(1, tensor.numel() // 1024)], value, at)

        for operation in range(self.OPERATIONS):
            what = rng.random()
            if what < 0.5 or not live:
                length = int(2 ** rng.uniform(0, 26))
                at = rng.randrange(len(streams))
                value = operation % 251
                if total + length > self.MOST:
                    continue
                try:
                    with torch.cuda.stream(streams[at]):
                        tensor = torch.full((length,), value, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError:
                    failures += 1
                    continue
                live.append((tensor, value, at))
                total += length
            elif what < 0.93:
                entry = live.pop(rng.randrange(len(live)))
                check(entry)
                total -= entry[0].numel()
            elif what < 0.98:
                tensor, value, at = entry = live[rng.randrange(len(live))]
                other = rng.randrange(len(streams))
                streams[other].wait_stream(streams[at])
                look(tensor[:1], value, other)
                tensor.record_stream(streams[other])
            elif what < 0.999:
                streams[rng.randrange(len(streams))].synchronize()
            else:
                torch.cuda.empty_cache()
        for entry in live:
            check(entry)
        torch.cuda.synchronize()
        self.assertEqual(sum(int(count) for count in wrong), 0)
        del entry, live, tensor
        return failures

    def test_without_a_limit(self):
        self.assertEqual(self.run_with(1, 0), 0)

    def test_under_a_tight_limit(self):
        limit = self.before + (1 << 30)
        # 168 of these requests are more than there is, however the rest lies.
        self.assertGreater(self.run_with(2, limit), 100)
        self.assertLessEqual(self.torch.cuda.max_memory_reserved(), limit)


if __name__ == "__main__":
    unittest.main()
