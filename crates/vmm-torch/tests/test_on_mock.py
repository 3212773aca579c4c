"""Both doors on libvmm's mock device, without a GPU: the C++ class needs PyTorch, a C++ compiler
and CUDA's headers, the plain functions a C++ compiler."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import support

from vmm_torch import VmmError, build, library

FOLDER = Path(__file__).resolve().parent / "cpp"


class OnMock(unittest.TestCase):
    def test_the_allocator(self):
        self.check_full("on_mock")

    def test_pools_of_the_users(self):
        self.check_full("pools_on_mock")

    def test_routes(self):
        self.check_full("routes_on_mock")

    def test_memory_of_the_users(self):
        self.check_full("users_on_mock")

    def check_full(self, name):
        torch = support.torch_or_skip()
        try:
            libvmm = library.path()
            arguments = build._arguments(torch)
        except VmmError as error:
            self.skipTest(str(error))
        if build.compiler() is None:
            self.skipTest("there is no C++ compiler here")
        own = str(build.SOURCES / "allocator.cpp")
        kept = [a for a in arguments if a not in (own, "-shared", "-fvisibility=hidden")]
        folders = {str(Path(a).parent) for a in kept if ".so" in a}
        site = Path(torch.__file__).parent.parent / "nvidia"
        folders |= {str(folder) for folder in site.glob("*/lib")}
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(folder, name))
            own = [f"-I{build.SOURCES}", str(FOLDER / f"{name}.cpp")]
            command = [*build.compiler(), *kept[:1], *own, *kept[1:]]
            command += ["-Wl,--allow-shlib-undefined", "-o", program]
            self.compile_and_run(command, program, libvmm, folders)

    def test_the_plain_functions(self):
        sources = support.PACKAGE / "vmm_torch" / "cpp"
        if not (sources / "plain.cpp").exists():
            self.skipTest("the source of the plain functions is not here")
        try:
            libvmm = library.path()
        except VmmError as error:
            self.skipTest(str(error))
        if build.compiler() is None:
            self.skipTest("there is no C++ compiler here")
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(folder, "plain_on_mock"))
            # The program's own functions serve as the CUDA runtime, so others must find them.
            command = [*build.compiler(), *"-std=c++17 -O1 -g -rdynamic".split()]
            command += [f"-I{build.header_folder()}", f"-I{sources}"]
            command += [str(FOLDER / "plain_on_mock.cpp"), "-o", program, "-ldl", "-pthread"]
            self.compile_and_run(command, program, libvmm, ())

    def compile_and_run(self, command, program, libvmm, folders):
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(made.returncode, 0, made.stdout)
        done = subprocess.run(
            [program, str(libvmm)],
            env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(sorted(folders))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("\n0 failed", "\n" + done.stdout)


if __name__ == "__main__":
    unittest.main()
