"""Runs the test modules, each in a process of its own, and counts.

usage: run.py [NAME...]        all modules, or those whose names contain one of the words
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def one(name):
    """Runs one module in this process and prints its counts as JSON on the last line."""
    suite = unittest.defaultTestLoader.loadTestsFromName(name)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stderr).run(suite)
    skipped = len(result.skipped)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = result.testsRun - failed - skipped
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    print(json.dumps([max(passed, 0), failed, skipped]), flush=True)
    return failed != 0


def run(name):
    """Runs one module in a process of its own and returns its counts."""
    paths = [str(FOLDER), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(Path(__file__).resolve()), "--module", name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    *lines, last = done.stdout.splitlines() or [""]
    print(f"{name}: exit status {done.returncode}", *lines, sep="\n  ", flush=True)
    try:
        passed, failed, skipped = json.loads(last)
    except ValueError:
        return [0, 1, 0]
    # A process that says it passed and then dies has failed at its end.
    return [passed, failed + (done.returncode != 0 and failed == 0), skipped]


def main():
    if sys.argv[1:2] == ["--module"]:
        return one(sys.argv[2])
    words = sys.argv[1:]
    names = sorted(path.stem for path in FOLDER.glob("test_*.py"))
    chosen = [name for name in names if not words or any(word in name for word in words)]
    if not chosen:
        print(f"no test module matches {' '.join(words)}; there are {', '.join(names)}")
        return 2
    totals = [sum(column) for column in zip(*map(run, chosen), strict=True)]
    print("{} passed, {} failed, {} skipped".format(*totals))
    return totals[1] != 0


if __name__ == "__main__":
    sys.exit(main())
