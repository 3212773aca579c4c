"""What `install` does and says, without PyTorch and without a GPU: a module of its name stands in for
PyTorch."""

import ast
import os
import tempfile
import textwrap
import unittest
from pathlib import Path

import support

from vmm_torch import build, installing

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
    class device:
        def __init__(self, text):
            if not isinstance(text, str):
                raise TypeError("device() received an invalid combination of arguments")
            self.type, _, index = text.partition(":")
            self.index = int(index) if index else None
            if self.type not in ("cpu", "cuda"):
                raise RuntimeError("Expected one of cpu, cuda")
    compiled_with_cxx11_abi = lambda: True
"""

# A door and a library that do nothing.
NOTHING = """
import sys
import vmm_torch
from vmm_torch import installing
class Door:
    name = "test"
    install = end = set_limit = limit = lambda *_: None
    used = True
    pool = lambda self, device: 1 if self.used and device == 0 else None
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


# A library without the functions of libvmm.
OTHER_LIBRARY = build.loaded("libc.so.6")


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
            ({"devices": 0}, "see what `nvidia-smi` and CUDA_VISIBLE_DEVICES show"),
            ({"VMM_LIBRARY": "/nowhere/libvmm.so"}, "/nowhere/libvmm.so is missing"),
            ({"VMM_LIBRARY": OTHER_LIBRARY}, "install both from one wheel"),
            ({"VMM_LIBRARY": __file__}, "libvmm cannot be loaded"),
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
        self.assertIn("install it for this Python, ", output)
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

    FORKS = NOTHING + textwrap.dedent("""
        import os
        Door.used = sys.argv[1] == "before"
        installing._door = lambda wanted: Door()
        vmm_torch.install(target="last", log="info")
        def work():
            Door.used = sys.argv[1] != "before"
            for call in (vmm_torch.stats, vmm_torch.trim, lambda: vmm_torch.stats(0),
                         lambda: vmm_torch.snapshot("x.pickle"),
                         lambda: vmm_torch.set_limit(0)):
                try:
                    call()
                except vmm_torch.VmmError as error:
                    print(error, flush=True)
        Library.trim = lambda *_: 0
        Library.write_snapshot = lambda *_: None
    """)
    BY_FORK = FORKS + textwrap.dedent("""
        if os.fork() == 0:
            work()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    """)
    BY_MULTIPROCESSING = FORKS + textwrap.dedent("""
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
    """)

    def test_a_process_forked_before_cuda_was_used_ends_as_any_other(self):
        for code in (self.BY_FORK, self.BY_MULTIPROCESSING):
            status, output = self.run_python(code, "after", str(100 << 20))
            self.assertEqual(status, 0, output)
            self.assertEqual(output.count("device 0: peak reserved 0"), 1, output)
            self.assertNotIn("forked", output)
            (kept,) = self.folder.glob("cache/last/*.json")
            self.assertIn(str(100 << 20), kept.read_text())
            kept.unlink()

    def test_one_forked_from_a_process_that_had_used_cuda_is_told_so(self):
        for code in (self.BY_FORK, self.BY_MULTIPROCESSING):
            status, output = self.run_python(code, "before", "0")
            self.assertEqual(status, 0, output)
            self.assertEqual(output.count(installing.FORKED), 5, output)
            self.assertEqual(output.count("device 0: peak reserved 0"), 1, output)

    def test_both_languages_say_it_alike(self):
        source = (build.SOURCES / "pools.h").read_text()
        text = source.split("FORKED = ")[1].split(";")[0]
        # Texts one after the other are one, in both.
        self.assertEqual(ast.literal_eval(f"({text})"), f"vmm_torch: {installing.FORKED}")


class Devices(WithFakeTorch):
    def test_only_those_that_there_are(self):
        code = NO_DOOR + textwrap.dedent("""
            vmm_torch.install()
            for device in (0, "cuda", "cuda:0"):
                assert "reserved_bytes" in vmm_torch.stats(device)
            for device in (1, 7, -1, "cuda:2", "cpu", True, 0.0, "foo"):
                try:
                    vmm_torch.stats(device)
                except vmm_torch.VmmError as error:
                    print(repr(device), error)
        """)
        status, output = self.run_python(code, devices=2)
        self.assertEqual(status, 0, output)
        none, kind = "there is no CUDA device", "give the number of a CUDA device"
        expected = {
            "1": "no memory of CUDA device 1 is in use yet",
            "7": f"{none} 7: PyTorch can use 2",
            "-1": none,
            "'cuda:2'": f"{none} 2",
            "'cpu'": kind,
            "True": kind,
            "0.0": kind,
            "'foo'": kind,
        }
        for line, (device, part) in zip(output.splitlines(), expected.items(), strict=True):
            self.assertTrue(line.startswith(f"{device} "), line)
            self.assertIn(part, line)


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
        name, alias = installing.NCCL_HOOKS
        code = NO_DOOR + f"\nimport os\nvmm_torch.install()\nprint(os.environ.get({name!r}))"
        for given, left in (
            *(({name: on}, "0") for on in ("1", "True", "t", "Y", "yes")),
            ({name: "0"}, "0"),
            ({name: "f"}, "f"),
            ({alias: "1"}, "0"),
            ({alias: "1", name: "no"}, "no"),
            ({alias: "0", name: "1"}, "0"),
            ({alias: "n"}, "None"),
        ):
            status, output = self.run_python(code, **given)
            self.assertEqual((status, output.splitlines()[-1]), (0, left), given)
            is_on = given.get(name, given.get(alias)).lower() in installing.ON
            self.assertEqual(f"vmm_torch sets {name} to 0" in output, is_on, output)


if __name__ == "__main__":
    unittest.main()
