"""Builds the wheel: `pip install crates/vmm-torch`, or `python build_backend.py FOLDER`.

Needs cargo and a C++ compiler, and nothing of Python but its standard library. `VMM_LIBRARY` names
a libvmm.so that is built already.
"""

import base64
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vmm_torch import VmmError, toolchain

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAME = "vmm_torch"
# The GLIBCXX version that comes with the glibc of each manylinux tag, as auditwheel's policies say.
GLIBCXX_OF = {17: 19, 24: 22, 27: 24, 28: 25, 31: 28, 34: 29, 35: 30, 39: 33}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls. Returns the name of the wheel in `wheel_directory`."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise SystemExit("vmm_torch is for Linux on x86-64")
    with tempfile.TemporaryDirectory() as folder:
        files = _package_files(Path(folder))
        tag = f"py3-none-manylinux_2_{_glibc(files)}_x86_64"
        info = f"{NAME}-{_version()}.dist-info"
        files[f"{info}/METADATA"] = _metadata().encode()
        files[f"{info}/WHEEL"] = (
            f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
        )
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            files[f"{info}/licenses/{licence}"] = (ROOT / licence).read_bytes()
        files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
        wheel = f"{NAME}-{_version()}-{tag}.whl"
        with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("there is no source distribution: build the wheel in a checkout of vmm")


def _package_files(folder):
    files = {}
    package = HERE / NAME
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".h", ".cpp") and path.name != "plain.cpp":
            files[f"{NAME}/{path.relative_to(package)}"] = path.read_bytes()
    header = ROOT / "crates/vmm-c/include"
    files[f"{NAME}/cpp/vmm.h"] = (header / "vmm.h").read_bytes()
    files[f"{NAME}/libvmm.so"] = _libvmm().read_bytes()
    plain = folder / "libvmm_plain.so"
    command = [*_compiler(), *"-std=c++17 -O2 -fPIC -shared -fvisibility=hidden -s".split()]
    command += [f"-I{header}", str(package / "cpp/plain.cpp"), "-o", str(plain), "-ldl", "-pthread"]
    subprocess.run(command, check=True)
    files[f"{NAME}/libvmm_plain.so"] = plain.read_bytes()
    return files


def _compiler():
    try:
        found = toolchain.compiler()
    except VmmError as error:
        raise SystemExit(f"the wheel needs a C++ compiler: {error}") from None
    if found is None:
        raise SystemExit("the wheel needs a C++ compiler: install g++, or set CXX")
    return found


def _libvmm():
    if "VMM_LIBRARY" in os.environ:
        return Path(os.environ["VMM_LIBRARY"])
    command = "cargo build --release -p vmm-c --lib --message-format json-render-diagnostics"
    # What only a debugger needs would make it ten times as long.
    slim = {"CARGO_PROFILE_RELEASE_DEBUG": "0", "CARGO_PROFILE_RELEASE_STRIP": "debuginfo"}
    messages = subprocess.run(
        command.split(), cwd=ROOT, env={**os.environ, **slim}, check=True, stdout=subprocess.PIPE
    ).stdout
    for line in messages.splitlines():
        for name in json.loads(line).get("filenames", ()):
            if name.endswith("/libvmm.so"):
                return Path(name)
    raise SystemExit("cargo built no libvmm.so")


def _glibc(files):
    """The second number of the glibc that the libraries need."""
    needed = 17
    for name, content in files.items():
        if name.endswith(".so"):
            for minor in re.findall(rb"GLIBC_2\.(\d+)\0", content):
                needed = max(needed, int(minor))
            for minor in re.findall(rb"GLIBCXX_3\.4\.(\d+)\0", content):
                fitting = [tag for tag, most in GLIBCXX_OF.items() if most >= int(minor)]
                if not fitting:
                    raise SystemExit(f"no manylinux tag has GLIBCXX_3.4.{minor.decode()}")
                needed = max(needed, min(fitting))
    return needed


def _project(key):
    text = (HERE / "pyproject.toml").read_text()
    return re.search(rf'^{key} = "(.*)"$', text, re.MULTILINE).group(1)


def _version():
    return _project("version")


def _metadata():
    requires = re.search(r"^dependencies = (\[.*\])$", (HERE / "pyproject.toml").read_text(), re.M)
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {_version()}",
        f"Summary: {_project('description')}",
        f"License-Expression: {_project('license')}",
        "License-File: LICENSE-MIT",
        "License-File: LICENSE-APACHE",
        f"Requires-Python: {_project('requires-python')}",
        *(f"Requires-Dist: {name}" for name in json.loads(requires.group(1))),
        "Description-Content-Type: text/markdown",
        "",
        (HERE / "README.md").read_text(),
    ]
    return "\n".join(lines)


def _record(files, own):
    def line(name, content):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(content)}\n"

    return "".join(line(name, content) for name, content in files.items()) + f"{own},,\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: build_backend.py FOLDER")
    os.makedirs(sys.argv[1], exist_ok=True)
    print(Path(sys.argv[1]) / build_wheel(sys.argv[1]))
