"""Putting the allocator in, once, before CUDA is used."""

import atexit
import contextlib
import os
import sys
import threading
import warnings
from dataclasses import replace
from multiprocessing import util

from . import build
from .errors import VmmError
from .full import Full
from .last import LastRun
from .library import Library
from .options import LAST, Options
from .plain import Plain

# PyTorch's own bound on devices is a signed byte.
MOST_DEVICES = 128
FORKED = (
    "this process was forked from one that had used CUDA, and cannot use it: start it with the "
    'method "spawn"'
)
# PyTorch's switch and an older name of it, and the values that switch it on.
NCCL_HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
NCCL_HOOKS = (NCCL_HOOK, "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")
ON = ("1", "t", "true", "y", "yes")

_lock = threading.Lock()
_installed = None


class Installed:
    """What is in place: the options, the door, libvmm, and with the target "last" what is kept for
    the next run."""

    def __init__(self, options, door, library, last):
        self.options = options
        self.door = door
        self.library = library
        self.last = last
        # The program ends with an error.
        self.failed = False
        self.ended = False
        # This process was forked from one that had used CUDA. What it has is a copy, whose locks may
        # be held by threads that it lacks. One that was forked before may use CUDA.
        self.is_dead = False
        self._used_at_fork = False
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def log(self, text):
        if self.options.log != "off":
            print(f"vmm_torch: {text}", file=sys.stderr)

    def pools(self):
        """The pools of the devices in use, by the devices' numbers."""
        found = {number: self.door.pool(number) for number in range(MOST_DEVICES)}
        return {number: pool for number, pool in found.items() if pool}

    def refuse_fork(self):
        if self.is_dead:
            raise VmmError(FORKED)

    def _before_fork(self):
        torch = sys.modules["torch"]
        self._used_at_fork = torch.cuda.is_initialized() or bool(self.pools())

    def _after_fork(self):
        self.is_dead = self.is_dead or self._used_at_fork


def install(**options):
    """Makes PyTorch take its CUDA memory from vmm, in this process.

    Call it once, before anything asks CUDA. Options are those of `vmm_torch.Options`, each also as
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
        torch = _ready()
        library = Library()
        door = _door(chosen.door)
        last, no_target = None, None
        if chosen.target == LAST:
            last = LastRun.of_this_process()
            target, no_target = last.target()
            chosen = replace(chosen, target=target)
        _keep_nccl_from_general_memory()
        door.install(library.path, chosen.settings())
        _installed = Installed(chosen, door, library, last)
        atexit.register(_end)
        # The processes of a fork server end without atexit, but with what is registered after the fork.
        util.register_after_fork(_installed, lambda _: util.Finalize(None, _end, exitpriority=0))
        _installed.log(
            f"libvmm {library.version()}, the {door.name} door, PyTorch {torch.__version__}, "
            f"{chosen}, {chosen.frame_kind()} frames"
        )
        if last:
            _note_before_resets(torch)
            _note_exits()
        if no_target:
            _installed.log(f"no target: {no_target}")


def installed():
    """What is in place; raises VmmError if nothing is."""
    if _installed is None:
        raise VmmError("vmm_torch is not installed: call vmm_torch.install() before CUDA is used")
    return _installed


def _ready():
    """PyTorch, if the allocator can be put in now."""
    torch = build.pytorch()
    if torch.cuda.is_initialized():
        raise VmmError(
            "CUDA is in use already: call vmm_torch.install() before anything asks CUDA, or start "
            "the program with `python -m vmm_torch`"
        )
    if torch.cuda.device_count() == 0:
        raise VmmError(
            "there is no GPU that PyTorch can use here: see what `nvidia-smi` and "
            "CUDA_VISIBLE_DEVICES show, or run the program without vmm_torch"
        )
    return torch


def _keep_nccl_from_general_memory():
    """NCCL would register ranges whose memory moves."""
    # As PyTorch reads them, the first that is set counts.
    value = next((os.environ[name] for name in NCCL_HOOKS if name in os.environ), "0")
    if value.lower() in ON:
        os.environ[NCCL_HOOK] = "0"
        warnings.warn(
            f"vmm_torch sets {NCCL_HOOK} to 0: the memory under tensors' addresses may move when "
            "they are free, so NCCL cannot register it; "
            "torch.cuda.MemPool(backend.mem_allocator) is for that",
            stacklevel=3,
        )


def _door(wanted):
    if wanted == "plain":
        return Plain()
    try:
        return Full()
    except VmmError as error:
        if wanted == "full":
            raise
        reason = error
    try:
        door = Plain()
    except VmmError:
        raise reason from None
    warnings.warn(
        "vmm_torch uses the plain door, without memory statistics, MemPool and graph trees of "
        f"torch.compile: {reason}",
        stacklevel=3,
    )
    return door


def _note_before_resets(torch):
    """Notes the peaks before a program has them begin anew."""
    for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
        reset = getattr(torch._C, name, None)
        if reset is not None:

            def noted(*given, reset=reset):
                _note_peaks()
                return reset(*given)

            setattr(torch._C, name, noted)


def _note_exits():
    """Notes with which status a program ends, which is not known at its end."""
    leave = sys.exit

    def noted(status=None, /):
        note_exit(status)
        leave(status)

    sys.exit = noted


def note_exit(status):
    """Notes that the program wants to end with this status of `sys.exit`."""
    if _installed is not None and status not in (None, 0):
        _installed.failed = True


def _note_peaks():
    from .own import stats

    # Where even figures cannot be had, the program has to learn of it by other means.
    with contextlib.suppress(VmmError):
        _installed.last.note({n: f["peak_requested_bytes"] for n, f in stats().items()})


def _end():
    place = _installed
    if place.is_dead or place.ended:
        return
    place.ended = True
    place.door.end()
    from .own import stats

    for device, figures in stats().items():
        place.log(
            f"device {device}: peak reserved {figures['peak_reserved_bytes']}, "
            f"peak requested {figures['peak_requested_bytes']}, "
            f"{figures['allocations']} allocations, {figures['failures']} failures, "
            f"{figures['miss_ns'] / 1e9:.3f} s in {figures['misses']} misses"
        )
    if place.last:
        _note_peaks()
        place.last.write(is_complete=not _has_failed(place))


def _has_failed(place):
    """Whether the program ends by an exception, or with an error as its status."""
    # multiprocessing calls `_end` while the exception is under way; else Python has shown it.
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        note_exit(error.code)
        error = None
    return place.failed or error is not None or getattr(sys, "last_type", None) is not None
