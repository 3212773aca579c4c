"""Putting the allocator in, once, before CUDA is used."""

import atexit
import sys
import threading
import warnings

from . import build
from .errors import VmmError
from .full import Full
from .library import Library
from .options import Options
from .plain import Plain

_lock = threading.Lock()
_installed = None


class Installed:
    """What is in place: the options, the door, and libvmm."""

    def __init__(self, options, door, library):
        self.options = options
        self.door = door
        self.library = library


def install(**options):
    """Makes PyTorch take its CUDA memory from vmm, in this process.

    Call it once, before anything uses CUDA. Options are those of `vmm_torch.Options`, each also as
    a variable `VMM_LIMIT`, `VMM_TARGET`, `VMM_CROSS_STREAM`, `VMM_RETENTION`, `VMM_FRAMES`,
    `VMM_LOG`, `VMM_DOOR`.

    Raises VmmError when it is too late, for the second time, without a GPU, and with a PyTorch that
    does not fit; OptionError for a value that an option cannot have.
    """
    global _installed
    with _lock:
        if _installed is not None:
            raise VmmError("vmm_torch is installed already: call install() once in a process")
        chosen = Options.choose(options)
        torch = _torch()
        library = Library()
        door = _door(chosen.door)
        door.install(library.path, chosen.settings())
        _installed = Installed(chosen, door, library)
        atexit.register(_end)
        if chosen.log != "off":
            print(
                f"vmm_torch: libvmm {library.version()}, the {door.name} door, PyTorch "
                f"{torch.__version__}, {chosen}",
                file=sys.stderr,
            )


def installed():
    """What is in place; raises VmmError if nothing is."""
    if _installed is None:
        raise VmmError("vmm_torch is not installed: call vmm_torch.install() before CUDA is used")
    return _installed


def _torch():
    """PyTorch, if the allocator can be put in now."""
    try:
        import torch
    except ImportError as error:
        raise VmmError(f"PyTorch cannot be imported: {error}") from error
    if torch.version.cuda is None:
        raise VmmError(
            f"PyTorch {torch.__version__} is built without CUDA: install a build for CUDA"
        )
    if torch.cuda.is_initialized():
        raise VmmError(
            "CUDA is in use already: call vmm_torch.install() before the first tensor on a GPU, or "
            "start the program with `python -m vmm_torch`"
        )
    if torch.cuda.device_count() == 0:
        raise VmmError("there is no GPU that PyTorch can use here")
    return torch


def _door(wanted):
    if wanted == "plain":
        return Plain()
    if wanted == "auto" and build.compiler() is None:
        warnings.warn(
            "vmm_torch found no C++ compiler and uses the plain door: memory statistics, MemPool "
            "and graph trees of torch.compile are missing; install g++ for the full one",
            stacklevel=4,
        )
        return Plain()
    return Full()


def _end():
    place = _installed
    place.door.end()
    if place.options.log != "off":
        from .own import stats

        for device, figures in stats().items():
            print(
                f"vmm_torch: device {device}: peak reserved {figures['peak_reserved_bytes']}, "
                f"peak requested {figures['peak_requested_bytes']}, "
                f"{figures['allocations']} allocations, {figures['failures']} failures",
                file=sys.stderr,
            )
