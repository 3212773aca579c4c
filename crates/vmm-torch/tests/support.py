"""What the tests share."""

import os
import subprocess
import sys
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


def python(code, *arguments, **environment):
    """Runs a program in a process of its own; `(exit status, output and errors)`."""
    paths = [str(Path(vmm_torch.__file__).parent.parent), str(Path(__file__).parent)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment.setdefault("PYTHONPATH", os.pathsep.join(paths))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


class GpuTest(unittest.TestCase):
    """A test whose module has installed the allocator; each begins and ends without tensors."""

    def setUp(self):
        import gc

        import torch

        self.torch = torch
        self.addCleanup(self._clean)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()

    def _clean(self):
        import gc

        gc.collect()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()

    def live(self):
        """Bytes in tensors beyond those of before the test."""
        return self.torch.cuda.memory_allocated() - self.before
