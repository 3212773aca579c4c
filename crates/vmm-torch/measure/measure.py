"""Measures PyTorch programs with its own allocators and with vmm, each in a process of its own.

usage: measure.py --scripts FOLDER [OPTIONS] PART...

parts:
  reserved     peak reserved over peak requested, with a target of 1.015 times the peak and without
  limited      who finishes with 1.03 times the peak requested
  equal        outputs and losses against the native allocator's, bit by bit
  time         seconds against the native allocator, without a limit and with one: of the set-up, from
               the first model that goes to the device to the first loop, and of the steps, with
               the part of it that vmm took to find memory
  allocations  one tensor allocated and freed, and tensors replaced at random among many
  encoder      an encoder of the size of BERT-base at varying lengths
  batch        the largest batch of that in a fixed budget
  distributed  all-reduce and training steps over NCCL on all the devices, one allocator at a time

The first three share their runs, N side by side on each device. In the others each allocator has a
process, and these take turns, a step at a time, while no others take any on their device; they start
side by side, and batch, which takes no time, has no steps. A device that is named twice has the next
ones start meanwhile.
A multiple of a peak is at least the whole granules of 2 MiB that the peak needs. FOLDER has the
programs workloads.py and more_workloads.py. Prints tables in Markdown, and writes all figures to a
file as they come. A process that fails is shown as what it is.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

from allocators import ALLOCATORS
from runs import Session
from small import RESERVED

PROGRAMS = (
    "gpt2_train_varlen llama_lora_ckpt llama_generate bert_infer_varlen resnet_multires_train "
    "deeplab_mixed_infer gnn_sampled_train rlhf_phases moe_train serve_two_streams small_tensors "
    "frag_grow graph_decode prefetch_side_stream"
).split()


# The smallest length of mapped memory. A multiple of the peak stands for at least the whole
# granules that the peak needs, for all allocators alike.
GRANULE = 2 << 20

# Programs of which threads race: each run needs another amount. The target is a multiple of the
# median of several native runs, the limit one of the most that any of them needed.
RACING = {"serve_two_streams"}
RACING_RUNS = 9


def multiple(peak, factor):
    return max(int(peak * factor), -(-peak // GRANULE) * GRANULE)


def ways(peaks):
    """How a program is run, by name: `(allocator, options)`. Its native runs needed `peaks`, in
    bytes."""
    target = {"target": multiple(median(peaks), 1.015)}
    limit = {"limit": multiple(max(peaks), 1.03)}
    return {
        "native": ("native", {}),
        "expandable": ("expandable", {}),
        "vmm": ("vmm", {}),
        "vmm, target 1.015": ("vmm", target),
        "native, limit 1.03": ("native", limit),
        "expandable, limit 1.03": ("expandable", limit),
        "vmm, limit 1.03": ("vmm", limit),
    }


def again(program):
    """The numbers of further native runs."""
    return range(1, RACING_RUNS) if program in RACING else ()


def native_peaks(session, programs):
    """What each program needs, by name, in bytes: a list, of one for each native run. An empty one of a
    program that fails."""
    wanted = [(name, "native", {}, n) for name in programs for n in [0, *again(name)]]
    session.side_by_side(wanted)
    runs = [(name, session.program(name, *run)) for name, *run in wanted]
    return {name: needed(run for own, run in runs if own == name) for name in programs}


def needed(runs):
    """The peaks of those that did not fail."""
    return [run["peak_requested"] for run in runs if run["ok"] and run["peak_requested"]]


def together(session, options):
    """The runs that do not depend on being alone: of each program those of `ways`, by name. Of a
    program whose native run failed only that."""
    found = {}
    wanted = []
    for name, peaks in native_peaks(session, options.programs).items():
        found[name] = {"native": session.program(name, "native", {})}
        if peaks:
            found[name] = {way: run for way, run in ways(peaks).items() if way in options.ways}
            found[name].update((f"native {n}", ("native", {}, n)) for n in again(name))
            wanted += [(name, *way) for way in found[name].values()]
    session.side_by_side(wanted)
    for name, runs in found.items():
        for way, run in runs.items():
            if isinstance(run, tuple):
                runs[way] = session.program(name, *run)
    return found


def among(options, names):
    """Those ways that were asked for."""
    return [name for name in names if name in options.ways]


def ratio(run):
    return run["peak_reserved"] / run["peak_requested"] if run and run["ok"] else None


def reserved(session, options):
    names = among(options, ["native", "expandable", "vmm, target 1.015", "vmm"])
    rows, columns = [], {name: [] for name in names}
    for program, runs in together(session, options).items():
        ratios = [ratio(runs.get(name)) for name in names]
        for name, value in zip(names, ratios, strict=True):
            if value:
                columns[name].append(value)
        peak = (runs["native"].get("peak_requested") or 0) / 2**30
        rows.append([program, f"{peak:.2f}", *map(shown, ratios)])
    means = [geometric_mean(column) if column else None for column in columns.values()]
    rows.append(["geometric mean of those that ran", "", *map(shown, means)])
    table("Peak reserved over peak requested", ["program", "peak requested GiB", *names], rows)


def limited(session, options):
    names = among(options, [f"{allocator}, limit 1.03" for allocator in ALLOCATORS])
    rows = []
    for program, runs in together(session, options).items():
        row = [("finished" if runs[n]["ok"] else "failed") if n in runs else "" for n in names]
        rows.append([program, *row])
    heads = [name.removesuffix(", limit 1.03") for name in names]
    table("With 1.03 times the peak requested", ["program", *heads], rows)


def equal(session, options):
    names = among(options, ["vmm", "vmm, target 1.015", "vmm, limit 1.03"])
    rows = []
    for program, runs in together(session, options).items():
        row = [verdict(runs, name) for name in names]
        rows.append([program, str(runs["native"].get("digested", "")), *row])
    table("Outputs and losses against the native allocator's", ["program", "values", *names], rows)


def verdict(runs, name):
    """Whether a run gave what the native one gave."""
    native, ours = runs["native"], runs.get(name)
    if not all(run and run["ok"] and "digest" in run for run in (native, ours)):
        return "failed"
    if native["digested"] == 0:
        return "has no outputs"
    if ours["digest"] == native["digest"]:
        return "equal"
    own = [run for way, run in runs.items() if not way.startswith("vmm") and run["ok"]]
    if any(other.get("digest") != native["digest"] for other in own):
        return "not deterministic: PyTorch's own differ"
    return "DIFFERENT" if len(own) > 1 else "differs; only a second run of PyTorch's own tells why"


def times(session, options):
    names = ["native", *(name for name in options.ways if name != "native")]

    def one(program, device):
        """The runs of one program in turns, by name."""
        if not peaks[program]:
            return {}
        run = partial(session.program_once, program)
        rounds = [ways(peaks[program])[name] for name in names] * options.repeats
        runs = session.in_turns(run, rounds, device)
        return {name: usual(runs[at :: len(names)]) for at, name in enumerate(names)}

    unknown = [name for name in options.programs if name not in options.peaks]
    peaks = {**options.peaks, **native_peaks(session, unknown)}
    jobs = [lambda device, program=p: one(program, device) for p in options.programs]
    rows, means = [], {name: [] for name in names[1:]}
    for program, runs in zip(options.programs, session.one_per_device(jobs), strict=True):
        native = runs.get("native", {"ok": False})
        row = [program, *(["", "", "failed"] if not native["ok"] else [])]
        if native["ok"]:
            setup = "" if native["setup"] is None else shown(native["setup"])
            row += [setup, str(len(native["steps"])), shown(sum(native["steps"]))]
        for name in names[1:]:
            ratios = relative(native, runs.get(name))
            if ratios and ratios[2]:
                means[name].append(ratios[2])
            row += ["" if r is None else shown(r) for r in ratios] if ratios else ["failed"] * 4
            row.append(percent(runs[name]["missed"]) if ratios else "failed")
        rows.append(row)
    geometric = [["", "", shown(geometric_mean(m) if m else None), "", ""] for m in means.values()]
    rows.append(["geometric mean of those that ran", "", "", "", *sum(geometric, [])])
    heads = [
        [f"{name}, set-up", "first step", "others", "median one", "in misses"] for name in names[1:]
    ]
    title = "Time over the native allocator's, all in turns, a step at a time"
    table(title, ["program", "native set-up s", "steps", "native s", *sum(heads, [])], rows)


def usual(runs):
    """A run whose times are the medians of several: what was slow once, such as a library that was
    loaded, is not the allocator's. One that failed stands for all."""
    failed = [run for run in runs if not run["ok"]]
    if failed:
        return failed[0]
    if len({len(run["steps"]) for run in runs}) > 1:
        return {"ok": False, "error": "the runs made different numbers of steps"}
    setups = [run["setup"] for run in runs]
    steps = [median(times) for times in zip(*(run["steps"] for run in runs), strict=True)]
    shares = [missed(run) for run in runs if len(steps) > 1]
    return {
        "ok": True,
        "setup": median(setups) if all(setups) else None,
        "steps": steps,
        "missed": median(shares) if shares else None,
    }


