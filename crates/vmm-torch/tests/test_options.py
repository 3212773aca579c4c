"""Options and the command line: needs neither PyTorch nor a GPU."""

import ctypes
import os
import re
import tempfile
import unittest
from pathlib import Path

import support

from vmm_torch import OptionError, Options, VmmError, build, library
from vmm_torch.__main__ import split
from vmm_torch.options import Settings, parse_bytes, parse_limit


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
        wrong = ("", "GiB", "12 parsecs", "-1", -1, "1e400", True, None, [], "1..5GiB")
        for given in (*wrong, "1.5", "1.5 B", 1.5, float("nan"), float("inf")):
            with self.assertRaises(OptionError, msg=repr(given)) as caught:
                parse_bytes(given, "limit")
            self.assertIn("limit is", str(caught.exception))

    def test_a_limit_is_at_least_what_can_be_mapped(self):
        for given, limit in (("0", 0), ("2MiB", 2 << 20), (3 << 20, 3 << 20)):
            self.assertEqual(parse_limit(given), limit)
        for given in ("1MiB", 1, (2 << 20) - 1):
            with self.assertRaisesRegex(OptionError, "VMM_LIMIT is .*: the least is 2 MiB"):
                parse_limit(given, "VMM_LIMIT")


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
            ({}, {"VMM_TARGET": "lst"}, ("VMM_TARGET is 'lst'", "20GiB", '"last" or "none"')),
            ({"target": -1}, {}, ("target is -1", '"last" or "none"')),
            ({}, {"VMM_LIMIT": "1"}, ("VMM_LIMIT is '1'", "the least is 2 MiB")),
            ({"cross_stream": "later"}, {}, ("cross_stream is 'later'", "wait, reached, never")),
            ({}, {"VMM_FRAMES": "host"}, ("VMM_FRAMES is 'host'", "exportable, rdma")),
        ):
            with self.assertRaises(OptionError) as caught:
                Options.choose(given, environ)
            for part in parts:
                self.assertIn(part, str(caught.exception))

    def test_the_door_is_what_its_variable_says(self):
        for door in ("auto", "full", "plain"):
            self.assertEqual(Options.choose({}, {"VMM_DOOR": door}), Options(door=door))
        self.assertEqual(Options.choose({"door": "full"}, {"VMM_DOOR": "plain"}).door, "full")
        self.assertEqual(Options.choose({}, {}).door, "auto")

    def test_numbers_for_the_library(self):
        settings = Options(limit=5, retention="short", cross_stream="never").settings({})
        self.assertEqual(settings.limit, 5)
        self.assertEqual(settings.time_to_live_ns, 10**9)
        self.assertEqual(settings.cross_stream, 2)
        self.assertEqual(settings.frame_kind, 0)

    def test_each_variable_reaches_the_library(self):
        environ = {
            "VMM_LIMIT": "4GiB",
            "VMM_TARGET": "3GiB",
            "VMM_CROSS_STREAM": "reached",
            "VMM_RETENTION": "long",
            "VMM_FRAMES": "rdma",
            "VMM_LOG": "debug",
        }
        settings = Options.choose({}, environ).settings({})
        no_target = Options.choose({"target": "none"}, environ).settings({})
        self.assertEqual(no_target.target, (1 << 64) - 1)
        found = {name: getattr(settings, name) for name, _ in settings._fields_}
        expected = {
            "limit": 4 << 30,
            "target": 3 << 30,
            "cross_stream": 1,
            "time_to_live_ns": 600 * 10**9,
            "frame_kind": 2,
            "log_level": 2,
            "device_kind": 0,
            "frame_kind_is_a_guess": 0,
        }
        self.assertEqual(found, expected)

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
            settings = Options(frames=frames).settings(environ)
            self.assertEqual(settings.frame_kind, kind)
            self.assertEqual(settings.frame_kind_is_a_guess, frames == "auto")


class Structs(unittest.TestCase):
    def test_figures_are_those_of_the_header(self):
        header = (build.header_folder() / "vmm.h").read_text()
        (body,) = re.findall(r"typedef struct \{([^}]*)\} vmm_stats_t;", header)
        fields = re.findall(r"^    (?:size_t|uint64_t) (\w+);$", body, re.MULTILINE)
        self.assertGreater(len(fields), 30)
        # A library may be older than this package.
        self.assertEqual([name for name, _ in library.Stats._fields_][: len(fields)], fields)

    def test_settings_are_those_of_the_sources(self):
        source = (build.SOURCES / "pools.h").read_text()
        (body,) = re.findall(r"struct vmm_torch_settings_t \{([^}]*)\};", source)
        fields = re.findall(r"^    (uint64_t|uint32_t) (\w+);", body, re.MULTILINE)
        types = {ctypes.c_uint64: "uint64_t", ctypes.c_uint32: "uint32_t"}
        self.assertEqual([(types[kind], name) for name, kind in Settings._fields_], fields)


class CommandLine(unittest.TestCase):
    def test_options_end_at_the_program(self):
        self.assertEqual(
            split(["--limit", "1GiB", "--cross-stream=never", "a.py", "--limit", "x"]),
            ({"limit": "1GiB", "cross_stream": "never"}, "script", ["a.py", "--limit", "x"]),
        )
        self.assertEqual(split(["-m", "pack.age", "-m"]), ({}, "module", ["pack.age", "-m"]))
        self.assertEqual(split(["--target=last", "-h"]), ({"target": "last"}, "help", []))
        self.assertEqual(split(["--build"]), ({}, "build", []))
        self.assertEqual(split(["--", "a.py", "-x"]), ({}, "script", ["a.py", "-x"]))
        given = ["--log", "info", "--", "--odd.py", "--"]
        self.assertEqual(split(given), ({"log": "info"}, "script", ["--odd.py", "--"]))

    def test_faults(self):
        for arguments, part in (
            (["--speed", "x.py"], "no option --speed"),
            (["--limit"], "wants a"),
            (["--build=foo"], "--build takes no value"),
            (["-m=foo"], "-m takes no value"),
            (["--=x.py"], "-- takes no value"),
            (["--build", "--log=x"], "--build goes with no options and no program"),
            (["--build", "x.py"], "--build goes with no options and no program"),
            (["--log=info", "--build"], "--build goes with no options and no program"),
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
            (["-m"], "no program is named"),
            (["--"], "no program is named"),
            (["--limit", "1GiB"], "no program is named"),
            (["--limit", "s.py"], "limit is 's.py': give bytes"),
            (["--log", "s.py", "x"], "log is 's.py': it can be off, info, debug"),
            (["-m", "nosuch"], "vmm_torch: No module named nosuch"),
        ):
            status, output = self.run_main(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(part, output)
        for arguments in (["--help"], ["-h"], ["--limit", "1GiB", "--help"]):
            status, output = self.run_main(*arguments)
            self.assertEqual(status, 0)
            self.assertIn("usage: python -m vmm_torch", output)


if __name__ == "__main__":
    unittest.main()
