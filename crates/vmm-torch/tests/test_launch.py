"""Programs as they are under `python -m vmm_torch`, processes that they spawn, allocators that were
compiled before, and the target "last"."""

import sys
import tempfile
import unittest
from pathlib import Path

import support

from vmm_torch import build, last

MAIN = """
    import os, sys
    os.execv(sys.executable, [sys.executable, "-m", "vmm_torch", *sys.argv[1:]])
"""


def setUpModule():
    # Each test starts processes that install; this one does not use CUDA.
    if support.gpus() == 0:
        raise unittest.SkipTest("there is no GPU here")


class Launch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = Path(folder.name, "program.py")

    def test_an_unchanged_program(self):
        self.program.write_text(
            "import sys, torch\n"
            "x = torch.ones(1 << 20, device='cuda')\n"
            "print(sys.argv[1:], torch.cuda.get_allocator_backend(), float(x.sum()))\n"
        )
        status, output = support.python(MAIN, "--limit", "1GiB", str(self.program), "a", "--b")
        self.assertEqual(status, 0, output)
        self.assertIn("['a', '--b'] vmm 1048576.0", output)

    def test_processes_that_it_spawns(self):
        self.program.write_text(
            "import torch\n"
            "import torch.multiprocessing as mp\n"
            "import vmm_torch\n"
            "def work(rank):\n"
            "    x = torch.ones(1 << 20, device='cuda')\n"
            "    limit = vmm_torch.stats(0)['limit']\n"
            "    print(rank, torch.cuda.get_allocator_backend(), limit, float(x.sum()), flush=True)\n"
            "if __name__ == '__main__':\n"
            "    mp.spawn(work, nprocs=2)\n"
        )
        status, output = support.python(MAIN, "--limit", "1GiB", str(self.program))
        self.assertEqual(status, 0, output)
        expected = [f"{rank} vmm {1 << 30} 1048576.0" for rank in range(2)]
        self.assertEqual(sorted(output.splitlines()), expected)

    def test_what_was_compiled_needs_no_compiler(self):
        built = build.allocator()
        code = """
            import torch, vmm_torch
            vmm_torch.install(door="full")
            print(float(torch.ones(10, device="cuda").sum()))
        """
        status, output = support.python(code, PATH="/nowhere", CXX="", CUDA_HOME="/nowhere")
        self.assertEqual((status, output), (0, "10.0\n"))
        command = [sys.executable, "-m", "vmm_torch", "--build"]
        code = f"import subprocess; subprocess.run({command!r}, check=True)"
        status, output = support.python(code, PATH="/nowhere", CXX="")
        self.assertEqual((status, output), (0, f"{built}\n"))

    def test_the_last_runs_peak_is_the_target(self):
        self.program.write_text(
            "import sys, torch, vmm_torch\n"
            "x = torch.ones(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')\n"
            "target = vmm_torch.stats(0)['target']\n"
            "del x\n"
            "torch.cuda.reset_peak_memory_stats()\n"
            "print('target', target)\n"
        )
        build.allocator()
        with tempfile.TemporaryDirectory() as cache:
            # The compiled allocator stays where it is.
            for compiled in build.cache_folder().glob("torch-*"):
                Path(cache, compiled.name).symlink_to(compiled)

            def run(*arguments):
                given = ["--target", "last", "--log", "info", str(self.program), *arguments]
                status, output = support.python(MAIN, *given, VMM_CACHE=cache)
                self.assertEqual(status, 0, output)
                return output

            first = run("300")
            self.assertIn("no target: no earlier run of this command is known", first)
            self.assertIn("target 0\n", first)
            (file,) = Path(cache, "last").glob("*.json")
            self.assertIn('"peak_requested_bytes"', file.read_text())
            second = run("300")
            # What a program takes beside its tensor is little.
            found = int(second.split("\ntarget ")[1].split()[0])
            low = last.target_of(300 << 20)
            self.assertTrue(low <= found <= low + (4 << 20), second)
            self.assertNotIn("no target", second)
            self.assertIn("no target", run("200"))


if __name__ == "__main__":
    unittest.main()
