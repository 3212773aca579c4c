"""The wheel: what is in it, and that it is what it says. Needs a C++ compiler."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import support


def build(folder, library, **environ):
    """Builds the wheel in a folder; what came of it."""
    return subprocess.run(
        [sys.executable, support.PACKAGE / "build_backend.py", folder],
        env={**os.environ, "VMM_LIBRARY": str(library), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        builder = support.PACKAGE / "build_backend.py"
        if not builder.exists():
            raise unittest.SkipTest("the builder of the wheel is not here")
        if shutil.which("g++") is None:
            raise unittest.SkipTest("there is no g++ here")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # The library's content does not matter here, so the test need not wait for cargo.
        library = Path(folder.name, "libvmm.so")
        source = 'extern "C" int vmm_version() { return 1; }'
        subprocess.run(
            ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library],
            input=source.encode(),
            check=True,
        )
        done = build(folder.name, library)
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        cls.library = library
        (cls.path,) = Path(folder.name).glob("*.whl")
        with zipfile.ZipFile(cls.path) as archive:
            cls.files = {name: archive.read(name) for name in archive.namelist()}

    def test_any_compiler_builds_it(self):
        with tempfile.TemporaryDirectory() as folder:
            compiler = os.environ.get("CXX") or "g++"
            done = build(folder, self.library, CXX=f"env VMM_TRIED=1 {compiler}")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual([path.name for path in Path(folder).iterdir()], [self.path.name])
        with tempfile.TemporaryDirectory() as folder:
            done = build(folder, self.library, CXX="g++-none")
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)
            self.assertIn("CXX is 'g++-none', and there is no command g++-none", done.stdout)
            self.assertEqual(list(Path(folder).iterdir()), [])

    def test_the_name_says_what_it_runs_on(self):
        self.assertRegex(self.path.name, r"^vmm_torch-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        tag = self.path.stem.split("-", 2)[2]
        wheel = next(text for name, text in self.files.items() if name.endswith("/WHEEL"))
        self.assertIn(f"Tag: {tag}\n", wheel.decode())

    def test_the_libraries_need_no_later_glibc_than_the_tag_says(self):
        said = int(re.search(r"manylinux_2_(\d+)", self.path.name).group(1))
        for name in ("vmm_torch/libvmm.so", "vmm_torch/libvmm_plain.so"):
            needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\0", self.files[name])]
            self.assertLessEqual(max(needed, default=0), said)

    def test_every_file_is_recorded_with_its_digest(self):
        record = next(text for name, text in self.files.items() if name.endswith("/RECORD"))
        lines = dict(line.split(",", 1) for line in record.decode().splitlines())
        self.assertEqual(set(lines), set(self.files))
        for name, content in self.files.items():
            if not name.endswith("/RECORD"):
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                self.assertEqual(lines[name], f"sha256={digest.decode()},{len(content)}")

    def test_it_has_what_it_needs(self):
        for source in (support.PACKAGE / "vmm_torch").glob("*.py"):
            self.assertIn(f"vmm_torch/{source.name}", self.files)
        for name in ("__init__.py", "__main__.py", "libvmm.so", "libvmm_plain.so"):
            self.assertIn(f"vmm_torch/{name}", self.files)
        for source in (support.PACKAGE / "vmm_torch" / "cpp").glob("*.h"):
            self.assertIn(f"vmm_torch/cpp/{source.name}", self.files)
        self.assertIn("vmm_torch/cpp/vmm.h", self.files)
        metadata = next(text for name, text in self.files.items() if name.endswith("/METADATA"))
        self.assertIn(b"\nRequires-Python: >=3.10\n", metadata)


if __name__ == "__main__":
    unittest.main()
