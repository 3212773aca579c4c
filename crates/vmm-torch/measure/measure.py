"""Measures PyTorch programs with its own allocators and with vmm, each in a process of its own.

usage: measure.py --scripts FOLDER [--out OUT.json] [--programs A,B] [--repeats N] PART...

parts:
  reserved  peak reserved over peak requested, with a target of 1.015 times the peak and without
  limited   who finishes with 1.03 times the peak requested
  time      seconds against the native allocator, without a limit and with one
  equal     outputs and losses against the native allocator's, bit by bit
  pairs     one tensor allocated and freed
  mixed     tensors replaced at random among many
  encoder   an encoder of the size of BERT-base at varying lengths
  batch     the largest batch of that in a fixed budget

FOLDER has the programs workloads.py and more_workloads.py. Prints tables in Markdown, and writes
all figures to OUT.json as they come. A process that fails is shown as what it is.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median

from allocators import ALLOCATORS

HERE = Path(__file__).resolve().parent
PROGRAMS = (
    "gpt2_train_varlen llama_lora_ckpt llama_generate bert_infer_varlen resnet_multires_train "
    "deeplab_mixed_infer gnn_sampled_train rlhf_phases moe_train serve_two_streams small_tensors "
    "frag_grow graph_decode prefetch_side_stream"
).split()


class Session:
    """What was measured so far; each run is kept for other parts to use."""

    def __init__(self, options):
        self.options = options
        self.runs = []
        self.natives = {}

    def program(self, name, allocator, **how):
        """One run of a program; a dictionary with `ok`, and with `error` where it failed."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.json")
            command = [sys.executable, str(HERE / "program.py"), "--allocator", allocator]
            command += _flags(how)
            command += [str(self.options.scripts), name, str(out)]
            result = self._run(command)
            if out.exists():
                result.update(json.loads(out.read_text()))
                result["ok"] = result["ok"] and result["status"] == 0
        return self._keep({"program": name, "allocator": allocator, **how, **result})

    def small(self, what, allocator, **how):
        command = [sys.executable, str(HERE / "small.py"), "--allocator", allocator]
        result = self._run([*command, *_flags(how), what])
        if result["status"] == 0:
            result.update(json.loads(result.pop("output").splitlines()[-1]), ok=True)
        return self._keep({"what": what, "allocator": allocator, **how, **result})

    def native(self, name):
        """The first native run of a program: its peak is what others are given."""
        if name not in self.natives:
            self.natives[name] = self.program(name, "native")
        return self.natives[name]

    def _run(self, command):
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=self.options.timeout,
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            status, output = -1, f"stopped after {self.options.timeout} s"
        result = {"ok": False, "status": status, "wall_s": time.monotonic() - begin}
        if status != 0:
            result["error"] = output[-600:]
        else:
            result["output"] = output
        return result

    def _keep(self, run):
        output = run.pop("output", None)
        if not run["ok"] and "error" not in run:
            run["error"] = (output or "no reason given")[-600:]
        self.runs.append(run)
        self.options.out.write_text(json.dumps(self.runs, indent=1))
        if not run["ok"]:
            what = run.get("program") or run["what"]
            print(f"{what}, {run['allocator']}: {run['error']}", file=sys.stderr, flush=True)
        return run


def _flags(how):
    flags = []
    for name, value in how.items():
        flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return flags


def ratio(run):
    if not run["ok"]:
        return None
    return run["peak_reserved"] / run["peak_requested"]


def reserved(session):
    rows, columns = [], [[], [], [], []]
    for name in session.options.programs:
        native = session.native(name)
        peak = native.get("peak_requested")
        runs = [native, session.program(name, "expandable")]
        if peak:
            runs.append(session.program(name, "vmm", target=int(peak * 1.015)))
        else:
            runs.append({"ok": False})
        runs.append(session.program(name, "vmm"))
        ratios = [ratio(run) for run in runs]
        for column, value in zip(columns, ratios, strict=True):
            if value:
                column.append(value)
        rows.append([name, f"{(peak or 0) / 2**30:.2f}", *map(shown, ratios)])
    means = [geometric_mean(column) if column else None for column in columns]
    rows.append(["geometric mean of those that ran", "", *map(shown, means)])
    heads = ["program", "peak requested GiB", "native", "expandable", "vmm, target 1.015", "vmm"]
    table("Peak reserved over peak requested", heads, rows)


def limited(session):
    rows = []
    for name in session.options.programs:
        peak = session.native(name).get("peak_requested")
        if not peak:
            rows.append([name, "the native run failed", "", ""])
            continue
        limit = int(peak * 1.03)
        runs = [session.program(name, allocator, limit=limit) for allocator in ALLOCATORS]
        rows.append([name, *("finished" if run["ok"] else "failed" for run in runs)])
    table("With 1.03 times the peak requested", ["program", *ALLOCATORS], rows)


