"""Runs a program as `python PROGRAM` and `python -m PROGRAM` do.

`runpy` runs it in a module that is gone when its last line was run. Threads and functions at the
end of the process may need it later (to pickle, for one), so here it stays.
"""

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from types import ModuleType

from .errors import VmmError


def check(name, is_module):
    """Raises VmmError if there is no such program. Imports nothing of it: of a module in a package
    it looks for the package."""
    if not is_module:
        if not os.path.exists(name):
            raise VmmError(f"there is no {name}")
        return
    package = name.partition(".")[0]
    if _find(package) is None:
        raise VmmError(f"No module named {package}")


def load(name, is_module):
    """The code of a script, a folder or archive with a `__main__.py`, or a module, and what its
    module has before it runs. `sys.argv` begins with the name."""
    if is_module:
        # `python -m` has put the current folder first already.
        spec, code = _module(name)
        sys.argv[0] = spec.origin
    elif pkgutil.get_importer(path := os.path.abspath(name)) is None:
        return _script(path)
    else:
        # Python looks there even where it leaves out the folder of a script.
        _put_first(path, is_safe=True)
        spec = PathFinder.find_spec("__main__", [path])
        if spec is None:
            raise VmmError(f"there is no __main__.py in {name}")
        code = spec.loader.get_code("__main__")
    return code, {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


def run(code, attributes):
    """Runs it as the main module of this process."""
    main = ModuleType("__main__")
    vars(main).update(attributes, __builtins__=builtins)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _script(path):
    _put_first(os.path.dirname(os.path.realpath(path)), is_safe=False)
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
    if code is None:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    loader = SourceFileLoader("__main__", path)
    return code, {"__file__": path, "__cached__": None, "__loader__": loader}


def _module(name):
    """Where a module lies, and its code; those of `__main__` for a package."""
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = _find(name)
    code = spec.loader.get_code(name) if spec is not None and spec.loader is not None else None
    if code is None:
        raise VmmError(f"No module named {name}, or none that can be run")
    return spec, code


def _find(name):
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # What the package itself fails to import is another error.
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise
    except (ImportError, ValueError):
        # A name with nothing before or after a dot.
        if all(name.split(".")):
            raise
    return None


def _put_first(folder, is_safe):
    """Puts a folder where Python puts that of a program, unless it is told to have no such one
    (`-P`, `-I`); at the place of the current folder, which belongs to `-m vmm_torch`."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    elif is_safe:
        sys.path.insert(0, folder)
