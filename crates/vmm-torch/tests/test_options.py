"""Options, messages and the command line: needs neither PyTorch nor a GPU."""

import os
import tempfile
import textwrap
import unittest
from pathlib import Path

import support

from vmm_torch import OptionError, Options, VmmError
from vmm_torch.__main__ import split
from vmm_torch.options import parse_bytes

# As much of PyTorch as `install` looks at.
FAKE_TORCH = """
    __version__ = "2.11.0"
    class version:
        cuda = {cuda}
    class cuda:
        is_initialized = staticmethod(lambda: {initialised})
        device_count = staticmethod(lambda: {devices})
"""


class Lengths(unittest.TestCase):
    def test_texts_and_numbers(self):
        for given, bytes_ in {
            0: 0,
            4096: 4096,
            "4096": 4096,
            "20GiB": 20 << 30,
            "1.5 gib": 3 << 29,
            "500 MB": 500 * 10**6,
            "2tib": 2 << 40,
            "7B": 7,
        }.items():
            self.assertEqual(parse_bytes(given), bytes_, given)

    def test_what_is_no_length(self):
        for given in ("", "GiB", "12 parsecs", "-1", -1, "1e400", True, None, [], "1..5GiB"):
            with self.assertRaises(OptionError, msg=repr(given)) as caught:
                parse_bytes(given, "limit")
            self.assertIn("limit is", str(caught.exception))


class Choosing(unittest.TestCase):
    def test_keywords_come_before_the_environment(self):
        environ = {"VMM_LIMIT": "1GiB", "VMM_RETENTION": "long", "VMM_LOG": ""}
        options = Options.choose({"limit": "2GiB", "target": None}, environ)
        self.assertEqual(options, Options(limit=2 << 30, retention="long"))

    def test_faults_name_the_option_and_what_it_can_be(self):
        for given, environ, parts in (
            ({"colour": 1}, {}, ("no option 'colour'", "limit")),
            ({"retention": "ever"}, {}, ("retention is 'ever'", "short, normal, long")),
            ({}, {"VMM_DOOR": "back"}, ("VMM_DOOR is 'back'", "auto, full, plain")),
            ({}, {"VMM_TARGET": "much"}, ("VMM_TARGET is 'much'", "20GiB")),
        ):
            with self.assertRaises(OptionError) as caught:
                Options.choose(given, environ)
            for part in parts:
                self.assertIn(part, str(caught.exception))

    def test_numbers_for_the_library(self):
        settings = Options(limit=5, retention="short", cross_stream="never").settings({})
        self.assertEqual(settings.limit, 5)
        self.assertEqual(settings.time_to_live_ns, 10**9)
        self.assertEqual(settings.cross_stream, 2)
        self.assertEqual(settings.frame_kind, 0)

    def test_the_memory_of_a_job_of_several_processes_can_be_registered(self):
        for frames, world, local, kind in (
            ("auto", "2", None, 1),
            ("auto", "2", "2", 1),
            ("auto", "16", "8", 2),
            ("auto", "1", "1", 0),
            ("auto", None, None, 0),
            ("device", "16", "8", 0),
        ):
            environ = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local}
            self.assertEqual(Options(frames=frames).settings(environ).frame_kind, kind)