def times(session):
    rows, means = [], {}
    for name in session.options.programs:
        peak = session.native(name).get("peak_requested")
        if not peak:
            rows.append([name, "the native run failed", "", "", "", ""])
            continue
        ways = {
            "native": ("native", {}),
            "expandable": ("expandable", {}),
            "vmm": ("vmm", {}),
            "vmm, target 1.015": ("vmm", {"target": int(peak * 1.015)}),
            "vmm, limit 1.03": ("vmm", {"limit": int(peak * 1.03)}),
        }
        seconds = {way: [] for way in ways}
        # In turns, so that a machine that changes its pace does so for all.
        for _ in range(session.options.repeats):
            for way, (allocator, how) in ways.items():
                run = session.program(name, allocator, **how)
                seconds[way].append(run["seconds"] if run["ok"] else None)
        middle = {w: median(s) if None not in s else None for w, s in seconds.items()}
        row = [name, shown(middle["native"])]
        for way in list(ways)[1:]:
            relative = middle[way] / middle["native"] if middle[way] and middle["native"] else None
            if relative:
                means.setdefault(way, []).append(relative)
            row.append(shown(relative))
        rows.append(row)
    names = ["expandable", "vmm", "vmm, target 1.015", "vmm, limit 1.03"]
    rows.append(
        [
            "geometric mean",
            "",
            *(shown(geometric_mean(means[n])) if n in means else "" for n in names),
        ]
    )
    heads = ["program", "native s", *names]
    table(f"Time over the native allocator's, median of {session.options.repeats}", heads, rows)


def equal(session):
    rows = []
    for name in session.options.programs:
        first, again = (session.program(name, "native", digest=True) for _ in range(2))
        ours = session.program(name, "vmm", digest=True)
        if not (first["ok"] and again["ok"] and ours["ok"]):
            verdict = "failed"
        elif first["digested"] == 0:
            verdict = "has no outputs to compare"
        elif first["digest"] != again["digest"]:
            verdict = "not deterministic: two native runs differ"
        else:
            verdict = "equal" if ours["digest"] == first["digest"] else "DIFFERENT"
        rows.append([name, str(first.get("digested", "")), verdict])
    table("Outputs and losses against the native allocator's", ["program", "values", "vmm"], rows)


def small(session, what, title, **how):
    found = {
        allocator: [session.small(what, allocator, **how) for _ in range(session.options.repeats)]
        for allocator in ALLOCATORS
    }
    names = next((r["found"] for runs in found.values() for r in runs if r["ok"]), {})
    rows = []
    for name in names:
        row = [name]
        for runs in found.values():
            values = [run["found"][name] for run in runs if run["ok"]]
            row.append(shown(median(values)) if values else "failed")
        rows.append(row)
    table(title, ["", *ALLOCATORS], rows)


def batch(session):
    budget = session.options.budget
    small(session, "batch", f"Largest batch within {budget / 2**30:g} GiB", limit=budget)


PARTS = {
    "reserved": reserved,
    "limited": limited,
    "time": times,
    "equal": equal,
    "pairs": lambda s: small(s, "pairs", "One tensor allocated and freed, ns"),
    "mixed": lambda s: small(s, "mixed", "One tensor replaced among many, ns"),
    "encoder": lambda s: small(s, "encoder", "An encoder of the size of BERT-base"),
    "batch": batch,
}


def shown(value):
    if value is None:
        return "failed"
    return f"{value:.0f}" if value >= 100 else f"{value:.3f}"


def table(title, heads, rows):
    print(f"\n### {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=list(PARTS), metavar="PART")
    parser.add_argument("--scripts", type=Path, help="where the programs lie")
    parser.add_argument("--out", type=Path, default=Path("measured.json"))
    parser.add_argument("--programs", type=lambda text: text.split(","), default=PROGRAMS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--budget", type=int, default=8 << 30, help="bytes, for batch")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one process")
    options = parser.parse_args()
    needs = {"reserved", "limited", "time", "equal"} & set(options.parts)
    if needs and not (options.scripts and (options.scripts / "workloads.py").exists()):
        parser.error(f"{', '.join(sorted(needs))}: --scripts names no folder with workloads.py")
    unknown = sorted(set(options.programs) - set(PROGRAMS))
    if unknown:
        parser.error(f"there is no program {unknown[0]}; there are {', '.join(PROGRAMS)}")
    session = Session(options)
    for part in options.parts:
        PARTS[part](session)
    failed = sum(not run["ok"] for run in session.runs)
    print(f"\n{len(session.runs)} processes, {failed} failed; figures in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
