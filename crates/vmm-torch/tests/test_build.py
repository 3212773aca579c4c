"""What the allocator is compiled with, and that what was compiled is kept: needs neither PyTorch
nor a GPU."""

import hashlib
import os
import tempfile
import textwrap
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

from test_install import NOTHING, WithFakeTorch

from vmm_torch import VmmError, toolchain

RUNTIME, CRT = toolchain.HEADERS


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def make(self, *parts, mode=0o644, text=""):
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


class Headers(InFolder):
    """Folders as NVIDIA's packages and toolkits have them, without what this machine has."""

    def setUp(self):
        super().setUp()
        self.site = self.folder / "site"
        for patch in (
            unittest.mock.patch.object(toolchain, "TOOLKIT", self.folder / "usual"),
            unittest.mock.patch.object(
                toolchain.sysconfig, "get_paths", lambda: {"purelib": str(self.folder / "other")}
            ),
            unittest.mock.patch.dict(os.environ, {"PATH": str(self.folder)}, clear=True),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def find(self, cuda, runtime):
        init = self.make("site", "torch", "__init__.py")
        torch = SimpleNamespace(__file__=str(init), version=SimpleNamespace(cuda=cuda))
        found = toolchain.cuda_headers(torch, self.make(*runtime.split("/")))
        return [str(folder.relative_to(self.folder)) for folder in found]

    def find_13(self):
        self.make("site/nvidia/cu13/include", RUNTIME)
        return self.find("13.0", "site/nvidia/cu13/lib/libcudart.so.13")

    def find_12(self):
        self.make("site/nvidia/cuda_runtime/include", RUNTIME)
        return self.find("12.8", "site/nvidia/cuda_runtime/lib/libcudart.so.12")

    def test_packages_for_cuda_13_have_one_folder(self):
        self.make("site/nvidia/cu13/include", CRT)
        self.assertEqual(self.find_13(), ["site/nvidia/cu13/include"])

    def test_packages_for_cuda_12_have_two(self):
        self.make("site/nvidia/cuda_nvcc/include", CRT)
        # Those of another version do not come before.
        for header in (RUNTIME, CRT):
            self.make("site/nvidia/cu13/include", header)
        expected = [f"site/nvidia/{name}/include" for name in ("cuda_runtime", "cuda_nvcc")]
        self.assertEqual(self.find_12(), expected)

    def test_a_toolkit(self):
        for folder in ("home", "usual"):
            self.make(folder, "include", RUNTIME)
            self.make(folder, "include", CRT)
        self.assertEqual(self.find_12(), ["usual/include"])
        self.make("toolkit/include", RUNTIME)
        self.make("toolkit/include", CRT)
        self.make("toolkit/bin/nvcc", mode=0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": str(self.folder / "toolkit/bin")}):
            self.assertEqual(self.find_12(), ["toolkit/include"])
        with unittest.mock.patch.dict(os.environ, {"CUDA_HOME": str(self.folder / "home")}):
            self.assertEqual(self.find_12(), ["home/include"])

    def test_where_one_place_has_not_both_two_may(self):
        self.make("other/nvidia/cuda_nvcc/include", CRT)
        expected = ["site/nvidia/cuda_runtime/include", "other/nvidia/cuda_nvcc/include"]
        self.assertEqual(self.find_12(), expected)

    def test_what_is_missing_is_named_as_pip_takes_it(self):
        no_package = toolchain.importlib.metadata.PackageNotFoundError
        for find, version, package in (
            (self.find_12, "13.0.2", "nvidia-cuda-nvcc-cu12==12.8.*"),
            (self.find_13, "13.0.2", "cuda-toolkit[crt]==13.0.2"),
            (self.find_13, no_package, "cuda-toolkit[crt]==13.0.*"),
        ):
            with (
                unittest.mock.patch.object(
                    toolchain.importlib.metadata, "version", side_effect=[version]
                ),
                self.assertRaises(VmmError) as caught,
            ):
                find()
            self.assertIn(f'pip install "{package}"', str(caught.exception))


class Compiler(InFolder):
    def find(self, **environ):
        with unittest.mock.patch.dict(
            os.environ, {"PATH": str(self.folder), **environ}, clear=True
        ):
            return toolchain.compiler()

    def test_one_of_the_usual(self):
        self.assertIsNone(self.find())
        for name in ("clang++", "g++"):
            path = str(self.make(name, mode=0o755))
            self.assertEqual(self.find(), [path])
        self.assertEqual(self.find(CXX=""), [path])

    def test_a_command_of_several_words(self):
        path = str(self.make("ccache", mode=0o755))
        self.assertEqual(self.find(CXX="ccache 'g++' -m64"), [path, "g++", "-m64"])

    def test_a_command_that_is_not_there(self):
        self.make("g++", mode=0o755)
        for named, word in (("g++-99", "g++-99"), ("no -x", "no"), ("'g++", "'g++")):
            with self.assertRaisesRegex(
                VmmError, f"there is no command {word}: ".replace("+", r"\+")
            ):
                self.find(CXX=named)


MADE = NOTHING + textwrap.dedent("""
    import os
    from vmm_torch import build
    calls = []
    def call(command, log):
        calls.append(command)
        with open(command[-1], "wb") as file:
            file.write(bytes(range(256)) * 100)
    build._call = call
    build._arguments = lambda torch: []
    build.compiler = lambda: ["a compiler"]
    made = build.allocator()
""")


class Kept(WithFakeTorch):
    def test_what_was_compiled_needs_no_compiler(self):
        code = MADE + textwrap.dedent("""
            import torch
            build.compiler = build._arguments = None
            assert build.allocator() == made
            torch.__version__ = "2.12.0"
            try:
                build.compiler = lambda: None
                build.allocator()
            except vmm_torch.VmmError as error:
                print(error)
        """)
        status, output = self.run_python(code)
        self.assertEqual(status, 0, output)
        self.assertIn("needs a C++ compiler", output)
        (kept,) = self.folder.glob("cache/*/allocator.so")
        digest = hashlib.sha256(kept.read_bytes()).hexdigest()
        self.assertEqual(kept.with_suffix(".sha256").read_text(), f"{digest}  allocator.so\n")

    def test_one_that_is_damaged_is_made_anew(self):
        code = MADE + textwrap.dedent("""
            whole = made.read_bytes()
            def check(why):
                calls.clear()
                assert build.allocator() == made and len(calls) == 1, why
                assert made.read_bytes() == whole, why
                assert build.allocator() == made and len(calls) == 1, why
            for length in (0, 100, 4096, len(whole) // 2, len(whole) - 1):
                os.truncate(made, length)
                check(length)
            made.write_bytes(b"x" + whole[1:])
            check("another byte")
            made.unlink()
            check("no library")
            made.with_suffix(".sha256").unlink()
            check("no digest")
            made.with_suffix(".sha256").write_text("")
            check("an empty digest")
        """)
        status, output = self.run_python(code)
        self.assertEqual(status, 0, output)
        self.assertEqual(list(self.folder.glob("cache/*/tmp*")), [])

    def test_it_is_on_disk_before_it_has_its_name(self):
        code = MADE + textwrap.dedent("""
            done, sync, replace = [], os.fsync, os.replace
            os.fsync = lambda file: done.append("synced") or sync(file)
            os.replace = lambda *names: done.append("named") or replace(*names)
            made.unlink()
            build.allocator()
            assert done == ["synced", "named"], done
        """)
        status, output = self.run_python(code)
        self.assertEqual(status, 0, output)


class Failures(WithFakeTorch):
    def test_what_does_not_compile_says_where_the_reasons_are(self):
        code = NOTHING + textwrap.dedent("""
            from vmm_torch import build
            build._arguments = lambda torch: ["-x", "c++", "-"]
            build.compiler = lambda: [sys.executable]
            build.allocator()
        """)
        status, output = self.run_python(code)
        self.assertEqual(status, 1, output)
        self.assertRegex(output.splitlines()[-1], "does not compile against this PyTorch")
        (log,) = self.folder.glob("cache/*/allocator.log")
        self.assertIn("-x c++ -", log.read_text())
        self.assertEqual(list(self.folder.glob("cache/*/*.so")), [])

    def test_a_compiler_that_cannot_be_run_is_no_fault_of_the_folder(self):
        compiler = self.folder / "cxx"
        compiler.write_bytes(b"\x7fELF no program")
        compiler.chmod(0o755)
        code = "from vmm_torch import build\nbuild._arguments = lambda torch: []\nbuild.allocator()"
        status, output = self.run_python(code, CXX=str(compiler))
        self.assertEqual(status, 1, output)
        said = output.splitlines()[-1]
        self.assertIn(f"the C++ compiler {compiler} cannot be run", said)
        self.assertIn("set CXX to another", said)
        self.assertNotIn("VMM_CACHE", said)
        self.assertEqual(list(self.folder.glob("cache/*/*.so")), [])


# A folder of another user, which may not even be searched; the superuser may search all, so it is made
# of the calls that would tell.
LOCKED = NOTHING + textwrap.dedent("""
    import os, pathlib
    from vmm_torch import build
    folder = str(build.cache_folder())
    def locked(call):
        def refusing(path, *given, **more):
            if str(path).startswith(folder):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *given, **more)
        return refusing
    os.stat, os.mkdir, pathlib.Path.read_text = map(locked, (os.stat, os.mkdir, pathlib.Path.read_text))
    build._arguments = lambda torch: []
    build.compiler = lambda: ["a compiler"]
    installing.Plain = Door
""")


class OfAnotherUser(WithFakeTorch):
    def check_said(self, output):
        self.assertNotIn("Traceback", output)
        self.assertIn("the compiled allocator cannot be kept in", output)
        self.assertIn("set VMM_CACHE to a folder that can be written", output)

    def test_the_plain_door_is_taken(self):
        code = LOCKED + "vmm_torch.install(target='last')\nprint('installed')"
        status, output = self.run_python(code)
        self.assertEqual(status, 0, output)
        self.check_said(output)
        self.assertIn("installed", output)
        self.assertEqual(output.count('the target "last"'), 1, output)

    def test_the_command_says_why(self):
        code = LOCKED + "from vmm_torch.__main__ import main\nsys.exit(main())"
        status, output = self.run_python(code, "--build")
        self.assertEqual(status, 2, output)
        self.check_said(output)
        program = self.folder / "program.py"
        program.write_text("print('runs')")
        status, output = self.run_python(code, str(program))
        self.assertEqual(status, 0, output)
        self.check_said(output)
        self.assertIn("runs", output)

    def test_a_library_there_is_missing(self):
        code = LOCKED + "import vmm_torch.library; print(vmm_torch.library.path())"
        library = self.folder / "cache" / "libvmm.so"
        status, output = self.run_python(code, VMM_LIBRARY=str(library))
        self.assertEqual(status, 1, output)
        self.assertIn(f"{library} is missing", output.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
