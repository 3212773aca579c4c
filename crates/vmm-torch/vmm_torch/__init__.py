"""PyTorch's CUDA memory from vmm: memory that is free anywhere serves a request everywhere.

    import vmm_torch
    vmm_torch.install(limit="20GiB")   # before CUDA is used

or, for a program as it is, `python -m vmm_torch script.py`.
"""

from .errors import OptionError, VmmError
from .installing import install
from .options import Options
from .own import set_limit, share_memory, sleep, snapshot, stats, trim

__version__ = "0.1.0"
__all__ = [
    "OptionError",
    "Options",
    "VmmError",
    "install",
    "set_limit",
    "share_memory",
    "sleep",
    "snapshot",
    "stats",
    "trim",
]
