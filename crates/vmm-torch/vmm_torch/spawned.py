"""Processes that a program under `python -m vmm_torch` starts.

With the methods "spawn" and "forkserver" multiprocessing has them import the program's script, and
not the command that put the allocator in. So one thing more goes with what it sends them first, and
puts the allocator in when it arrives, before the script is imported.
"""

import contextlib
import multiprocessing
import sys
import warnings
from multiprocessing import spawn

from .errors import VmmError
from .installing import install, installed
from .options import Options


class _Passenger:
    """Becomes a call of `_arrive` in the process that it is sent to."""

    def __init__(self, *given):
        self._given = given

    def __reduce__(self):
        return _arrive, self._given


def reach(options):
    """Has all processes that this one spawns install with these options, and what they spawn too."""
    others = spawn.get_preparation_data
    with contextlib.suppress(VmmError):
        # What could not be had here need not be tried, and told of, in each.
        if installed().door.name == "plain":
            options = {**options, "door": "plain"}

    def with_the_allocator(name):
        data = others(name)
        given = {key: data[key] for key in ("name", "sys_argv", "sys_path")}
        return {**data, "vmm_torch": _Passenger(options, given)}

    spawn.get_preparation_data = with_the_allocator


def _arrive(options, given):
    # As multiprocessing does a little later: PyTorch has to be found, and the target "last" wants to
    # know which process of which command this is.
    multiprocessing.current_process().name = name = given["name"]
    sys.argv, sys.path = given["sys_argv"], given["sys_path"]
    try:
        install(**options)
    except VmmError as error:
        # It may have been started for work without a GPU, and many such one after the other.
        if Options.choose(options).log != "off":
            warnings.warn(f"vmm_torch is not in the process {name}: {error}", stacklevel=1)
    reach(options)
