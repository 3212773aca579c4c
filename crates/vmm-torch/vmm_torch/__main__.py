"""`python -m vmm_torch [options] script.py args...`: runs an unchanged program on vmm."""

import os
import runpy
import sys
from dataclasses import fields

from . import build, spawned
from .errors import VmmError
from .installing import install
from .options import Options

USAGE = """\
usage: python -m vmm_torch [options] SCRIPT.py [ARGS...]
       python -m vmm_torch [options] -m MODULE [ARGS...]
       python -m vmm_torch --build

Runs a Python program whose CUDA memory comes from vmm.

options, each also as a variable of the environment such as VMM_LIMIT:
  --limit LENGTH         memory of each device that is never passed: 20GiB
  --target LENGTH        memory to make ahead of need and to stay under; last: what the last
                         run of the same command needed
  --cross-stream HOW     wait, reached, never
  --retention HOW        short, normal, long
  --frames KIND          auto, device, exportable, rdma
  --log LEVEL            off, info, debug
  --door DOOR            auto, full, plain
  --build                compiles the allocator for the installed PyTorch, and ends
  --help                 prints this, and ends
"""


def split(arguments):
    """The options, what is to be done, and the program with its arguments. What is to be done is
    "script" or "module" (which run the program), "build" or "help"."""
    known = {"--" + field.name.replace("_", "-"): field.name for field in fields(Options)}
    ends = {"-m": "module", "--build": "build", "--help": "help", "-h": "help"}
    options = {}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        name, has_value, value = arguments[at].partition("=")
        at += 1
        if name in ends:
            return options, ends[name], arguments[at:]
        if name not in known:
            raise VmmError(f"there is no option {name}\n\n{USAGE}")
        if not has_value:
            if at == len(arguments):
                raise VmmError(f"{name} wants a value\n\n{USAGE}")
            value = arguments[at]
            at += 1
        options[known[name]] = value
    return options, "script", arguments[at:]


def prepare(options, what, program):
    """Installs the allocator, and returns a function that runs the program as Python itself
    would."""
    if not program:
        raise VmmError(f"no program is named\n\n{USAGE}")
    if what == "script" and not os.path.exists(program[0]):
        raise VmmError(f"there is no {program[0]}")
    sys.argv = program
    install(**options)
    spawned.reach(options)

    def run():
        if what == "module":
            # `python -m` has put the current folder first already.
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
            return
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.realpath(program[0]))
        runpy.run_path(program[0], run_name="__main__")

    return run


def main():
    try:
        options, what, program = split(sys.argv[1:])
        if what == "help":
            print(USAGE, end="")
            return 0
        if what == "build":
            print(build.allocator())
            return 0
        run = prepare(options, what, program)
    except VmmError as error:
        print(f"vmm_torch: {error}", file=sys.stderr)
        return 2
    run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
