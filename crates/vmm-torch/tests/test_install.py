"""What `install` does and says, without PyTorch and without a GPU: a module of its name stands in for
PyTorch."""

import os
import tempfile
import textwrap
import unittest
from pathlib import Path

import support

# As much of PyTorch as `install` looks at.
FAKE_TORCH = """
    __version__ = "{version}"
    class version:
        cuda, git_version = {cuda}, "0"
    class cuda:
        is_initialized = staticmethod(lambda: {initialised})
        device_count = staticmethod(lambda: {devices})
    class _C:
        pass
    compiled_with_cxx11_abi = lambda: True
"""

# A door and a library that do nothing.
NOTHING = """
import sys
import vmm_torch
from vmm_torch import installing
class Door:
    name = "test"
    install = end = lambda *_: None
    pool = lambda self, device: device + 1
class Library:
    path = "libvmm.so"
    version = lambda self: "0"
    stats = lambda self, pool: dict.fromkeys(FIGURES, 0) | {"peak_requested_bytes": PEAK}
FIGURES = (
    "peak_reserved_bytes requested_bytes reserved_bytes allocations failures misses miss_ns "
    "frames_made frames_moved frames_released unmaps"
).split()
PEAK = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0
installing.Library = Library
"""
NO_DOOR = NOTHING + "installing._door = lambda wanted: Door()\n"


class WithFakeTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_python(self, code, *arguments, **environment):
        """Runs a program that finds the package and the stand-in; `(exit status, output)`."""
        torch = {"version": "2.11.0", "cuda": "'13.0'", "initialised": False, "devices": 1}
        torch.update({name: environment.pop(name) for name in torch if name in environment})
        Path(self.folder, "torch.py").write_text(textwrap.dedent(FAKE_TORCH.format(**torch)))
        package = Path(support.vmm_torch.__file__).parent.parent
        environment["PYTHONPATH"] = os.pathsep.join([str(self.folder), str(package)])
        environment.setdefault("VMM_CACHE", str(self.folder / "cache"))
        return support.python(code, *arguments, **environment)


class Refusals(WithFakeTorch):
    """`install` says in one sentence why it cannot be."""

    def test_each(self):
        for arguments, part in (
            ({"cuda": None}, "built without CUDA"),
            ({"initialised": True}, "CUDA is in use already: call vmm_torch.install() before"),
            ({"devices": 0}, "there is no GPU"),
            ({"VMM_LIBRARY": "/nowhere/libvmm.so"}, "/nowhere/libvmm.so is missing"),
            ({"VMM_LIMIT": "lots"}, "VMM_LIMIT is 'lots'"),
        ):
            status, output = self.run_python("import vmm_torch; vmm_torch.install()", **arguments)
            self.assertEqual(status, 1, output)
            self.assertIn(part, output.splitlines()[-1])

    def test_twice(self):
        code = NO_DOOR + "vmm_torch.install()\nvmm_torch.install()"
        status, output = self.run_python(code)
        self.assertEqual(status, 1, output)
        self.assertIn("installed already: call install() once", output)

    def test_what_needs_an_installation_says_so(self):
        for call in ("stats()", "trim()", "set_limit('1GiB')", "snapshot('x.pickle')"):
            status, output = self.run_python(f"import vmm_torch; vmm_torch.{call}")
            self.assertEqual(status, 1)
            self.assertIn("vmm_torch is not installed: call vmm_torch.install()", output)

    def test_what_is_not_there_yet_says_so(self):
        for call, part in (
            ("sleep()", "to sleep yet"),
            ("sleep(1, level=1)", "to sleep yet"),
            ("share_memory(x=1)", "other processes yet"),
        ):
            status, output = self.run_python(f"import vmm_torch; vmm_torch.{call}")
            self.assertEqual(status, 1)
            self.assertIn(part, output)

    def test_building_without_pytorch(self):
        code = "import sys; sys.modules['torch'] = None\n"
        code += "from vmm_torch.__main__ import main; sys.exit(main())"
        status, output = self.run_python(code, "--build")
        self.assertEqual(status, 2, output)
        self.assertIn("vmm_torch: PyTorch cannot be imported", output)
        self.assertEqual(len(output.splitlines()), 1, output)


