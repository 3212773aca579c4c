"""What a program gives, as a digest: two runs with the same one gave the same bytes."""

import hashlib
import struct
import threading
import weakref


class Checksum:
    """A sum of the words of a tensor, each weighted by its place, made on the tensor's device.
    Changed bytes, and bytes in another order, give another sum. Takes little memory beside it."""

    # Words at a time.
    PIECE = 1 << 17

    def __init__(self, torch, device):
        self._torch = torch
        # Not the program's random numbers. An odd weight loses no bit.
        generator = torch.Generator().manual_seed(0)
        weights = torch.randint(-(1 << 62), 1 << 62, (2, self.PIECE), generator=generator) | 1
        self._of_words, self._of_pieces = weights.to(device)

    def of(self, tensor):
        """The sum, an integer on the device that wraps around."""
        torch = self._torch
        tensor = tensor.detach()
        # As it lies in memory, so that one without gaps need not be copied.
        order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
        lying = tensor.permute(order)
        lying = lying if lying.is_contiguous() else tensor.contiguous()
        words = lying.view(-1).view(torch.uint8)
        if words.numel() % 4 == 0 and words.storage_offset() % 4 == 0:
            words = words.view(torch.int32)
        pieces = words.split(self.PIECE)
        sums = torch.empty(len(pieces), dtype=torch.int64, device=tensor.device)
        for at, piece in enumerate(pieces):
            torch.sum(piece * self._of_words[: len(piece)], 0, out=sums[at])
        return (sums * self._of_pieces[: len(sums)]).sum()


class Digest:
    """What comes out of outermost modules and what backward starts from, in the order of calls;
    what came out while a graph was captured, after each replay. The sums stay on the device until
    the end, so that the program runs as it would."""

    # Sums in a piece of memory.
    BLOCK = 1 << 15

    def __init__(self, torch, device="cuda"):
        self._torch = torch
        self._device = device
        self._checksum = None
        self._blocks = []
        self._lock = threading.Lock()
        self._own = threading.local()
        # Tensors of graphs, which may end before those.
        self._captured = weakref.WeakKeyDictionary()
        self.count = 0

    def watch(self):
        """Looks at all modules, calls of backward and graphs from now on."""
        torch = self._torch
        module = torch.nn.modules.module
        module.register_module_forward_pre_hook(self._enter)
        module.register_module_forward_hook(self._leave, always_call=True)
        graph = torch.cuda.CUDAGraph
        backward, begin, replay = torch.Tensor.backward, graph.capture_begin, graph.replay

        def noted_backward(tensor, *given, **named):
            self.add(tensor)
            return backward(tensor, *given, **named)

        def noted_begin(graph, *given, **named):
            self._own.graph = graph
            return begin(graph, *given, **named)

        def noted_replay(graph):
            replay(graph)
            for captured in self._captured.get(graph, ()):
                tensor = captured()
                if tensor is not None:
                    self.add(tensor)

        torch.Tensor.backward = noted_backward
        graph.capture_begin, graph.replay = noted_begin, noted_replay

    def add(self, tensor):
        """Notes a tensor, if it lies on the device."""
        torch = self._torch
        if tensor.device.type != self._device or tensor.layout != torch.strided:
            return
        if self._device == "cuda" and torch.cuda.is_current_stream_capturing():
            graph = getattr(self._own, "graph", None)
            if graph is not None:
                self._captured.setdefault(graph, []).append(weakref.ref(tensor))
            return
        with torch.no_grad(), self._lock:
            if self._checksum is None:
                self._checksum = Checksum(torch, self._device)
            at = self.count % self.BLOCK
            if at == 0:
                self._blocks.append(torch.zeros(self.BLOCK, dtype=torch.int64, device=self._device))
                # Other streams write there too.
                self._wait()
            self._blocks[-1][at] = self._checksum.of(tensor)
            self.count += 1

    def text(self):
        """The digest of all that was noted."""
        self._wait()
        sums = [value for block in self._blocks for value in block.tolist()][: self.count]
        return hashlib.sha256(struct.pack(f"<{len(sums)}q", *sums)).hexdigest()[:16]

    def _wait(self):
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def _enter(self, module, inputs):
        self._own.depth = getattr(self._own, "depth", 0) + 1

    def _leave(self, module, inputs, output):
        self._own.depth -= 1
        if self._own.depth == 0:
            if self._torch.is_tensor(output):
                output = [output]
            elif hasattr(output, "values"):
                output = output.values()
            for value in output or ():
                if self._torch.is_tensor(value):
                    self.add(value)
