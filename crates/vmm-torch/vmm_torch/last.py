"""The target "last": the memory that the last run of the same command needed.

Each command has a small file in the cache folder, which is written when a run ends. A program is
never harmed by it: what cannot be read or written means no target, and one warning.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings

from . import build
from .options import GRANULE

# Over the peak: what a pool takes at least, so that its memory need not move all the time.
ROOM = 1.015
# A pool knows its target before its device is used, so all devices of a process have the same one.
# That serves devices whose least peak is at least this part of the greatest.
ALIKE = 0.9
# Which of a job's processes this is, and of how many, as torchrun, Slurm, Open MPI and MPICH tell.
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# What a file of another's making may lead to.
UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class LastRun:
    """What one process of a command needed, in the last run and in this one."""

    def __init__(self, identity, folder):
        self._identity = identity
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        self.file = folder / f"{digest}.json"
        # Processes that are forked share the file and the target, and so are one run.
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._peaks = {}
        self._warned = False

    @classmethod
    def of_this_process(cls):
        """That of this process's command: the script, its arguments, which of its processes this
        is and of how many, and the names of the GPUs here."""
        script, *arguments = sys.argv or [""]
        if script == "-c":
            # With the code, which `sys.argv` leaves out.
            script, *arguments = sys.orig_argv
        # What `-m` and `-c` run depends on the folder.
        named = os.path.exists(script)
        script = os.path.realpath(script) if named else str(script)
        identity = {
            "folder": "" if named else os.getcwd(),
            "command": [script, *map(str, arguments)],
            "process": multiprocessing.current_process().name,
            "rank": _first_set(RANKS),
            "world": _first_set(WORLDS),
            "gpus": gpu_names(),
        }
        return cls(identity, build.cache_folder() / "last")

    def target(self):
        """The target in bytes, and why there is none where it is 0."""
        try:
            peaks = sorted(_checked(json.loads(self.file.read_text())["peak_requested_bytes"]))
        except FileNotFoundError:
            return 0, "no earlier run of this command is known"
        except UNREADABLE as error:
            return 0, self._warn(f"{self.file} cannot be read: {error!r}")
        if peaks[0] < ALIKE * peaks[-1]:
            return 0, "the devices of the last run needed different amounts"
        return target_of(peaks[0]), None

    def note(self, peaks):
        """Notes the peaks of requested bytes so far, by the numbers of devices. A program may have
        those of the pools begin anew, so they are noted before that too."""
        for device, peak in peaks.items():
            self._peaks[device] = max(peak, self._peaks.get(device, 0))

    def write(self, is_complete=True):
        """Keeps what was noted for the next run; nothing if no memory was used. A run that stopped
        early, and a process beside others of the run, leaves what is kept where that is more."""
        peaks = {str(device): peak for device, peak in self._peaks.items() if peak > 0}
        if not peaks:
            return
        folder = self.file.parent
        try:
            os.makedirs(folder, exist_ok=True)
            with _locked(folder):
                kept, run = self._kept()
                if not is_complete or run == self._run:
                    for device, peak in kept.items():
                        peaks[device] = max(peak, peaks.get(device, 0))
                self._replace(peaks)
        except OSError as error:
            self._warn(f"{self.file} cannot be written: {error!r}")

    def _kept(self):
        """The peaks in the file, and the run that they are of; none if it cannot be read."""
        try:
            found = json.loads(self.file.read_text())
            _checked(found["peak_requested_bytes"])
            return found["peak_requested_bytes"], found.get("run")
        except UNREADABLE:
            return {}, None

    def _replace(self, peaks):
        found = {**self._identity, "run": self._run, "peak_requested_bytes": peaks}
        # Renamed when it is complete: other processes may read it.
        made = tempfile.NamedTemporaryFile("w", dir=self.file.parent, delete=False)
        try:
            with made:
                made.write(json.dumps(found, indent=1))
            os.replace(made.name, self.file)
        except OSError:
            os.unlink(made.name)
            raise

    def _warn(self, why):
        if not self._warned:
            self._warned = True
            warnings.warn(f'vmm_torch: the target "last": {why}', stacklevel=4)
        return why


def target_of(peak):
    """The target for a peak of requested bytes: at least the whole granules that it needs."""
    return max(int(peak * ROOM), -(-peak // GRANULE) * GRANULE)


def gpu_names():
    """The names of the GPUs of this machine, each once; none if the driver's library does not tell.
    It does so without CUDA, which must not be in use yet."""
    count, gpu, name = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    names = set()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return []
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            found = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu))
            if found == 0 and nvml.nvmlDeviceGetName(gpu, name, len(name)) == 0:
                names.add(name.value.decode(errors="replace"))
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return []
    return sorted(names)


@contextlib.contextmanager
def _locked(folder):
    """Keeps other processes from writing there at the same time, where the file system has locks."""
    at = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(at, fcntl.LOCK_EX)
        yield
    finally:
        os.close(at)


def _first_set(names):
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _checked(peaks):
    """The peaks in a file, which others may have changed."""
    found = list(peaks.values())
    if not found or not all(type(peak) is int and 0 < peak < 2**63 for peak in found):
        raise ValueError(f"{peaks!r} are no peaks")
    return found
