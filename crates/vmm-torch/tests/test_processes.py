"""Processes: too late, forks, and ends in any state."""

import tempfile
import textwrap
import unittest

import support

START = """
import gc, os, sys, threading, torch, vmm_torch
vmm_torch.install()
"""
NATIVE = START.replace("vmm_torch.install()\n", "")

ENDS = {
    "with tensors": "x = torch.ones(1 << 20, device='cuda')",
    "with work queued": """
        x = torch.ones(1 << 20, device='cuda')
        torch.cuda._sleep(10**8)
        y = x + 1
    """,
    "without any use": "",
    "with a graph": """
        x = torch.ones(1 << 20, device='cuda')
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = x + 1
        g.replay()
    """,
    "in a capture": """
        x = torch.ones(1 << 20, device='cuda')
        s = torch.cuda.Stream()
        torch.cuda.set_stream(s)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        g.capture_begin()
        y = x + 1
    """,
    "with a pool": """
        p = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(p):
            x = torch.ones(1 << 20, device='cuda')
    """,
    "with a history": """
        torch.cuda.memory._record_memory_history(stacks='python')
        x = [torch.ones(1 << 20, device='cuda') for _ in range(10)]
    """,
    "in a cycle": """
        class A: pass
        a = A()
        a.a = a
        a.x = torch.ones(1 << 20, device='cuda')
        del a
    """,
    "with cuBLAS and side streams": """
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(512, 512, device='cuda'); y = x @ x
        z = torch.randn(512, 512, device='cuda') @ y
    """,
}


def setUpModule():
    # Each test starts processes that install; this one does not use CUDA.
    if support.gpus() == 0:
        raise unittest.SkipTest("there is no GPU here")


class Processes(unittest.TestCase):
    def check_clean(self, status, output, expected=0):
        self.assertEqual(status, expected, output)
        self.assertNotIn("vmm_torch:", output)

    def run_clean(self, code, expected=0):
        status, output = support.python(START + textwrap.dedent(code))
        self.check_clean(status, output, expected)
        return output

    def test_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            started = {
                name: support.start(START + textwrap.dedent(code), folder)
                for name, code in ENDS.items()
            }
            # What PyTorch itself makes of an end where its users leave it.
            code = NATIVE + textwrap.dedent(ENDS["in a capture"])
            native = support.ended(support.start(code, folder), 60)
            results = {name: support.ended(process, 60) for name, process in started.items()}
        for name, (status, output) in results.items():
            with self.subTest(name):
                self.check_clean(status, output, native[0] if name == "in a capture" else 0)

    def test_an_end_by_an_exception(self):
        output = self.run_clean("x = torch.ones(1 << 20, device='cuda'); raise SystemExit(3)", 3)
        self.assertEqual(output, "")

    def test_a_fork_before_cuda_may_use_it(self):
        self.run_clean("""
            if os.fork() == 0:
                assert int(torch.ones(100, device='cuda').sum()) == 100
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            assert int(torch.ones(200, device='cuda').sum()) == 200
        """)

    def test_a_fork_after_cuda_ends_cleanly(self):
        # At once, and with all that the interpreter does at its end. The threads hold the allocator's
        # locks, and not the driver's, which takes them in a process that ends, too.
        for end in ("os._exit(0)", "sys.exit(0)"):
            self.run_clean(f"""
                x = [torch.ones(1 << 20, device='cuda') for _ in range(8)]
                torch.cuda.memory._record_memory_history(stacks='python')
                done = False
                def work():
                    while not done:
                        torch.empty(1 << 10, device='cuda')
                threads = [threading.Thread(target=work) for _ in range(3)]
                for t in threads: t.start()
                for _ in range(10):
                    if os.fork() == 0:
                        del x
                        gc.collect()
                        {end}
                    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
                done = True
                for t in threads: t.join()
            """)

    def test_a_history_can_be_saved_at_the_end(self):
        # Functions that were registered before run after the allocator's own.
        code = """
            import atexit, torch, vmm_torch
            def save():
                events = torch.cuda.memory._snapshot()["device_traces"][0]
                print(("alloc", 123 << 20) in [(e["action"], e["size"]) for e in events])
            atexit.register(save)
            vmm_torch.install()
            torch.cuda.memory._record_memory_history(stacks="python")
            torch.empty(123 << 20, dtype=torch.uint8, device="cuda")
        """
        status, output = support.python(code)
        self.assertEqual((status, output), (0, "True\n"))

    def test_workers_of_a_loader(self):
        self.run_clean("""
            data = torch.utils.data.TensorDataset(torch.arange(1000.0))
            torch.zeros(1, device='cuda')
            loader = torch.utils.data.DataLoader(data, 10, num_workers=2, pin_memory=True)
            total = sum(batch[0].to('cuda', non_blocking=True).sum() for batch in loader)
            assert float(total) == 499500
        """)

    def test_too_late(self):
        status, output = support.python(
            "import torch, vmm_torch; torch.ones(1, device='cuda'); vmm_torch.install()"
        )
        self.assertEqual(status, 1)
        self.assertIn("CUDA is in use already", output.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
