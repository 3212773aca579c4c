"""The target "last": needs neither PyTorch nor a GPU."""

import copy
import json
import os
import shutil
import subprocess
import textwrap
import unittest
import unittest.mock
import warnings

from test_install import NO_DOOR, WithFakeTorch

from vmm_torch import last

MIB = 1 << 20


class Files(WithFakeTorch):
    def run_of(self, *argv, process="MainProcess", gpus=("GPU",), **environ):
        environ["VMM_CACHE"] = str(self.folder)
        with (
            unittest.mock.patch.dict(os.environ, environ, clear=True),
            unittest.mock.patch.object(last.sys, "argv", list(argv)),
            unittest.mock.patch.object(last, "gpu_names", lambda: list(gpus)),
            unittest.mock.patch.object(last.multiprocessing, "current_process") as current,
        ):
            current.return_value.name = process
            return last.LastRun.of_this_process()

    def test_what_a_run_needed_is_the_next_ones_target(self):
        run = self.run_of("train.py", "--size", "3")
        self.assertEqual(run.target(), (0, "no earlier run of this command is known"))
        run.note({0: 700 * MIB})
        run.note({0: 1000 * MIB, 1: 0})
        run.note({0: 5 * MIB})
        run.write()
        again = self.run_of("train.py", "--size", "3")
        self.assertEqual(again.target(), (int(1000 * MIB * 1.015), None))
        again.note({0: 9 * MIB})
        again.write()
        self.assertEqual(self.run_of("train.py", "--size", "3").target()[0], 10 * MIB)
        self.assertEqual([file.name for file in run.file.parent.iterdir()], [run.file.name])

    def test_other_commands_processes_and_gpus_have_their_own(self):
        script = self.folder / "train.py"
        script.write_text("")
        link = self.folder / "link.py"
        link.symlink_to(script)
        runs = [
            self.run_of(str(script)),
            self.run_of(str(script), "--size", "3"),
            self.run_of(str(script), "--size 3"),
            self.run_of(str(script), RANK="1"),
            self.run_of(str(script), RANK="1", WORLD_SIZE="2"),
            self.run_of(str(script), RANK="1", WORLD_SIZE="4"),
            self.run_of(str(script), RANK="2", WORLD_SIZE="4"),
            self.run_of(str(script), process="SpawnProcess-1"),
            self.run_of(str(script), gpus=("GPU", "other GPU")),
            self.run_of("-c"),
        ]
        with unittest.mock.patch.object(last.sys, "orig_argv", ["python", "-c", "other code"]):
            runs.append(self.run_of("-c"))
        # A module, in two folders.
        for folder in (self.folder, self.folder.parent):
            with unittest.mock.patch.object(last.os, "getcwd", lambda folder=folder: str(folder)):
                runs.append(self.run_of("-m", "train"))
        self.assertEqual(len({run.file for run in runs}), len(runs))
        self.assertEqual(self.run_of(str(link)).file, runs[0].file)
        self.assertEqual(self.run_of(os.path.relpath(script)).file, runs[0].file)

    def test_ranks_are_those_of_other_launchers_too(self):
        of_torchrun = self.run_of("train.py", RANK="1", WORLD_SIZE="2")
        slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
        for environ in (
            slurm,
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            {"PMI_RANK": "1", "PMI_SIZE": "2"},
        ):
            self.assertEqual(self.run_of("train.py", **environ).file, of_torchrun.file)
            self.assertNotEqual(self.run_of("train.py").file, of_torchrun.file)
        # torchrun in a job of Slurm tells more.
        other = self.run_of("train.py", RANK="0", WORLD_SIZE="16", **slurm)
        self.assertEqual(other.file, self.run_of("train.py", RANK="0", WORLD_SIZE="16").file)

    def kept(self, run):
        return json.loads(run.file.read_text())["peak_requested_bytes"]

    def test_a_run_that_stopped_early_only_raises(self):
        for peaks, is_complete, kept in (
            ({0: 100, 1: 90}, True, {"0": 100, "1": 90}),
            ({0: 50}, False, {"0": 100, "1": 90}),
            ({0: 50, 1: 120}, False, {"0": 100, "1": 120}),
            ({2: 7}, False, {"0": 100, "1": 120, "2": 7}),
            ({0: 60}, True, {"0": 60}),
        ):
            run = self.run_of("train.py")
            run.note(peaks)
            run.write(is_complete)
            self.assertEqual(self.kept(run), kept)

    def test_of_the_processes_of_one_run_the_greatest_counts(self):
        for peaks in ((10, 30, 20), (2, 1, 3)):
            parent = self.run_of("train.py")
            for peak in peaks:
                child = copy.deepcopy(parent)
                child.note({0: peak})
                child.write()
            # The run before counts no more, though it needed more.
            self.assertEqual(self.kept(parent), {"0": max(peaks)})

    def test_whole_granules_are_the_least(self):
        for peak, target in (
            (1, 2 * MIB),
            (2 * MIB, int(2 * MIB * 1.015)),
            (5 * MIB, 6 * MIB),
            (4096 * MIB, int(4096 * MIB * 1.015)),
        ):
            self.assertEqual(last.target_of(peak), target)

    def test_devices_that_needed_about_the_same_share_a_target(self):
        for peaks, target in (({0: 200, 1: 190}, 190), ({0: 200, 1: 100}, 0)):
            run = self.run_of("train.py")
            run.note({device: peak * MIB for device, peak in peaks.items()})
            run.write()
            found, why = self.run_of("train.py").target()
            self.assertEqual(found, int(target * MIB * 1.015))
            self.assertEqual(why is None, target != 0)

    def test_a_run_without_memory_leaves_the_last_one(self):
        run = self.run_of("train.py")
        run.note({0: 100 * MIB})
        run.write()
        other = self.run_of("train.py")
        other.note({0: 0})
        other.write()
        self.assertEqual(self.run_of("train.py").target()[0], int(100 * MIB * 1.015))

    def told(self, call):
        """What `call` returns, and the warnings meanwhile."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = call()
        return found, [str(warning.message) for warning in seen]

    def test_a_file_that_cannot_be_read_is_a_warning_and_is_mended(self):
        for text in (
            "",
            "[]",
            "{}",
            '{"peak_requested_bytes": {}}',
            '{"peak_requested_bytes": {"0": "7"}}',
            '{"peak_requested_bytes": {"0": -7}}',
            '{"peak_requested_bytes": [1]}',
            "\x00{",
            "[" * 100_000,
        ):
            run = self.run_of("train.py")
            run.file.parent.mkdir(exist_ok=True)
            run.file.write_text(text)
            (target, why), told = self.told(run.target)
            self.assertEqual(target, 0)
            self.assertEqual(len(told), 1, text)
            self.assertIn(f"{run.file} cannot be read", told[0])
            self.assertIn(why, told[0])
            run.note({0: MIB})
            run.write()
            self.assertEqual(json.loads(run.file.read_text())["peak_requested_bytes"], {"0": MIB})

    def test_a_folder_that_cannot_be_used_is_one_warning(self):
        run = self.run_of("train.py")
        # Where the folder should be, a file lies; the superuser may write everywhere else.
        (self.folder / "last").write_text("")
        _, told = self.told(run.target)
        run.note({0: MIB})
        told += self.told(run.write)[1]
        self.assertEqual(len(told), 1, told)
        self.assertIn("cannot be", told[0])


# As much of the driver's library as names GPUs; the second cannot be asked.
NVML = """
#include <string.h>
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    *gpu = (void *)(0x7fff12345678ul + index); return index == 1 ? 15 : 0; }
int nvmlDeviceGetName(void *gpu, char *name, unsigned length) {
    strncpy(name, gpu < (void *)0x7fff12345678ul ? "a wrong one" : "some GPU", length); return 0; }
}
"""


class Names(WithFakeTorch):
    CODE = "from vmm_torch import last; print(last.gpu_names())"

    def test_gpus_have_their_names(self):
        if shutil.which("g++") is None:
            self.skipTest("there is no g++ here")
        command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o"]
        library = self.folder / "libnvidia-ml.so.1"
        subprocess.run([*command, str(library)], input=NVML.encode(), check=True)
        status, output = self.run_python(self.CODE, LD_LIBRARY_PATH=str(self.folder))
        self.assertEqual((status, output), (0, "['some GPU']\n"))

    def test_a_library_that_is_none_names_none(self):
        (self.folder / "libnvidia-ml.so.1").write_text("no library")
        status, output = self.run_python(self.CODE, LD_LIBRARY_PATH=str(self.folder))
        self.assertEqual((status, output), (0, "[]\n"))


class Runs(WithFakeTorch):
    CODE = NO_DOOR + 'vmm_torch.install(target="last", log="info")'

    def test_two_runs(self):
        status, output = self.run_python(self.CODE, str(100 * MIB))
        self.assertEqual(status, 0, output)
        self.assertIn("no target: no earlier run of this command is known", output)
        status, output = self.run_python(self.CODE, str(100 * MIB))
        self.assertEqual(status, 0, output)
        self.assertIn(f"target={int(100 * MIB * 1.015)}", output)
        self.assertNotIn("no target", output)

    def test_a_peak_from_before_a_reset_counts(self):
        code = NO_DOOR + (
            "import torch\n"
            "resets = []\n"
            "torch._C._cuda_resetPeakMemoryStats = resets.append\n"
            'vmm_torch.install(target="last", log="info")\n'
            "torch._C._cuda_resetPeakMemoryStats(0)\n"
            "assert resets == [0]\n"
            "PEAK = 1\n"
        )
        self.run_python(code, str(100 * MIB))
        status, output = self.run_python(code, str(100 * MIB))
        self.assertEqual(status, 0, output)
        self.assertIn(f"target={int(100 * MIB * 1.015)}", output)

    # A program as other launchers start it, whose need and end are in the environment.
    PROGRAM = """
        import os, sys
        Library.stats = lambda self, pool: dict.fromkeys(FIGURES, 0) | {
            "peak_requested_bytes": int(os.environ["PEAK"])
        }
        def work():
            exec(os.environ["ENDS"])
        if __name__ == "__main__":
            work()
    """

    def check_end(self, launch, ends, peak):
        """What is kept after a run that needed 100 and then one that needed 10 and ended so."""
        for ends_so, needs in (("pass", 100), (ends, 10)):
            status, output = self.run_python(launch, PEAK=str(needs), ENDS=ends_so)
            self.assertNotIn("vmm_torch:", output)
        (kept,) = self.folder.glob("cache/last/*.json")
        self.assertIn(f'"0": {peak}\n', kept.read_text(), f"{ends}: {status}, {output}")
        kept.unlink()

    ENDS = (
        ("pass", 10),
        ("sys.exit()", 10),
        ("sys.exit(0)", 10),
        ("sys.exit(3)", 100),
        ("sys.exit('it failed')", 100),
        ("raise ValueError('failed')", 100),
        ("raise KeyboardInterrupt", 100),
    )

    def test_ends_of_a_program_that_installs(self):
        install = "import vmm_torch; vmm_torch.install(target='last')\n"
        program = NO_DOOR + install + textwrap.dedent(self.PROGRAM)
        for ends, peak in self.ENDS:
            self.check_end(program, ends, peak)

    def test_ends_of_an_unchanged_program(self):
        (self.folder / "sitecustomize.py").write_text(NO_DOOR)
        program = self.folder / "program.py"
        program.write_text("from sitecustomize import *\n" + textwrap.dedent(self.PROGRAM))
        launch = f"""
            import os, sys
            command = ["-m", "vmm_torch", "--target", "last", {str(program)!r}]
            os.execv(sys.executable, [sys.executable, *command])
        """
        for ends, peak in (*self.ENDS, ("raise SystemExit(3)", 100), ("raise SystemExit", 10)):
            self.check_end(launch, ends, peak)

    def test_ends_of_processes_of_multiprocessing(self):
        # These end where nobody needs `sys.exit` and Python shows no exception of theirs.
        program = textwrap.dedent("""
            Door.used = False
            vmm_torch.install(target="last")
            import multiprocessing, os
            def child():
                Door.used = True
                work()
        """)
        program += textwrap.dedent(self.PROGRAM).replace(
            "    work()\n",
            "    other = multiprocessing.get_context('fork').Process(target=child)\n"
            "    other.start()\n"
            "    other.join()\n",
        )
        for ends, peak in (*self.ENDS, ("raise SystemExit(3)", 100), ("raise SystemExit", 10)):
            self.check_end(NO_DOOR + program, ends, peak)

    def test_a_cache_that_cannot_be_written_is_one_warning(self):
        for _ in range(2):
            status, output = self.run_python(self.CODE, "1000", VMM_CACHE="/dev/null/cache")
            self.assertEqual(status, 0, output)
            self.assertEqual(output.count("UserWarning"), 1, output)


if __name__ == "__main__":
    unittest.main()
