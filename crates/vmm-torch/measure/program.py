"""Runs one of the recorded programs with an allocator and writes what it took as JSON.

usage: program.py --allocator native|expandable|vmm [--limit BYTES] [--target BYTES] [--digest]
                  [--deterministic] [--scale X] [--turns IN,OUT] FOLDER NAME OUT.json

FOLDER has workloads.py and more_workloads.py. With --digest the outputs of models and the losses go
into a digest, which costs some time. With --deterministic PyTorch takes deterministic kernels where
it has them, which costs more. With --turns it makes its steps in turns with other processes.
"""

import hashlib
import json
import os
import runpy
import struct
import sys
import threading
import traceback
from pathlib import Path

import allocators
import turns


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


class Digest:
    """What comes out of outermost modules and what backward starts from, as sums in the order of
    calls. They stay on the device until the end, so that the program runs as it would."""

    MOST = 1 << 15

    def __init__(self, torch):
        self._torch = torch
        self._sums = None
        self._lock = threading.Lock()
        self._inside = threading.local()
        self.count = 0
        module = torch.nn.modules.module
        module.register_module_forward_pre_hook(self._enter)
        module.register_module_forward_hook(self._leave, always_call=True)
        backward = torch.Tensor.backward

        def noted(tensor, *given, **named):
            self._add(tensor)
            return backward(tensor, *given, **named)

        torch.Tensor.backward = noted

    def text(self):
        if self._sums is None:
            return ""
        self._torch.cuda.synchronize()
        values = self._sums[: self.count].tolist()
        return hashlib.sha256(struct.pack(f"<{len(values)}d", *values)).hexdigest()[:16]

    def _enter(self, module, inputs):
        self._inside.depth = getattr(self._inside, "depth", 0) + 1

    def _leave(self, module, inputs, output):
        self._inside.depth -= 1
        if self._inside.depth == 0:
            if self._torch.is_tensor(output):
                output = [output]
            elif hasattr(output, "values"):
                output = output.values()
            for value in output or ():
                if self._torch.is_tensor(value):
                    self._add(value)

    def _add(self, tensor):
        torch = self._torch
        if not (tensor.is_cuda and tensor.is_floating_point()):
            return
        if torch.cuda.is_current_stream_capturing():
            return
        with torch.no_grad(), self._lock:
            if self._sums is None:
                self._sums = torch.zeros(self.MOST, dtype=torch.float64, device="cuda")
                torch.cuda.synchronize()
            if self.count < self.MOST:
                self._sums[self.count] = tensor.detach().sum(dtype=torch.float64)
                self.count += 1


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
            # The attention of cuDNN gives other bits each time, which PyTorch does not warn of.
            torch.backends.cuda.enable_cudnn_sdp(False)
        if options.name in RACES:
            order_streams(torch)
        if options.digest:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            digest = Digest(torch)
        scripts = options.folder.resolve()
        os.chdir(scripts)
        text = (scripts / "workloads.py").read_text()
        script = "workloads.py" if f"def {options.name}(" in text else "more_workloads.py"
        sys.argv = [script, options.name, str(out), "--scale", str(options.scale)]
        if options.turns:
            steps = turns.Turns(torch.cuda.synchronize, *options.turns)
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
            result["steps"] = steps.seconds
        out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
