"""Compiles the allocator against the installed PyTorch, once, and keeps it.

One call of the C++ compiler, without nvcc and ninja; seconds on most machines. What was built lies
in a folder of the user, under a name made of everything it depends on.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import VmmError
from .toolchain import compiler, cuda_headers

SOURCES = Path(__file__).resolve().parent / "cpp"
# Whose headers the sources were checked with.
OLDEST = (2, 11)


def cache_folder():
    """`VMM_CACHE`, or a folder in the user's cache."""
    named = os.environ.get("VMM_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "vmm_torch"


def pytorch():
    """PyTorch, which has to be there, and built for CUDA."""
    try:
        import torch
    except ImportError as error:
        raise VmmError(
            f"PyTorch cannot be imported: {error}; install it for this Python, {sys.executable}"
        ) from error
    if torch.version.cuda is None:
        raise VmmError(
            f"PyTorch {torch.__version__} is built without CUDA: install a build for CUDA"
        )
    return torch


def allocator():
    """The path of the compiled allocator; compiles it if need be. What was compiled before needs
    neither a compiler nor headers."""
    torch = pytorch()
    check_version(torch.__version__)
    folder = cache_folder() / f"torch-{torch.__version__}-{_key(torch)}"
    library = folder / "allocator.so"
    if _is_whole(library):
        return library
    cxx = compiler()
    if cxx is None:
        raise VmmError(
            "the full door needs a C++ compiler: install g++ (or set CXX), "
            'or use install(door="plain")'
        )
    arguments = _arguments(torch)
    try:
        os.makedirs(folder, exist_ok=True)
        # Of several processes that start at once one compiles, and the others wait.
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(library):
                _compile([*cxx, *arguments], library)
    except OSError as error:
        raise VmmError(
            f"the compiled allocator cannot be kept in {folder}: {error}; "
            "set VMM_CACHE to a folder that can be written"
        ) from error
    return library


def check_version(version):
    """Refuses versions of PyTorch whose interface is known to be another."""
    if numbers(version) < OLDEST:
        raise VmmError(
            f"PyTorch {version} is too old for the full door, which needs "
            f'{".".join(map(str, OLDEST))} or later: update it, or use install(door="plain")'
        )


def numbers(version):
    """The first two numbers of a version such as "2.11.0+cu130"."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _compile(command, library):
    # Renamed when it is complete, so that no one loads half a file.
    with tempfile.NamedTemporaryFile(dir=library.parent, suffix=".so", delete=False) as made:
        temporary = Path(made.name)
    try:
        _call([*command, "-o", str(temporary)], library.with_suffix(".log"))
        temporary.chmod(0o755)
        with open(temporary, "rb") as made:
            digest = hashlib.sha256(made.read()).hexdigest()
            os.fsync(made.fileno())
        os.replace(temporary, library)
    finally:
        temporary.unlink(missing_ok=True)
    _digest_of(library).write_text(f"{digest}  {library.name}\n")


def _call(command, log):
    """Calls the compiler; what it says of an error goes to the file `log`."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except OSError as error:
        raise VmmError(
            f"the C++ compiler {command[0]} cannot be run: {error}; set CXX to another, or use "
            'install(door="plain")'
        ) from error
    if done.returncode != 0:
        log.write_text(" ".join(command) + "\n" + done.stdout)
        raise VmmError(
            f"the allocator does not compile against this PyTorch ({log} says why): "
            'use a version that vmm_torch supports, or install(door="plain")'
        )


def _is_whole(library):
    """Whether a compiled allocator is there as it was written. A machine that stops or a full disk
    may leave less of it, which would end the program that loads it."""
    with contextlib.suppress(OSError, IndexError):
        digest = _digest_of(library).read_text().split()[0]
        return digest == hashlib.sha256(library.read_bytes()).hexdigest()
    return False


def _digest_of(library):
    """The file with the digest of a compiled allocator, as `sha256sum --check` reads it."""
    return library.with_suffix(".sha256")


def _arguments(torch):
    root = Path(torch.__file__).resolve().parent
    runtime = loaded("libcudart.so")
    if runtime is None:
        raise VmmError("this PyTorch loads no CUDA runtime: is it a build for CUDA?")
    libraries = [
        root / "lib" / f"lib{n}.so" for n in ("c10", "c10_cuda", "torch_cpu", "torch_cuda")
    ]
    # The C++ library that PyTorch uses comes first: one that the compiler would link statically
    # must not bring a second set of its parts.
    standard = loaded("libstdc++.so")
    if standard is not None:
        libraries.append(standard)
    return [
        *_flags(torch),
        f"-I{header_folder()}",
        *(f"-isystem{folder}" for folder in (root / "include", *cuda_headers(torch, runtime))),
        str(SOURCES / "allocator.cpp"),
        *map(str, [*libraries, runtime]),
        "-ldl",
        "-pthread",
    ]


def _flags(torch):
    """What the compiler is told on every machine."""
    # Later headers need the later language; that is what the versions between were checked with.
    language = "c++20" if numbers(torch.__version__) >= (2, 12) else "c++17"
    return [
        f"-std={language}",
        *"-O2 -fPIC -shared -fvisibility=hidden -fno-plt".split(),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]


def header_folder():
    """Where vmm.h lies: in this package, or in the source tree it is part of."""
    if os.path.exists(SOURCES / "vmm.h"):
        return SOURCES
    return SOURCES.parents[2] / "vmm-c" / "include"


def loaded(name):
    """The path of a library that this process has loaded, None if it has not."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and os.path.basename(path).startswith(name):
                return path
    return None


def _key(torch):
    """A name for what has to match when the library is loaded: PyTorch, the C++ ABI, the sources."""
    digest = hashlib.sha256()
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), header_folder() / "vmm.h"]):
        digest.update(source.read_bytes())
    version = torch.version
    for part in (torch.__version__, version.git_version, version.cuda, *_flags(torch)):
        digest.update(str(part).encode() + b"\0")
    return digest.hexdigest()[:16]
