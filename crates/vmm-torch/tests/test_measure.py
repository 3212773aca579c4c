"""The measurements: what of them runs without a GPU."""

import sys
import threading
import unittest

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
