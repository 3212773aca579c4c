"""The measurements: what of them runs without a GPU."""

import json
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

    def test_medians_of_several_runs(self):
        import measure

        def run(*steps, setup=2.0, ok=True):
            missed = [1.0, *(1.5 for _ in steps[1:])]
            return {"ok": ok, "setup": setup, "steps": list(steps), "missed": missed}

        runs = [run(1, 9), run(2, 2, setup=3.0), run(7, 3, setup=9.0)]
        usual = {**run(2, 3, setup=3.0), "missed": 0.5 / 3}
        self.assertEqual(measure.usual(runs), usual)
        self.assertEqual(measure.usual(runs[:1]), {**runs[0], "missed": 0.5 / 9})
        self.assertEqual(measure.percent(0.5 / 3), "16.67 %")
        alone = measure.usual([run(1), run(1, setup=None)])
        self.assertEqual((alone["setup"], alone["missed"]), (None, None))
        self.assertEqual(measure.percent(None), "")
        self.assertFalse(measure.usual([run(1), run(1, 2)])["ok"])
        failed = run(ok=False)
        self.assertIs(measure.usual([runs[0], failed]), failed)
        self.assertEqual(measure.told([3.0, 1.0, 2.0]), "2.000")
        self.assertEqual(measure.told(["b", "a", "b"]), "a, b")
        self.assertEqual(measure.told([]), "failed")

    def take_turns(self, steps, dies, begins=False):
        """The order in which three threads make their steps; `dies` tells which one fails where.
        With `begins` they have a set-up, "+"."""
        import turns

        seen, threads = [], []
        conductor = turns.Conductor(3)

        def run(who, ends):
            own = turns.Turns(lambda: None, *ends, lambda: len(seen))
            try:
                if dies.get(who) == "first":
                    raise ValueError
                if begins:
                    own.begin()
                    own.begin()
                    seen.append(f"{who}+")
                for step in own.range(steps):
                    seen.append(f"{who}{step}")
                    if dies.get(who) == step:
                        raise ValueError
                own.end()
            except ValueError:
                own.leave()
            self.assertEqual(own.setup is not None, begins and bool(own.seconds))
            self.assertEqual(len(own.notes), len(own.seconds))
            self.assertTrue(all(a < b for a, b in zip(own.notes, own.notes[1:], strict=False)))

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

    def test_the_set_up_has_a_turn_of_its_own(self):
        seen = self.take_turns(2, {}, begins=True)
        self.assertEqual(seen, "a+ b+ c+ a0 b0 c0 a1 b1 c1")
        seen = self.take_turns(2, {"b": "first"}, begins=True)
        self.assertEqual(seen, "a+ c+ a0 c0 a1 c1")

    def test_without_a_loop_what_was_begun_is_one_step(self):
        import turns

        conductor = turns.Conductor(1)
        own = turns.Turns(lambda: None, *conductor.ends[0])
        thread = threading.Thread(target=conductor.conduct)
        thread.start()
        own.begin()
        own.end()
        thread.join()
        os.close(conductor.ends[0][0])
        self.assertEqual((own.setup, len(own.seconds)), (None, 1))

    def test_a_model_that_goes_to_the_device_begins(self):
        torch = support.torch_or_skip()
        import program

        begun = []
        with unittest.mock.patch.object(torch.nn.Module, "to", torch.nn.Module.to):
            program.begin_with_models(torch, lambda: begun.append(1))
            model = torch.nn.Linear(2, 2).to(torch.float64)
        self.assertEqual(begun, [1])
        self.assertEqual(model.weight.dtype, torch.float64)

    def test_times_are_those_over_native_ones(self):
        import measure

        native = {"ok": True, "setup": 2.0, "steps": [1.0, 2.0, 4.0]}
        run = {"ok": True, "setup": 1.0, "steps": [2.0, 2.0, 1.0]}
        self.assertEqual(measure.relative(native, run), (0.5, 2.0, 0.5, 0.625))
        self.assertEqual(measure.relative(native, {**run, "setup": None})[:2], (None, 2.0))
        one = {**run, "steps": [3.0]}
        self.assertEqual(measure.relative({**native, "steps": [2.0]}, one), (0.5, 1.5, None, None))
        for other in ({"ok": False}, None, {**run, "steps": [1.0]}):
            self.assertIsNone(measure.relative(native, other))
        none = {"ok": True, "setup": None, "steps": []}
        self.assertIsNone(measure.relative(none, none))

    def test_a_process_that_dies_holds_up_nobody(self):
        import runs

        with tempfile.TemporaryDirectory() as folder:
            session = runs.Session(None, Path(folder, "out.json"), 20, ["0"], 1)
            code = (
                "import sys, turns; own = turns.Turns(lambda: None, *turns.parsed(sys.argv[1]))\n"
            )
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

    def test_those_that_take_turns_have_the_same_processors(self):
        from runs import CPUS, Session

        def run(name, how, device, turn, sharing):
            command = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
            return session._run(command, device, turn, sharing)

        there = os.sched_getaffinity(0)
        seen = []
        with tempfile.TemporaryDirectory() as folder:
            session = Session(None, Path(folder, "out.json"), 10, ["0", "1", "0"], 1)
            for device in "01":
                first, second = session.in_turns(run, [("a", {}), ("b", {})], device)
                self.assertEqual(first["output"], second["output"])
                seen.append(set(json.loads(first["output"])))
        self.assertEqual(os.sched_getaffinity(0), there)
        self.assertTrue(seen[0] <= there and seen[1] <= there)
        self.assertLessEqual(max(map(len, seen)), CPUS)
        if len(there) > 1:
            self.assertFalse(seen[0] & seen[1])

    def test_a_checksum_tells_bytes_and_their_order(self):
        torch = support.torch_or_skip()
        from digest import Checksum

        checksum = Checksum(torch, "cpu")

        def of(tensor):
            return int(checksum.of(tensor))

        generator = torch.Generator().manual_seed(1)
        x = torch.randn(3, 2 * Checksum.PIECE + 5, generator=generator)
        self.assertEqual(of(x), of(x.clone()))
        seen = {of(x), of(x.flip(0).contiguous()), of(x.flip(1).contiguous())}
        changed = x.clone()
        # Faults that leave the sum of the values as it is.
        changed[0, 7], changed[2, 9] = x[2, 9], x[0, 7]
        seen.add(of(changed))
        changed = x.clone()
        changed[1, 4] += 1
        changed[1, 5] -= 1
        seen.add(of(changed))
        # Whole pieces that change places.
        pieces = list(x.flatten().split(Checksum.PIECE))
        pieces[0], pieces[1] = pieces[1], pieces[0]
        seen.add(of(torch.cat(pieces)))
        changed = x.clone()
        changed.view(torch.int32)[2, -1] ^= 1
        seen.add(of(changed))
        self.assertEqual(len(seen), 7)

    def test_a_checksum_takes_what_programs_give(self):
        torch = support.torch_or_skip()
        from digest import Checksum

        checksum = Checksum(torch, "cpu")
        tokens = torch.arange(10)
        other = tokens.clone()
        other[3] = 4
        self.assertNotEqual(int(checksum.of(tokens)), int(checksum.of(other)))
        x = torch.randn(4, 6, 5)
        parameter = torch.nn.Parameter(x)
        given = [x, parameter, x.half()[:, 1:, :3], x.transpose(0, 2), x[0, 0, 0], x[:0]]
        given += [x > 0, (x > 0).flatten()[1:8], x.expand(2, 4, 6, 5), x.to(torch.complex64)]
        for tensor in given:
            self.assertEqual(int(checksum.of(tensor)), int(checksum.of(tensor.clone())))
        self.assertNotEqual(int(checksum.of(x)), int(checksum.of(x[:, :, :4])))

    def test_a_digest_is_of_all_outputs_in_order(self):
        torch = support.torch_or_skip()
        from digest import Digest

        with unittest.mock.patch.object(Digest, "BLOCK", 4):
            texts = []
            for faulty in (None, None, 2, 9):
                digest = Digest(torch, "cpu")
                for n in range(10):
                    digest.add(torch.full((3,), 99 if n == faulty else n))
                self.assertEqual(digest.count, 10)
                texts.append(digest.text())
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(len(set(texts)), 3)

    def test_a_digest_watches_models_losses_and_replays(self):
        torch = support.torch_or_skip()
        import digest as module

        class Graph:
            def capture_begin(self):
                pass

            def replay(self):
                pass

        class Output:
            layout, device = torch.strided, torch.device("cuda")

        hooks, capturing = torch.nn.modules.module, lambda: True
        seen = module.Digest(torch, "cpu")
        with (
            unittest.mock.patch.object(torch.cuda, "CUDAGraph", Graph),
            unittest.mock.patch.object(torch.Tensor, "backward", torch.Tensor.backward),
            unittest.mock.patch.dict(hooks._global_forward_hooks),
            unittest.mock.patch.dict(hooks._global_forward_pre_hooks),
            unittest.mock.patch.dict(hooks._global_forward_hooks_always_called),
        ):
            seen.watch()
            model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
            loss = model(torch.ones(3, 2)).sum()
            self.assertEqual(seen.count, 1)
            loss.backward()
            self.assertEqual(seen.count, 2)
            graph, other, output = Graph(), Graph(), Output()
            graph.capture_begin()
            with (
                unittest.mock.patch.object(seen, "_device", "cuda"),
                unittest.mock.patch.object(torch.cuda, "is_current_stream_capturing", capturing),
            ):
                seen.add(output)
            self.assertEqual(seen.count, 2)
            with unittest.mock.patch.object(seen, "add") as add:
                graph.replay()
                other.replay()
                add.assert_called_once_with(output)
                add.reset_mock()
                del output
                graph.replay()
                add.assert_not_called()

    def test_a_multiple_of_a_peak_is_whole_granules(self):
        import measure

        self.assertEqual(measure.ways([5 << 20])["vmm, limit 1.03"][1]["limit"], 6 << 20)
        large = measure.ways([1000 << 20])["vmm, target 1.015"][1]["target"]
        self.assertEqual(large, int((1000 << 20) * 1.015))

    def test_of_a_program_that_races_the_target_is_of_the_median_and_the_limit_of_the_most(self):
        import measure

        native = {"program": "p", "allocator": "native", "ok": True}
        runs = [{**native, "peak_requested": peak << 20} for peak in (1000, 1300, 1100)]
        failed = [{**native, "ok": False, "peak_requested": 5}, {**native, "peak_requested": None}]
        others = [{**runs[0], "limit": 7}, {**runs[0], "allocator": "vmm"}, {"what": "pairs"}]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "measured.json")
            file.write_text(json.dumps(runs + failed + others))
            peaks = measure.peaks_of(file)
        self.assertEqual(peaks, {"p": [1000 << 20, 1300 << 20, 1100 << 20]})
        ways = measure.ways(peaks["p"])
        self.assertEqual(ways["vmm, target 1.015"][1]["target"], int((1100 << 20) * 1.015))
        self.assertEqual(ways["native, limit 1.03"][1]["limit"], int((1300 << 20) * 1.03))

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
        alone = {way: run for way, run in runs("b", "a").items() if way != "expandable"}
        self.assertIn("second run", measure.verdict(alone, "vmm"))


if __name__ == "__main__":
    unittest.main()
