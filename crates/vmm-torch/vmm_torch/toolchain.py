"""What the allocator is compiled with: a C++ compiler and CUDA's headers, wherever they lie."""

import importlib.metadata
import os
import shlex
import shutil
import sysconfig
from pathlib import Path

from .errors import VmmError

# NVIDIA's packages for CUDA 12 have each of them in a folder of its own.
HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")
# Where NVIDIA's installers put the toolkit.
TOOLKIT = Path("/usr/local/cuda")


def compiler():
    """The C++ compiler, as the first words of a command: `CXX`, which may have several ("ccache
    g++"), or the first of the usual ones; None if there is none. Raises VmmError if `CXX` names
    none."""
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named)
    except ValueError:
        words = [named]
    if words:
        found = shutil.which(words[0])
        if found is None:
            raise VmmError(
                f"CXX is {named!r}, and there is no command {words[0]}: set it to a C++ compiler "
                "that is installed, or unset it"
            )
        return [found, *words[1:]]
    for name in ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    return None


def cuda_headers(torch, runtime):
    """The folders of CUDA's headers, one or two: the toolkit's, or those of NVIDIA's packages.
    `runtime` is the path of the CUDA runtime that PyTorch has loaded."""
    own = Path(runtime).resolve().parent.parent / "include"
    places = [
        [Path(os.environ[name]) / "include"]
        for name in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(name)
    ]
    places.append([own, own.parent.parent / "cuda_nvcc" / "include"])
    for site in (Path(torch.__file__).resolve().parent.parent, sysconfig.get_paths()["purelib"]):
        nvidia = Path(site) / "nvidia"
        places += [[folder] for folder in sorted(nvidia.glob("cu[0-9]*/include"))]
        places.append([nvidia / name / "include" for name in ("cuda_runtime", "cuda_nvcc")])
    nvcc = shutil.which("nvcc")
    if nvcc:
        places.append([Path(nvcc).resolve().parent.parent / "include"])
    places.append([TOOLKIT / "include"])
    # Headers of one version where there are, else of any.
    places.append([folder for place in places for folder in place])
    for folders in places:
        found = [_first_with(header, folders) for header in HEADERS]
        if None not in found:
            return list(dict.fromkeys(found))
    raise VmmError(
        f"the full door needs CUDA's headers once: run `pip install "
        f'"{_package(torch.version.cuda)}"`, or install a CUDA toolkit (and set CUDA_HOME, if it '
        f"lies elsewhere than {TOOLKIT}), or use install(door='plain')"
    )


def _first_with(header, folders):
    # Unlike `Path.exists` this does not raise where a folder may not be searched.
    return next((folder for folder in folders if os.path.exists(folder / header)), None)


def _package(cuda):
    """The package of the header that PyTorch's own packages lack, for pip; `cuda` is PyTorch's
    version of CUDA, such as "13.0"."""
    if int(cuda.split(".")[0]) < 13:
        return f"nvidia-cuda-nvcc-cu12=={cuda}.*"
    try:
        # The version that PyTorch wants, so that pip leaves its packages as they are.
        return f"cuda-toolkit[crt]=={importlib.metadata.version('cuda-toolkit')}"
    except importlib.metadata.PackageNotFoundError:
        return f"cuda-toolkit[crt]=={cuda}.*"
