"""Programs under `python -m vmm_torch` see what Python itself shows them: needs neither PyTorch nor
a GPU."""

import sys
import textwrap
import unittest
import zipfile

from test_install import NO_DOOR, WithFakeTorch

# Tells what it sees, at once and at the end of the process, after its last line.
PROGRAM = textwrap.dedent('''\
    """What it says."""
    import atexit, os, pickle, sys, threading, time
    class Thing: pass
    def late(when):
        pickle.loads(pickle.dumps(Thing()))
        print(when, sys.modules["__main__"].__dict__ is globals(), flush=True)
    def wait():
        threading.main_thread().join()
        late("in a thread")
    atexit.register(late, "at the end")
    threading.Thread(target=wait).start()
    names = "__name__ __file__ __cached__ __package__ __doc__".split()
    print({name: globals().get(name) for name in names})
    print(__spec__ and (__spec__.name, __spec__.origin), type(__loader__), __builtins__)
    print(sys.argv, sys.path[0])
    os.chdir("/")
    print(os.path.isabs(__file__))
''')


class Programs(WithFakeTorch):
    def setUp(self):
        super().setUp()
        self.folder = self.folder.resolve()
        (self.folder / "sitecustomize.py").write_text(NO_DOOR)
        (self.folder / "program.py").write_text(PROGRAM)
        (self.folder / "pack").mkdir()
        for name in ("__init__.py", "__main__.py", "part.py"):
            (self.folder / "pack" / name).write_text(PROGRAM if name != "__init__.py" else "")
        with zipfile.ZipFile(self.folder / "program.zip", "w") as archive:
            archive.writestr("__main__.py", PROGRAM)

    def run_in(self, *command):
        """Runs a Python in the folder; `(exit status, output)`."""
        code = """
            import os, sys
            os.chdir(os.environ["RUN_IN"])
            os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
        """
        return self.run_python(code, *command, RUN_IN=str(self.folder))

    def test_they_see_what_python_shows(self):
        absolute = str(self.folder / "program.py")
        for command in (
            ["program.py", "-x", "--limit"],
            ["pack/part.py"],
            [absolute],
            ["-m", "program", "-y"],
            ["-m", "pack.part"],
            ["-m", "pack"],
            ["pack"],
            ["program.zip", "z"],
            ["-P", "program.py"],
            ["-P", "pack"],
        ):
            flags = [word for word in command if word == "-P"]
            if flags and sys.version_info < (3, 11):
                continue
            rest = command[len(flags) :]
            with self.subTest(" ".join(command)):
                status, expected = self.run_in(*command)
                self.assertEqual(status, 0, expected)
                self.assertIn("in a thread True\nat the end True\n", expected)
                status, found = self.run_in(*flags, "-m", "vmm_torch", "--log", "off", *rest)
                self.assertEqual((status, found), (0, expected))

    def test_their_status_is_the_commands(self):
        (self.folder / "ends.py").write_text("import sys\nsys.exit(7)\n")
        for command in (["ends.py"], ["-m", "ends"], ["--limit", "1GiB", "--", "ends.py"]):
            status, output = self.run_in("-m", "vmm_torch", *command)
            self.assertEqual((status, output), (7, ""))

    def test_an_error_of_theirs_is_shown_as_it_is(self):
        (self.folder / "fails.py").write_text("import vmm_torch\nvmm_torch.install()\n")
        (self.folder / "wrong.py").write_text("import nowhere.at.all\n")
        (self.folder / "pack" / "sub").mkdir()
        (self.folder / "pack" / "sub" / "__init__.py").write_text("import nowhere\n")
        for command, last in (
            (["fails.py"], "installed already: call install() once in a process"),
            (["wrong.py"], "No module named 'nowhere'"),
            (["-m", "wrong"], "No module named 'nowhere'"),
            (["-m", "pack.sub.part"], "No module named 'nowhere'"),
        ):
            status, output = self.run_in("-m", "vmm_torch", *command)
            self.assertEqual(status, 1, output)
            self.assertIn("Traceback", output)
            self.assertIn(last, output.splitlines()[-1])

    def test_what_is_no_program_is_told_in_one_line(self):
        (self.folder / "empty").mkdir()
        (self.folder / "plain.py").write_text("")
        for command, said in (
            (["none.py"], "there is no none.py"),
            (["empty"], "there is no __main__.py in empty"),
            (["-m", "nosuch"], "No module named nosuch"),
            (["-m", "nosuch.part"], "No module named nosuch"),
            (["-m", "pack.nosuch"], "No module named pack.nosuch"),
            (["-m", "plain.nosuch"], "No module named plain.nosuch"),
            (["-m", "empty"], "No module named empty.__main__"),
            (["-m", ".part"], "No module named "),
            (["-m", "pack..part"], "No module named pack..part"),
        ):
            with self.subTest(" ".join(command)):
                status, output = self.run_in("-m", "vmm_torch", *command)
                self.assertEqual(status, 2, output)
                self.assertEqual(len(output.splitlines()), 1, output)
                self.assertIn(f"vmm_torch: {said}", output)


if __name__ == "__main__":
    unittest.main()