def missed(run):
    """The part of the time after the first step in which the program waited for vmm to find memory."""
    return (run["missed"][-1] - run["missed"][0]) / sum(run["steps"][1:])


def relative(native, run):
    """The time of the set-up, of the first step, which loads libraries, of all others, and of the
    median one of these, over the native allocator's; None of what there is not, and of a run that
    failed."""
    if not (native["ok"] and run and run["ok"] and len(run["steps"]) == len(native["steps"]) > 0):
        return None
    setup = run["setup"] / native["setup"] if native["setup"] and run["setup"] else None
    first = run["steps"][0] / native["steps"][0]
    own, other = run["steps"][1:], native["steps"][1:]
    if not own:
        return setup, first, None, None
    each = (a / b for a, b in zip(own, other, strict=True))
    return setup, first, sum(own) / sum(other), median(each)


def small(session, options, what, title, more=None, **how):
    """What each allocator takes, and what vmm takes with the options of `more`, by name."""
    ways = {name: (name, how) for name in ALLOCATORS}
    ways.update({name: ("vmm", {**how, **given}) for name, given in (more or {}).items()})

    def one(device):
        runs = session.in_turns(partial(session.small, what), list(ways.values()), device)
        return dict(zip(ways, runs, strict=True))

    rounds = session.one_per_device([one] * options.repeats)
    found = {name: [runs[name] for runs in rounds] for name in ways}
    names = next((r["found"] for runs in found.values() for r in runs if r["ok"]), {})
    rows, ratios = [], []
    for name in names:
        values = [[run["found"][name] for run in runs if run["ok"]] for runs in found.values()]
        row = [shown(median(v) if v else None) for v in values]
        case = name.removesuffix(RESERVED)
        (rows if case == name else ratios).append([case, *row])
    table(title, ["", *found], rows)
    if ratios:
        table("Peak reserved over peak requested meanwhile", ["", *found], ratios)


