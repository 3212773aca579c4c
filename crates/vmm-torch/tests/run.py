"""Runs the test modules, each in a process of its own, and counts.

usage: run.py [--parallel N] [--seconds S] [NAME...]

All modules, or those whose names contain one of the words; N of them side by side (6 where there is
a GPU, else 1). A module that takes longer than S seconds (120) is ended, counts as failed, and
shows where it was.
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def one(name, seconds):
    """Runs one module in this process and prints its counts as JSON on the last line."""
    # Before the parent ends this process.
    faulthandler.dump_traceback_later(max(1, seconds - 5), exit=True)
    suite = unittest.defaultTestLoader.loadTestsFromName(name)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stderr).run(suite)
    skipped = len(result.skipped)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = result.testsRun - failed - skipped
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    print(json.dumps([max(passed, 0), failed, skipped]), flush=True)
    return failed != 0


def run(name, seconds):
    """Runs one module in a process of its own and returns its counts."""
    paths = [str(FOLDER), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(Path(__file__).resolve()), "--module", name]
    process = subprocess.Popen(
        [*command, "--seconds", str(seconds)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, report = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, report = process.communicate()
        report += f"\nended after {seconds} s"
    *lines, last = output.splitlines() or [""]
    try:
        counts = json.loads(last)
    except ValueError:
        counts = [0, 1, 0]
    # A process that says it passed and then dies has failed at its end.
    if process.returncode != 0 and counts[1] == 0:
        counts[1] = 1
    shown = [f"{name}: {sentence(counts)}, exit status {process.returncode}", *lines]
    if counts[1] != 0:
        shown.append(report)
    print("\n  ".join(shown), flush=True)
    return counts


def sentence(counts):
    return "{} passed, {} failed, {} skipped".format(*counts)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parallel", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    if options.module:
        return one(options.module, options.seconds)
    names = sorted(path.stem for path in FOLDER.glob("test_*.py"))
    words = options.words
    chosen = [name for name in names if not words or any(word in name for word in words)]
    if not chosen:
        print(f"no test module matches {' '.join(words)}; there are {', '.join(names)}")
        return 2
    side_by_side = options.parallel or (6 if Path("/dev/nvidiactl").exists() else 1)
    with ThreadPoolExecutor(side_by_side) as pool:
        counts = list(pool.map(lambda name: run(name, options.seconds), chosen))
    totals = [sum(column) for column in zip(*counts, strict=True)]
    print(sentence(totals))
    return totals[1] != 0


if __name__ == "__main__":
    sys.exit(main())