class Doors(WithFakeTorch):
    """Which door is taken, where the plain one does nothing."""

    def install(self, door="auto", before="", **environment):
        code = NOTHING + f"installing.Plain = Door\n{before}\nvmm_torch.install(door={door!r})\n"
        code += "print('through', vmm_torch.installing.installed().door.name)"
        return self.run_python(code, **environment)

    def test_without_a_compiler_the_plain_one_with_one_warning(self):
        status, output = self.install(PATH="/nowhere", CXX="")
        self.assertEqual(status, 0, output)
        self.assertIn("through test", output)
        self.assertEqual(output.count("UserWarning"), 1, output)
        self.assertIn("without memory statistics", output)
        self.assertIn("the full door needs a C++ compiler", output)
        # The line that is at fault is the one that calls install().
        self.assertRegex(output, r"<string>:\d+: UserWarning")

    def test_with_a_pytorch_that_is_too_old(self):
        status, output = self.install(version="2.10.1+cu128")
        self.assertEqual(status, 0, output)
        self.assertIn("through test", output)
        self.assertIn("PyTorch 2.10.1+cu128 is too old for the full door", output)
        status, output = self.install("full", version="2.10.1+cu128")
        self.assertEqual(status, 1, output)
        self.assertIn("is too old for the full door, which needs 2.11", output.splitlines()[-1])

    def test_the_full_one_says_why_it_cannot_be_had(self):
        status, output = self.install("full", PATH="/nowhere", CXX="")
        self.assertEqual(status, 1, output)
        self.assertIn("needs a C++ compiler: install g++", output.splitlines()[-1])

    def test_where_neither_can_be_had_the_full_ones_reason_is_told(self):
        code = NOTHING + textwrap.dedent("""
            def none():
                raise vmm_torch.VmmError("there is no plain door")
            installing.Plain = none
            vmm_torch.install()
        """)
        status, output = self.run_python(code, PATH="/nowhere", CXX="")
        self.assertEqual(status, 1, output)
        self.assertIn("needs a C++ compiler: install g++", output.splitlines()[-1])

    def test_what_was_compiled_needs_no_compiler(self):
        code = NOTHING + textwrap.dedent("""
            import os, torch
            from vmm_torch import build
            tried = []
            build._arguments = lambda torch: []
            build._call = lambda command, log: open(command[-1], "w").write(command[0])
            build.compiler = lambda: ["a compiler"]
            first = build.allocator()
            assert first.read_text() == "a compiler"
            build.compiler = build._arguments = None
            assert build.allocator() == first
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


class Ends(WithFakeTorch):
    def test_a_forked_process_ends_without_the_allocator(self):
        code = NOTHING + textwrap.dedent("""
            import os
            class Door(Door):
                end = lambda self: os.write(1, b"ended\\n")
            installing._door = lambda wanted: Door()
            vmm_torch.install(log="info")
            if os.fork() == 0:
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        """)
        status, output = self.run_python(code)
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("ended"), 1, output)
        self.assertEqual(output.count("device 0: peak reserved 0"), 1, output)


class Spawned(WithFakeTorch):
    """What `python -m vmm_torch` does for the processes that its program starts."""

    PROGRAM = """
        import multiprocessing, sys
        def work(n):
            installed = sys.modules["vmm_torch.installing"]._installed
            print(n, installed and installed.options.limit, sys.argv[1:], flush=True)
            if n:
                start(n - 1)
        def start(n):
            other = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(n,))
            other.start()
            other.join()
            assert other.exitcode == 0
        if __name__ == "__main__":
            start(1)
    """

    def run_program(self, method, *options):
        program = self.folder / "program.py"
        program.write_text(textwrap.dedent(self.PROGRAM))
        # The door that does nothing has to be there in each process.
        (self.folder / "sitecustomize.py").write_text(NO_DOOR)
        code = """
            import os, sys
            os.execv(sys.executable, [sys.executable, "-m", "vmm_torch", *sys.argv[1:]])
        """
        return self.run_python(code, "--limit", "1GiB", *options, str(program), method)

    def test_they_install_too(self):
        for method in ("spawn", "forkserver"):
            status, output = self.run_program(method)
            self.assertEqual(status, 0, output)
            expected = [f"{n} {1 << 30} ['{method}']" for n in (1, 0)]
            self.assertEqual(output.splitlines(), expected)

    def test_they_end_with_the_allocator(self):
        for method in ("spawn", "forkserver"):
            status, output = self.run_program(method, "--log", "info")
            self.assertEqual(status, 0, output)
            # This process, what it started, and what that started: each once.
            self.assertEqual(output.count("device 0: peak reserved 0"), 3, output)

    def test_one_that_cannot_runs_and_says_so_if_asked(self):
        code = NO_DOOR + textwrap.dedent("""
            import pickle, torch
            from multiprocessing import spawn
            from vmm_torch import spawned
            torch.cuda.device_count = lambda: 0
            spawned.reach({"log": sys.argv[1]})
            sent = spawn.get_preparation_data("Worker-1")["vmm_torch"]
            pickle.loads(pickle.dumps(sent))
            print("runs", vmm_torch.installing._installed)
        """)
        for log, says in (("off", False), ("info", True)):
            status, output = self.run_python(code, log)
            self.assertEqual(status, 0, output)
            told = "vmm_torch is not in the process Worker-1: there is no GPU" in output
            self.assertEqual(told, says, output)
            self.assertIn("runs None", output)

    def test_they_take_the_plain_door_where_the_full_one_was_not_to_be_had(self):
        code = NO_DOOR + textwrap.dedent("""
            from multiprocessing import spawn
            from vmm_torch import spawned
            vmm_torch.install()
            vmm_torch.installing._installed.door.name = sys.argv[1]
            spawned.reach({"limit": "1GiB"})
            print(spawn.get_preparation_data("x")["vmm_torch"]._given[0].get("door"))
        """)
        for name, door in (("plain", "plain"), ("full", "None")):
            status, output = self.run_python(code, name)
            self.assertEqual((status, output.strip()), (0, door))


class Nccl(WithFakeTorch):
    def test_it_registers_no_general_memory(self):
        name = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
        code = NO_DOOR + f"\nimport os\nvmm_torch.install()\nprint(os.environ.get({name!r}))"
        for value, left in (("1", "0"), ("True", "0"), ("0", "0")):
            status, output = self.run_python(code, **{name: value})
            self.assertEqual((status, output.splitlines()[-1]), (0, left))
            self.assertEqual("vmm_torch sets " + name in output, value != "0", output)


if __name__ == "__main__":
    unittest.main()
