"""libvmm, called from Python: figures, trimming, snapshots. Not on the way of allocations."""

import ctypes
import os
from pathlib import Path

from .errors import VmmError

FOLDER = Path(__file__).resolve().parent


class Stats(ctypes.Structure):
    """`vmm_stats_t`."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "live_bytes requested_bytes live_leases reserved_bytes retired_bytes stale_bytes "
            "peak_live_bytes peak_requested_bytes peak_reserved_bytes allocations releases misses "
            "failures frames_made frames_moved frames_recalled frames_released "
            "frames_released_bytes unmaps device_waits host_waits failed_steps limit target "
            "frames mappings address_bytes private_pools private_reserved_bytes "
            "peak_active_bytes peak_frames frame_kind miss_ns"
        ).split()
    ]


# By the numbers of `vmm_frame_kind_t`.
FRAME_KINDS = ("device", "exportable", "rdma", "host")


def path():
    """Where libvmm.so lies: `VMM_LIBRARY`, or in this package."""
    named = os.environ.get("VMM_LIBRARY")
    library = Path(named) if named else FOLDER / "libvmm.so"
    if not os.path.exists(library):
        raise VmmError(
            f"{library} is missing: install vmm_torch from its wheel, or set VMM_LIBRARY to a "
            "libvmm.so"
        )
    return library


class Library:
    """The functions of libvmm that Python calls."""

    def __init__(self):
        self.path = path()
        try:
            self._lib = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise VmmError(
                f"libvmm cannot be loaded: {error}; install vmm_torch from its wheel anew, or set "
                "VMM_LIBRARY to a libvmm.so that was built for this machine"
            ) from error
        pool, length = ctypes.c_void_p, ctypes.c_uint64
        for name, arguments in {
            "vmm_stats": [pool, ctypes.POINTER(Stats)],
            "vmm_trim": [pool, length, ctypes.POINTER(length)],
            "vmm_trim_and_wait": [pool, length, ctypes.POINTER(length)],
            "vmm_write_snapshot": [pool, ctypes.c_char_p],
            "vmm_last_error": [],
            "vmm_version": [],
        }.items():
            if not hasattr(self._lib, name):
                raise VmmError(
                    f"{self.path} has no {name}: it is of another version than vmm_torch; install "
                    "both from one wheel"
                )
            getattr(self._lib, name).argtypes = arguments
        self._lib.vmm_last_error.restype = ctypes.c_char_p
        self._lib.vmm_version.restype = ctypes.c_char_p

    def version(self):
        return self._lib.vmm_version().decode()

    def stats(self, pool):
        figures = Stats(size=ctypes.sizeof(Stats))
        self._check(self._lib.vmm_stats(pool, ctypes.byref(figures)))
        found = {name: getattr(figures, name) for name, _ in Stats._fields_[1:]}
        return {**found, "frame_kind": FRAME_KINDS[figures.frame_kind]}

    def trim(self, pool, keep, wait):
        released = ctypes.c_uint64()
        trim = self._lib.vmm_trim_and_wait if wait else self._lib.vmm_trim
        self._check(trim(pool, keep, ctypes.byref(released)))
        return released.value

    def write_snapshot(self, pool, file):
        self._check(self._lib.vmm_write_snapshot(pool, os.fsencode(file)))

    def _check(self, status):
        if status != 0:
            text = self._lib.vmm_last_error() or b"libvmm failed"
            raise VmmError(text.decode(errors="replace"))
