"""The C++ allocator on libvmm's mock device: needs PyTorch, a C++ compiler and CUDA's headers, and
no GPU."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import support

from vmm_torch import VmmError, build, library

SOURCE = Path(__file__).resolve().parent / "cpp" / "on_mock.cpp"


class OnMock(unittest.TestCase):
    def test_the_allocator(self):
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
            program = str(Path(folder, "on_mock"))
            command = [build.compiler(), *kept[:1], f"-I{build.SOURCES}", str(SOURCE), *kept[1:]]
            command += ["-Wl,--allow-shlib-undefined", "-o", program]
            made = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
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
        self.assertIn("0 failed", done.stdout)


if __name__ == "__main__":
    unittest.main()
