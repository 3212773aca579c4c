"""The full door: a class of PyTorch's own interface for allocators, in C++."""

import ctypes

from . import build
from .errors import VmmError


class Full:
    """The loaded allocator."""

    name = "full"

    def __init__(self):
        path = build.allocator()
        try:
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise VmmError(
                f"{path} cannot be loaded: {error}; remove that file, so that it is made anew"
            ) from error
        self._lib.vmm_torch_pool.restype = ctypes.c_void_p
        self._lib.vmm_torch_limit.restype = ctypes.c_uint64
        self._lib.vmm_torch_set_limit.argtypes = [
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]

    def install(self, libvmm, settings):
        error = ctypes.create_string_buffer(1000)
        refused = self._lib.vmm_torch_install(
            str(libvmm).encode(), ctypes.byref(settings), error, ctypes.c_size_t(len(error))
        )
        if refused:
            raise VmmError(f"vmm_torch cannot be installed: {error.value.decode(errors='replace')}")

    def pool(self, device):
        """The pool of a device, None before its first use."""
        return self._lib.vmm_torch_pool(device)

    def limit(self, device):
        """The limit of a device that is in use, in bytes, 0 for none: that of the pool and of what
        allocators of users gave together."""
        return self._lib.vmm_torch_limit(device)

    def set_limit(self, limit):
        error = ctypes.create_string_buffer(1000)
        if self._lib.vmm_torch_set_limit(limit, error, len(error)):
            raise VmmError(error.value.decode(errors="replace"))

    def end(self):
        self._lib.vmm_torch_end()
