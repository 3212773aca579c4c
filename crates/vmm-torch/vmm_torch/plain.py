"""The plain door: PyTorch's pluggable allocator, where there is no compiler.

All hooks that PyTorch offers are set, so that `record_stream`, `empty_cache`, memory fractions and
graph captures are right. What it does not offer for such allocators (memory statistics and
snapshots, `torch.cuda.MemPool`, `cudnn.benchmark`, graph trees of `torch.compile`) it refuses
itself, in words. Out of memory is a RuntimeError here, not a `torch.OutOfMemoryError`.
"""

import ctypes
import os

from . import build
from .errors import VmmError
from .library import FOLDER

_HOOKS = {
    "set_reset_fn": "vmm_plain_empty",
    "set_memory_fraction_fn": "vmm_plain_fraction",
    "set_base_alloc_fn": "vmm_plain_base",
    "set_record_stream_fn": "vmm_plain_used_on",
    "set_begin_allocate_to_pool": "vmm_plain_begin",
    "set_end_allocate_to_pool_fn": "vmm_plain_end",
    "set_release_pool": "vmm_plain_release_pool",
}


class Plain:
    """The loaded functions."""

    name = "plain"

    def __init__(self):
        self._path = FOLDER / "libvmm_plain.so"
        if not os.path.exists(self._path):
            raise VmmError(
                f"{self._path} is missing: install vmm_torch from its wheel, or use "
                'install(door="full"), which needs a C++ compiler'
            )
        try:
            self._lib = ctypes.CDLL(str(self._path))
        except OSError as error:
            raise VmmError(
                f"{self._path} cannot be loaded: {error}; install vmm_torch from its wheel anew"
            ) from error
        self._lib.vmm_torch_pool.restype = ctypes.c_void_p
        self._lib.vmm_torch_limit.restype = ctypes.c_uint64
        self._lib.vmm_torch_set_limit.argtypes = [
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]

    def install(self, libvmm, settings):
        import torch

        runtime = build.loaded("libcudart.so")
        if runtime is None:
            raise VmmError("this PyTorch loads no CUDA runtime: is it a build for CUDA?")
        # On which a graph is captured. The library keeps the function, so this does too.
        self._current_stream = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(
            lambda device: torch.cuda.current_stream(device).cuda_stream
        )
        error = ctypes.create_string_buffer(1000)
        refused = self._lib.vmm_torch_install(
            str(libvmm).encode(),
            runtime.encode(),
            self._current_stream,
            ctypes.byref(settings),
            error,
            ctypes.c_size_t(len(error)),
        )
        if refused:
            raise VmmError(f"vmm_torch cannot be installed: {error.value.decode(errors='replace')}")
        memory = torch.cuda.memory
        allocator = memory.CUDAPluggableAllocator(
            str(self._path), "vmm_plain_allocate", "vmm_plain_release"
        )
        for setter, function in _HOOKS.items():
            if not hasattr(allocator.allocator(), setter):
                raise VmmError(
                    f"PyTorch {torch.__version__} has no {setter} for pluggable allocators, "
                    "without which memory would be reused too early: "
                    "use the full door, with a C++ compiler"
                )
            address = ctypes.cast(getattr(self._lib, function), ctypes.c_void_p).value
            getattr(allocator.allocator(), setter)(address)
        try:
            memory.change_current_allocator(allocator)
        except RuntimeError as failure:
            raise VmmError(
                f"vmm_torch cannot be installed: {failure}; call vmm_torch.install() before "
                "anything asks CUDA, and put in no other allocator"
            ) from failure

    def pool(self, device):
        """The pool of a device, None before its first use."""
        return self._lib.vmm_torch_pool(device)

    def limit(self, device):
        """The limit of a device that is in use, in bytes, 0 for none."""
        return self._lib.vmm_torch_limit(device)

    def set_limit(self, limit):
        error = ctypes.create_string_buffer(1000)
        if self._lib.vmm_torch_set_limit(limit, error, len(error)):
            raise VmmError(error.value.decode(errors="replace"))

    def end(self):
        pass
