"""The measurements: what of them runs without a GPU."""

import os
import sys
import tempfile
import threading
import unittest
import unittest.mock
from pathlib import Path

import support

sys.path.insert(0, str(support.PACKAGE / "measure"))


class Measure(unittest.TestCase):
    def test_replacing_more_or_fewer_than_there_are(self):
        torch = support.torch_or_skip()
        import small

        for live, count in ((10, 50), (50, 10)):
            self.assertGreater(small.replacing(torch, (4, 8), live, count, "cpu"), 0)

    def test_a_thread_that_dies_fails_its_program(self):
        import program

        tell, failed = threading.excepthook, []
        threading.excepthook = lambda args: None
        try:
            program.fail_with_threads(failed)
            thread = threading.Thread(target=lambda: [][1])
            thread.start()
            thread.join()
        finally:
            threading.excepthook = tell
        self.assertEqual(failed, ["in a thread: list index out of range"])

    def take_turns(self, steps, dies):
        """The order in which three threads make their steps; `dies` tells which one fails where."""
        import turns

        seen, threads = [], []
        conductor = turns.Conductor(3)

        def run(who, ends):
            own = turns.Turns(lambda: None, *ends)
            try:
                if dies.get(who) == "first":
                    raise ValueError
                for step in own.range(steps):
                    seen.append(f"{who}{step}")
                    if dies.get(who) == step:
                        raise ValueError
                own.end()
            except ValueError:
                own.leave()

        with unittest.mock.patch.object(turns.threading, "main_thread", threading.current_thread):
            for who, ends in zip("abc", conductor.ends, strict=True):
                threads.append(threading.Thread(target=run, args=(who, ends)))
                threads[-1].start()
            conductor.conduct()
            for thread in threads:
                thread.join(20)
        for given, _ in conductor.ends:
            os.close(given)
        return " ".join(seen)

    def test_processes_take_turns(self):
        self.assertEqual(self.take_turns(2, {}), "a0 b0 c0 a1 b1 c1")
        self.assertEqual(self.take_turns(3, {"b": 0}), "a0 b0 c0 a1 c1 a2 c2")
        self.assertEqual(self.take_turns(3, {"b": 1, "c": 0}), "a0 b0 c0 a1 b1 a2")
        self.assertEqual(self.take_turns(2, {"a": 0, "b": 0, "c": 0}), "a0 b0 c0")
        self.assertEqual(self.take_turns(2, {"c": 1, "a": "first"}), "b0 c0 b1 c1")

    def test_a_process_that_dies_holds_up_nobody(self):
        import runs

        with tempfile.TemporaryDirectory() as folder:
            session = runs.Session(None, Path(folder, "out.json"), 20, ["0"], 1)
            code = "import sys, turns; own = turns.Turns(lambda: None, *turns.parsed(sys.argv[1]))\n"
            code += "if sys.argv[2] == 'dies': raise SystemExit('as it was told')\n"
            code += "for _ in own.range(3): pass\nown.end(); print(len(own.seconds))"

            def run(what, how, device, turn, sharing):
                given, back = turn
                command = [sys.executable, "-c", code, f"{given},{back}", what]
                return session._run(command, device, turn, sharing)

            with unittest.mock.patch.dict(os.environ, PYTHONPATH=str(support.PACKAGE / "measure")):
                found = session.in_turns(run, [("dies", {}), ("lives", {})], "0")
        self.assertEqual((found[0]["status"], found[1]["status"]), (1, 0), found)
        self.assertEqual(found[1]["output"], "4\n")

    def test_a_multiple_of_a_peak_is_whole_granules(self):
        import measure

        self.assertEqual(measure.ways(5 << 20)["vmm, limit 1.03"][1]["limit"], 6 << 20)
        large = measure.ways(1000 << 20)["vmm, target 1.015"][1]["target"]
        self.assertEqual(large, int((1000 << 20) * 1.015))

    def test_what_differs_is_told_from_what_is_not_deterministic(self):
        import measure

        def runs(ours, expandable):
            run = {"ok": True, "digested": 3}
            return {
                "native": {**run, "digest": "a"},
                "expandable": {**run, "digest": expandable},
                "native, limit 1.03": {"ok": False},
                "vmm": {**run, "digest": ours},
            }

        self.assertEqual(measure.verdict(runs("a", "a"), "vmm"), "equal")
        self.assertEqual(measure.verdict(runs("b", "a"), "vmm"), "DIFFERENT")
        self.assertIn("not deterministic", measure.verdict(runs("b", "c"), "vmm"))


if __name__ == "__main__":
    unittest.main()
