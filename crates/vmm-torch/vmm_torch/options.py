"""What users choose: keyword arguments of `install`, or variables of the environment.

A keyword argument comes before the variable `VMM_NAME`; what neither gives has its default.
"""

import ctypes
import os
from dataclasses import dataclass, fields

from .errors import OptionError

CROSS_STREAM = {"wait": 0, "reached": 1, "never": 2}
RETENTION_SECONDS = {"short": 1, "normal": 10, "long": 600}
FRAMES = {"device": 0, "exportable": 1, "rdma": 2}
LOG = {"off": 0, "info": 1, "debug": 2}
DOORS = ("auto", "full", "plain")
# The target that is what the last run of the same command needed; see last.py.
LAST = "last"
# None, also where there is a limit; VMM_NO_TARGET in vmm.h.
NONE = "none"
NO_TARGET = 2**64 - 1
# The shortest memory that CUDA maps, in bytes: no limit can be below it.
GRANULE = 2 << 20
_UNITS = {"": 1, "B": 1}
_UNITS.update({f"{p}iB": 1 << (10 * n) for n, p in enumerate("KMGT", 1)})
_UNITS.update({f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)})


class Settings(ctypes.Structure):
    """`vmm_torch_settings_t` of the C++ sources."""

    _fields_ = [
        ("limit", ctypes.c_uint64),
        ("target", ctypes.c_uint64),
        ("time_to_live_ns", ctypes.c_uint64),
        ("cross_stream", ctypes.c_uint32),
        ("frame_kind", ctypes.c_uint32),
        ("log_level", ctypes.c_uint32),
        ("device_kind", ctypes.c_uint32),
        ("frame_kind_is_a_guess", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Options:
    """What was chosen.

    limit: memory of each device in bytes that is never passed, or a text such as "20GiB";
        0: as much as the device has.
    target: memory that the pool makes ahead of need and tries to stay under; the last run's peak,
        where it is known, serves best. "last": what the last run of the same command needed;
        "none"; 0: the limit where one is given, else none. What `empty_cache` or `trim` gave back is made
        again only when it is needed.
    cross_stream: how memory that one stream released becomes usable by another: "wait" (the other
        stream waits on the device), "reached" (once the work is over), "never".
    retention: how long idle memory above the target is kept: "short" (1 s), "normal" (10 s),
        "long" (10 min).
    frames: "device", "exportable" (to other processes), "rdma" (network cards can register it), or
        "auto": in a job of several processes (`WORLD_SIZE` above 1) "exportable" if all are on one
        machine (`LOCAL_WORLD_SIZE`), else "rdma", or what of these the device offers; "device"
        otherwise.
    log: what is written to standard error: "off"; "info" (what is in place, pools as they are made,
        each device's peaks at the end); "debug" (failed allocations too).
    door: "full" (needs a C++ compiler once for each PyTorch), "plain" (needs none and offers
        less), or "auto": full where that can be had, else plain with a warning that says why.
    """

    limit: int = 0
    target: int | str = 0
    cross_stream: str = "wait"
    retention: str = "normal"
    frames: str = "auto"
    log: str = "off"
    door: str = "auto"

    @classmethod
    def choose(cls, given, environ=os.environ):
        """The options from keyword arguments, where not `None`, and the environment."""
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise OptionError(f"there is no option {unknown[0]!r}; there are {', '.join(names)}")
        chosen = {}
        for name in names:
            variable = f"VMM_{name.upper()}"
            if given.get(name) is not None:
                chosen[name] = _check(name, given[name], name)
            elif environ.get(variable):
                chosen[name] = _check(name, environ[variable], variable)
        return cls(**chosen)

    def frame_kind(self, environ=os.environ):
        """The kind of frames that is asked for."""
        if self.frames != "auto":
            return self.frames
        size = environ.get("WORLD_SIZE") or "1"
        here = environ.get("LOCAL_WORLD_SIZE") or size
        return "device" if size == "1" else "exportable" if here == size else "rdma"

    def settings(self, environ=os.environ):
        """The options as numbers, for the library; the target must not be "last" any more."""
        return Settings(
            limit=self.limit,
            target=NO_TARGET if self.target == NONE else self.target,
            time_to_live_ns=RETENTION_SECONDS[self.retention] * 10**9,
            cross_stream=CROSS_STREAM[self.cross_stream],
            frame_kind=FRAMES[self.frame_kind(environ)],
            log_level=LOG[self.log],
            frame_kind_is_a_guess=self.frames == "auto",
        )


def parse_bytes(value, name="the length"):
    """A number of bytes from a number or a text: 1024, "20GiB", "1.5 GB". Only a unit makes whole
    bytes of a fraction."""
    fault = OptionError(f'{name} is {value!r}: give bytes, or a text such as "20GiB" or "500 MB"')
    if isinstance(value, bool):
        raise fault
    if isinstance(value, (int, float)):
        number, unit = value, 1
    elif isinstance(value, str):
        text = value.strip()
        digits = text.rstrip("KMGTiBkmgtb ")
        units = {known.lower(): size for known, size in _UNITS.items()}
        unit = units.get(text[len(digits) :].strip().lower())
        try:
            number = float(digits) if "." in digits else int(digits)
        except ValueError:
            raise fault from None
        if unit is None:
            raise fault
    else:
        raise fault
    if unit == 1 and number % 1 != 0:
        raise fault
    number *= unit
    if not 0 <= number < 2**63:
        raise fault
    return int(number)


def parse_limit(value, name="limit"):
    """A limit in bytes, as `parse_bytes`; 0: none."""
    limit = parse_bytes(value, name)
    if 0 < limit < GRANULE:
        raise OptionError(f"{name} is {value!r}: the least is {GRANULE >> 20} MiB; 0 is none")
    return limit


def _check(name, value, shown):
    if name == "limit":
        return parse_limit(value, shown)
    if name == "target":
        if value in (LAST, NONE):
            return value
        try:
            return parse_bytes(value, shown)
        except OptionError as fault:
            raise OptionError(f'{fault}, "{LAST}" or "{NONE}"') from None
    known = {
        "cross_stream": tuple(CROSS_STREAM),
        "retention": tuple(RETENTION_SECONDS),
        "frames": ("auto", *FRAMES),
        "log": tuple(LOG),
        "door": DOORS,
    }[name]
    if value not in known:
        raise OptionError(f"{shown} is {value!r}: it can be {', '.join(known)}")
    return value