def allocations(session, options):
    small(session, options, ["pairs", "mixed"], "One allocation and one free, ns")


def encoder(session, options):
    more = {"vmm, limit 1.5 GiB": {"limit": 3 << 29}}
    small(session, options, ["encoder"], "An encoder of the size of BERT-base", more)


def batch(session, options):
    title = f"Largest batch within {options.budget / 2**30:g} GiB"
    small(session, options, ["batch"], title, limit=options.budget)


def distributed(session, options):
    order = ALLOCATORS * options.repeats
    rounds = [(name, session.distributed(name)) for name in order]
    found = {name: [run for own, run in rounds if own == name] for name in ALLOCATORS}
    names = next((run["found"] for _, run in rounds if run["ok"]), {})
    rows = []
    for name in names:
        values = [[run["found"][name] for run in runs if run["ok"]] for runs in found.values()]
        rows.append([name, *(told(own) for own in values)])
    title = f"Over NCCL, on {len(set(options.devices))} GPUs"
    table(title, ["", *found], rows)


def told(values):
    """The median of figures; of words, all that were said."""
    if not values:
        return "failed"
    words = sorted({value for value in values if isinstance(value, str)})
    return ", ".join(words) if words else shown(median(values))


PARTS = {
    "reserved": reserved,
    "limited": limited,
    "equal": equal,
    "time": times,
    "allocations": allocations,
    "encoder": encoder,
    "batch": batch,
    "distributed": distributed,
}


def shown(value):
    if value is None:
        return "failed"
    return f"{value:.0f}" if value >= 100 else f"{value:.3f}"


def percent(share):
    return "" if share is None else f"{100 * share:.2f} %"


def table(title, heads, rows):
    print(f"\n### {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row + [''] * (len(heads) - len(row)))} |")
    sys.stdout.flush()


def peaks_of(file):
    """The peaks of native runs in an earlier file of figures."""
    runs = json.loads(Path(file).read_text())
    native = [run for run in runs if run.get("program") and run["allocator"] == "native"]
    peaks = {}
    for run in (run for run in native if run["ok"] and "limit" not in run):
        peaks.setdefault(run["program"], []).extend(needed([run]))
    return peaks


def words(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=list(PARTS), metavar="PART")
    parser.add_argument("--scripts", type=Path, help="where the programs lie")
    parser.add_argument("--out", type=Path, default=Path("measured.json"))
    parser.add_argument("--programs", type=words, default=PROGRAMS)
    parser.add_argument("--devices", type=words, default=["0"], help="numbers of GPUs")
    parser.add_argument("--parallel", type=int, default=1, help="programs at once on each")
    parser.add_argument(
        "--repeats", type=int, default=1, help="runs of each way, for time and what comes behind it"
    )
    parser.add_argument(
        "--ways",
        type=lambda text: text.split(";"),
        default=list(ways([0])),
        help="of the first four parts, with ; between them",
    )
    parser.add_argument("--peaks", type=peaks_of, default={}, help="an earlier OUT.json")
    parser.add_argument("--scale", type=float, default=1.0, help="steps of a program, as a factor")
    parser.add_argument(
        "--deterministic", action="store_true", help="kernels that give the same bits each time"
    )
    parser.add_argument("--budget", type=int, default=2 << 30, help="bytes, for batch")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one process")
    options = parser.parse_args()
    needs = {"reserved", "limited", "time", "equal"} & set(options.parts)
    if needs and not (options.scripts and (options.scripts / "workloads.py").exists()):
        parser.error(f"{', '.join(sorted(needs))}: --scripts names no folder with workloads.py")
    unknown = sorted(set(options.programs) - set(PROGRAMS))
    if unknown:
        parser.error(f"there is no program {unknown[0]}; there are {', '.join(PROGRAMS)}")
    wrong = sorted(set(options.ways) - set(ways([0])))
    if wrong:
        parser.error(f"there is no way {wrong[0]!r}; there are {'; '.join(ways([0]))}")
    session = Session(
        options.scripts,
        options.out,
        options.timeout,
        options.devices,
        options.parallel,
        options.scale,
        options.deterministic,
    )
    for part in options.parts:
        PARTS[part](session, options)
    failed = sum(not run["ok"] for run in session.runs)
    print(f"\n{len(session.runs)} processes, {failed} failed; figures in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
