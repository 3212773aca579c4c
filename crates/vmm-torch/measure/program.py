"""Runs one of the recorded programs with an allocator and writes what it took as JSON.

usage: program.py --allocator native|expandable|vmm [--limit BYTES] [--target BYTES] [--digest]
                  [--deterministic] [--scale X] [--turns IN,OUT] FOLDER NAME OUT.json

FOLDER has workloads.py and more_workloads.py. With --digest the bytes of outputs of models and of
losses go into a digest, which costs some time. With --deterministic PyTorch takes deterministic kernels where
it has them, which costs more. With --turns it makes its steps in turns with other processes.
"""

import json
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path

import allocators
import turns
from digest import Digest

# Programs that use on a stream what another one has not finished: whether they work depends on
# what else the device does. Their streams begin after the work that was queued before.
RACES = {"graph_decode"}


def order_streams(torch):
    """Makes a stream that is entered wait for the one that was current before."""
    enter = torch.cuda.StreamContext.__enter__

    def ordered(context):
        if context.stream is not None:
            context.stream.wait_stream(torch.cuda.current_stream(context.stream.device))
        return enter(context)

    torch.cuda.StreamContext.__enter__ = ordered


def fail_with_threads(failed):
    """Notes exceptions that end a thread: programs of several threads go on without it."""
    tell = threading.excepthook

    def noted(args):
        failed.append(f"in a thread: {args.exc_value}")
        tell(args)

    threading.excepthook = noted


def begin_with_models(torch, begin):
    """Calls `begin` before a model goes to the device."""
    to = torch.nn.Module.to

    def begun(module, *given, **named):
        begin()
        return to(module, *given, **named)

    torch.nn.Module.to = begun


def main():
    parser = allocators.arguments(__doc__)
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--turns", type=turns.parsed)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    out = options.out.resolve()
    digest = steps = None
    result = {"ok": False}
    failed = []
    fail_with_threads(failed)
    try:
        torch = allocators.choose(options)
        if options.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
            # Attention in plain operations: that of cuDNN gives other bits each time, which PyTorch does
            # not warn of.
            for fused in ("cudnn", "flash", "mem_efficient"):
                getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
            # What an allocator could get wrong must not be hidden.
            torch.utils.deterministic.fill_uninitialized_memory = False
        if options.name in RACES:
            order_streams(torch)
        if options.digest:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            digest = Digest(torch)
            digest.watch()
        scripts = options.folder.resolve()
        os.chdir(scripts)
        text = (scripts / "workloads.py").read_text()
        script = "workloads.py" if f"def {options.name}(" in text else "more_workloads.py"
        sys.argv = [script, options.name, str(out), "--scale", str(options.scale)]
        if options.turns:
            steps = turns.Turns(torch.cuda.synchronize, *options.turns, allocators.missed)
            # CUDA itself starts before the first turn, with every allocator.
            torch.cuda.synchronize()
            begin_with_models(torch, steps.begin)
        globals_ = {"range": steps.range} if steps else {}
        runpy.run_path(script, globals_, run_name="__main__")
        result = json.loads(out.read_text())
        if failed:
            result.update(ok=False, error=failed[0][-600:])
    except BaseException:
        result["error"] = traceback.format_exc()[-600:]
        raise
    finally:
        try:
            if digest is not None:
                result["digest"], result["digested"] = digest.text(), digest.count
            result["vmm"] = allocators.figures()
        except Exception as error:
            result["figures_failed"] = repr(error)
        if steps:
            steps.end() if result["ok"] else steps.leave()
            result.update(setup=steps.setup, steps=steps.seconds, missed=steps.notes)
        out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