class CommandLine(unittest.TestCase):
    def test_options_end_at_the_program(self):
        self.assertEqual(
            split(["--limit", "1GiB", "--cross-stream=never", "a.py", "--limit", "x"]),
            ({"limit": "1GiB", "cross_stream": "never"}, False, ["a.py", "--limit", "x"]),
        )
        self.assertEqual(split(["-m", "pack.age", "-m"]), ({}, True, ["pack.age", "-m"]))

    def test_faults(self):
        for arguments, part in (
            (["--speed", "x.py"], "no option --speed"),
            (["--limit"], "wants a"),
        ):
            with self.assertRaises(VmmError) as caught:
                split(arguments)
            self.assertIn(part, str(caught.exception))

    def run_main(self, *arguments, cwd=None):
        """Runs the command with an `install` that only prints what it got."""
        code = """
            import os, sys
            import vmm_torch.__main__ as command
            sys.argv[0] = command.__file__
            command.install = lambda **options: print("options", sorted(options.items()))
            os.chdir(os.environ["RUN_IN"])
            sys.path[0] = os.getcwd()
            sys.exit(command.main())
        """
        return support.python(code, *arguments, RUN_IN=str(cwd or os.getcwd()))

    def test_programs_see_what_python_shows_them(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_text(
                "import sys, beside\n"
                "print(__name__, sys.argv, sys.path[0], beside.FOUND)\n"
                "sys.exit(7)\n"
            )
            Path(folder, "beside.py").write_text("FOUND = 'found'\n")
            status, output = self.run_main("--limit", "1GiB", str(program), "-x", "--limit", "2")
            self.assertEqual(status, 7, output)
            self.assertIn("options [('limit', '1GiB')]", output)
            shown = [
                "__main__",
                str(program),
                "'-x', '--limit', '2'",
                os.path.realpath(folder),
                "found",
            ]
            for part in shown:
                self.assertIn(part, output)
            status, output = self.run_main("-m", "program", "-y", cwd=folder)
            self.assertEqual(status, 7, output)
            for part in ("__main__", "program.py', '-y'", "found"):
                self.assertIn(part, output)

    def test_what_cannot_run(self):
        for arguments, part in (
            (["none.py"], "there is no none.py"),
            ([], "no program is named"),
        ):
            status, output = self.run_main(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(part, output)
        status, output = self.run_main("--help")
        self.assertEqual(status, 0)
        self.assertIn("usage: python -m vmm_torch", output)


class Refusals(unittest.TestCase):
    """`install` says in one sentence why it cannot be."""

    def install(self, cuda="'13.0'", initialised=False, devices=1, code=None, **environment):
        with tempfile.TemporaryDirectory() as folder:
            text = FAKE_TORCH.format(cuda=cuda, initialised=initialised, devices=devices)
            Path(folder, "torch.py").write_text(textwrap.dedent(text))
            package = Path(support.vmm_torch.__file__).parent.parent
            environment["PYTHONPATH"] = os.pathsep.join([folder, str(package)])
            return support.python(code or "import vmm_torch; vmm_torch.install()", **environment)

    def test_each(self):
        for arguments, part in (
            ({"cuda": None}, "built without CUDA"),
            ({"initialised": True}, "CUDA is in use already: call vmm_torch.install() before"),
            ({"devices": 0}, "there is no GPU"),
            ({"VMM_LIBRARY": "/nowhere/libvmm.so"}, "/nowhere/libvmm.so is missing"),
            ({"VMM_LIMIT": "lots"}, "VMM_LIMIT is 'lots'"),
        ):
            status, output = self.install(**arguments)
            self.assertEqual(status, 1, output)
            self.assertIn(part, output.splitlines()[-1])

    def test_twice(self):
        code = """
            import vmm_torch
            from vmm_torch import installing
            class Door:
                name = "test"
                install = end = lambda *_: None
            class Library:
                path = "libvmm.so"
            installing._door = lambda wanted: Door()
            installing.Library = Library
            vmm_torch.install()
            vmm_torch.install()
        """
        status, output = self.install(code=code)
        self.assertEqual(status, 1, output)
        self.assertIn("installed already: call install() once", output)

    def test_what_needs_an_installation_says_so(self):
        for call in ("stats()", "trim()", "set_limit('1GiB')", "snapshot('x.pickle')"):
            status, output = self.install(code=f"import vmm_torch; vmm_torch.{call}")
            self.assertEqual(status, 1)
            self.assertIn("vmm_torch is not installed: call vmm_torch.install()", output)

    def test_what_is_not_there_yet_says_so(self):
        for call, part in (("sleep()", "to sleep yet"), ("share_memory()", "other processes yet")):
            status, output = self.install(code=f"import vmm_torch; vmm_torch.{call}")
            self.assertEqual(status, 1)
            self.assertIn(part, output)


if __name__ == "__main__":
    unittest.main()
