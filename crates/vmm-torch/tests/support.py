"""What the tests share."""

import gc
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
MIB = 1 << 20

try:
    import vmm_torch
except ImportError:
    sys.path.insert(0, str(PACKAGE))
    import vmm_torch


def torch_or_skip():
    """PyTorch; skips where it is not installed."""
    try:
        import torch
    except ImportError:
        raise unittest.SkipTest("PyTorch is not installed here") from None
    return torch


def gpus():
    """How many GPUs PyTorch can use."""
    return torch_or_skip().cuda.device_count()


def gpu_or_skip(**options):
    """Installs the allocator and gives PyTorch; skips where there is no GPU."""
    torch = torch_or_skip()
    if gpus() == 0:
        raise unittest.SkipTest("there is no GPU here")
    vmm_torch.install(**options)
    return torch


def start(code, folder, *arguments, **environment):
    """Starts a program in a process of its own, in an empty folder, so that it finds the package
    that this process has found and nothing that lies about."""
    paths = [str(Path(vmm_torch.__file__).resolve().parent.parent), str(Path(__file__).parent)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment.setdefault("PYTHONPATH", os.pathsep.join(map(os.path.abspath, paths)))
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def python(code, *arguments, **environment):
    """Runs a program so; `(exit status, output and errors)`. One that takes longer than a minute is
    ended."""
    with tempfile.TemporaryDirectory() as folder:
        return ended(start(code, folder, *arguments, **environment), 60)


def ended(process, seconds):
    """Waits for a program that was started; `(exit status, output and errors)`."""
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + f"\nended after {seconds} s"
    return process.returncode, output


def all_are(tensor, value):
    """Whether all elements are `value`; takes little memory beside the tensor's."""
    return all(bool((piece == value).all()) for piece in tensor.flatten().split(MIB))


def failed_capture(test, graph):
    """A capture of 64 MiB that fails, since it waits for a value."""
    torch = test.torch
    x = torch.ones(MIB, device="cuda")
    with test.assertRaises(RuntimeError):
        with torch.cuda.graph(graph):
            y = torch.ones(64 * MIB, device="cuda")
            (x + y[:MIB]).sum().item()


class GpuTest(unittest.TestCase):
    """A test whose module has installed the allocator; each begins and ends without tensors."""

    # The test after which the device worked no more, which is one failure and not many.
    broken_by = None

    def setUp(self):
        import torch

        if GpuTest.broken_by is not None:
            self.skipTest(f"the device failed in {GpuTest.broken_by}")
        self.torch = torch
        self.addCleanup(self._clean)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()

    def _clean(self):
        try:
            gc.collect()
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()
        except RuntimeError:
            GpuTest.broken_by = self.id()
            raise

    def check_reserved(self, before, most):
        """Checks that no more than `most` bytes are reserved beyond `before`; shows by whom."""
        reserved = self.torch.cuda.memory_reserved()
        if reserved - before > most:
            of_pools = {}
            for segment in self.torch.cuda.memory_snapshot():
                sizes = of_pools.setdefault(tuple(segment["segment_pool_id"]), [0, 0])
                sizes[0] += segment["total_size"]
                sizes[1] += segment["allocated_size"]
            self.fail(
                f"{reserved} bytes are reserved, {before} before; of each pool mapped and live "
                f"{of_pools}; {vmm_torch.stats()}"
            )

    def pool_of(self, tensor):
        """The name of the private pool that a tensor's memory is of."""
        for segment in self.torch.cuda.memory_snapshot():
            at = segment["address"]
            if at <= tensor.data_ptr() < at + segment["total_size"]:
                return tuple(segment["segment_pool_id"])
        return None

    def live(self):
        """Bytes in tensors beyond those of before the test."""
        return self.torch.cuda.memory_allocated() - self.before
