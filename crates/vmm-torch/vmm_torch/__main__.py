"""`python -m vmm_torch [options] script.py args...`: runs an unchanged program on vmm."""

import sys
from dataclasses import fields

from . import build, program, spawned
from .errors import VmmError
from .installing import install, note_exit
from .options import Options

USAGE = """\
usage: python -m vmm_torch [options] [--] SCRIPT.py [ARGS...]
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
  --log LEVEL            off; info: what is in place, and peaks at the end; debug: failed
                         allocations too. Under torchrun set VMM_LOG
  --door DOOR            auto, full, plain
  --build                compiles the allocator for the installed PyTorch, and ends
  --help                 prints this, and ends
"""


def split(arguments):
    """The options, what is to be done, and the program with its arguments. What is to be done is
    "script" or "module" (which run the program), "build" or "help"."""
    known = {"--" + field.name.replace("_", "-"): field.name for field in fields(Options)}
    ends = {"-m": "module", "--build": "build", "--help": "help", "-h": "help", "--": "script"}
    options = {}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        name, has_value, value = arguments[at].partition("=")
        at += 1
        if name in ends:
            if has_value:
                raise VmmError(f"{name} takes no value\n\n{USAGE}")
            if name == "--build" and (options or arguments[at:]):
                raise VmmError(f"--build goes with no options and no program\n\n{USAGE}")
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


def prepare(options, is_module, command):
    """Installs the allocator, and returns what `program.run` takes."""
    # First, because a value that is left out makes one of the program's name.
    Options.choose(options)
    if not command:
        raise VmmError(f"no program is named\n\n{USAGE}")
    program.check(command[0], is_module)
    sys.argv = command
    install(**options)
    spawned.reach(options)
    return program.load(command[0], is_module)


def main():
    try:
        options, what, command = split(sys.argv[1:])
        if what == "help":
            print(USAGE, end="")
            return 0
        if what == "build":
            print(build.allocator())
            return 0
        found = prepare(options, what == "module", command)
    except VmmError as error:
        print(f"vmm_torch: {error}", file=sys.stderr)
        return 2
    try:
        program.run(*found)
    except SystemExit as end:
        note_exit(end.code)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
