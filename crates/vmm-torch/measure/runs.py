"""Runs programs in processes of their own, several side by side, and keeps what they found."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import turns

HERE = Path(__file__).resolve().parent

# Processors of a process that takes turns: for its main thread, one that computes gradients, one
# that reads ahead and the pool's.
CPUS = 4


class Session:
    """What was measured so far; runs that two parts want are made once."""

    def __init__(self, scripts, out, timeout, devices, parallel, scale=1.0, deterministic=False):
        self.runs = []
        self._scripts, self._out, self._timeout = scripts, out, timeout
        self._scale, self._deterministic = scale, deterministic
        self._lock = threading.Lock()
        self._kept = {}
        self._devices = devices
        # One for each device: who holds it makes its steps there alone.
        self._alone = {device: threading.Lock() for device in devices}
        self._slots = queue.Queue()
        for device in devices * parallel:
            self._slots.put(device)
        self._pool = ThreadPoolExecutor(len(devices) * parallel)

    def side_by_side(self, wanted):
        """Makes the runs, given as what `program` takes, that are not there yet, longest first."""
        first = {run[0]: self._kept.get((run[0], "native", (), 0)) for run in wanted}
        wanted = sorted(wanted, key=lambda run: -((first[run[0]] or {}).get("wall_s", 0)))
        list(self._pool.map(lambda run: self.program(*run), wanted))

    def program(self, name, allocator, how, again=0):
        """The run of a program that other parts may share; its outputs go into a digest. With
        another number, another run of it."""
        key = (name, allocator, tuple(sorted(how.items())), again)
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            device = self._slots.get()
            try:
                found = self.program_once(name, allocator, {**how, "digest": True}, device)
            finally:
                self._slots.put(device)
            with self._lock:
                self._kept[key] = found
        return found

    def one_per_device(self, jobs):
        """Calls each job with a device, as many at once as are listed; what they return, in their
        order. Of a device that is listed twice, the next job gets ready while one takes turns."""
        free = queue.Queue()
        for device in self._devices:
            free.put(device)

        def call(job):
            device = free.get()
            try:
                return job(device)
            finally:
                free.put(device)

        with ThreadPoolExecutor(len(self._devices)) as pool:
            return list(pool.map(call, jobs))

    def in_turns(self, run, ways, device):
        """What `run` (`small` or `program_once`, with its first argument) returns for each of the ways
        `(allocator, how)`, which make their steps in turns on one device."""
        conductor = turns.Conductor(len(ways))
        alone = self._alone[device]
        cpus = self._cpus(device)
        # They wait for each other, and for those that take turns on the device before.
        sharing = len(ways) * self._devices.count(device)

        def one(way, ends):
            # For this thread; the process that it starts inherits them.
            os.sched_setaffinity(0, cpus)
            return run(*way, device, ends, sharing)

        with ThreadPoolExecutor(len(ways)) as pool:
            found = pool.map(one, ways, conductor.ends)
            with alone:
                conductor.conduct()
            return list(found)

    def _cpus(self, device):
        """The few processors for those that take turns on a device: one after the other on the same
        ones, for neighbours on the machine slow some down and others not."""
        there = sorted(os.sched_getaffinity(0))
        devices = list(dict.fromkeys(self._devices))
        share = len(there) // len(devices)
        first = devices.index(device) * share
        return there[first : first + max(1, min(CPUS, share))]

    def small(self, what, allocator, how, device, turn, sharing):
        command = [sys.executable, str(HERE / "small.py"), "--allocator", allocator, *_turn(turn)]
        result = self._run([*command, *_flags(how), *what], device, turn, sharing)
        if result["status"] == 0:
            result.update(json.loads(result.pop("output").splitlines()[-1]), ok=True)
        return self._keep({"what": " ".join(what), "allocator": allocator, **how, **result})

    def distributed(self, allocator):
        """A run of distributed.py on all devices."""
        command = [sys.executable, str(HERE / "distributed.py"), "--allocator", allocator]
        devices = ",".join(dict.fromkeys(self._devices))
        result = self._run(command, devices, (), 1)
        if result["status"] == 0:
            result.update(json.loads(result.pop("output").splitlines()[-1]), ok=True)
        return self._keep({"what": "distributed", "allocator": allocator, **result})

    def program_once(self, name, allocator, how, device, turn=(), sharing=1):
        """A run of a program that no other part shares."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.json")
            command = [sys.executable, str(HERE / "program.py"), "--allocator", allocator]
            command += [*_flags(how), "--scale", str(self._scale)]
            command += ["--deterministic"] if self._deterministic else []
            command += _turn(turn)
            command += [str(self._scripts), name, str(out)]
            result = self._run(command, device, turn, sharing)
            if out.exists():
                result.update(json.loads(out.read_text()))
                result["ok"] = result["ok"] and result["status"] == 0
        return self._keep({"program": name, "allocator": allocator, **how, **result})

    def _run(self, command, device, turn, sharing):
        # One that takes turns waits for the others too.
        timeout = self._timeout * sharing
        begin = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": device},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=turn,
                start_new_session=True,
            )
        finally:
            for end in turn:
                os.close(end)
        try:
            output = process.communicate(timeout=timeout)[0]
            status = process.returncode
        except subprocess.TimeoutExpired:
            # With those that it has started.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            status, output = -1, f"stopped after {timeout} s"
        result = {"ok": False, "status": status, "wall_s": time.monotonic() - begin}
        result["output" if status == 0 else "error"] = output if status == 0 else output[-600:]
        return result

    def _keep(self, run):
        output = run.pop("output", None)
        if not run["ok"] and "error" not in run:
            run["error"] = (output or "no reason given")[-600:]
        with self._lock:
            self.runs.append(run)
            self._out.write_text(json.dumps(self.runs, indent=1))
            if not run["ok"]:
                what = run.get("program") or run["what"]
                print(f"{what}, {run['allocator']}: {run['error']}", file=sys.stderr, flush=True)
        return run


def _turn(turn):
    return ["--turns", ",".join(map(str, turn))] if turn else []


def _flags(how):
    flags = []
    for name, value in how.items():
        flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return flags
