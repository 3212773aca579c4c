"""That each option reaches the pool: given as variables, in processes of their own."""

import ctypes
import json
import tempfile
import unittest

import support
from support import MIB

# How the memory at an address was made, as the driver tells: handle types and the flag for network
# cards of `CUmemAllocationProp`.
FRAMES = """
import ctypes, json, torch, vmm_torch
vmm_torch.install()
x = torch.ones(1 << 20, device="cuda")
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int * 2),
                ("metadata", ctypes.c_void_p), ("compression", ctypes.c_ubyte),
                ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("rest", ctypes.c_ubyte * 4)]
driver = ctypes.CDLL("libcuda.so.1")
handle, prop = ctypes.c_ulonglong(), Prop()
address = ctypes.c_void_p(x.data_ptr())
assert driver.cuMemRetainAllocationHandle(ctypes.byref(handle), address) == 0
assert driver.cuMemGetAllocationPropertiesFromHandle(ctypes.byref(prop), handle) == 0
assert driver.cuMemRelease(handle) == 0
print(json.dumps([prop.handles, prop.rdma]))
"""

# The most that is reserved when a second stream wants as much as the first one has let go, after the first
# one's work is over and before it; the target is for one of them. What is above it goes soon. In this
# order, because what is on its way out is for whoever comes.
CROSSING = """
import json, torch, vmm_torch
vmm_torch.install()
side, found = torch.cuda.Stream(), []
for busy in (False, True):
    x = torch.ones(200 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    waits = vmm_torch.stats(0)["device_waits"]
    if busy:
        torch.cuda._sleep(2_000_000_000)
    torch.cuda.reset_peak_memory_stats()
    del x
    with torch.cuda.stream(side):
        y = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    stats = vmm_torch.stats(0)
    found.append([stats["peak_reserved_bytes"] >> 20, stats["device_waits"] - waits])
    torch.cuda.synchronize()
    del y
    torch.cuda.empty_cache()
print(json.dumps(found))
"""

# What stays of memory above the target: waits until it has gone where it is to go soon, else some
# seconds.
KEEPING = """
import json, os, time, torch, vmm_torch
vmm_torch.install()
x = torch.ones(512 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
del x
end = time.monotonic() + {"short": 30, "long": 4}[os.environ["VMM_RETENTION"]]
while (left := vmm_torch.stats(0)["reserved_bytes"]) > 128 << 20 and time.monotonic() < end:
    time.sleep(0.1)
print(json.dumps(left >> 20))
"""

TELLING = """
import torch, vmm_torch
vmm_torch.install()
x = torch.ones(10, device="cuda")
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
"""


def setUpModule():
    # Each test starts processes that install; this one does not use CUDA.
    if support.gpus() == 0:
        raise unittest.SkipTest("there is no GPU here")


class Choices(unittest.TestCase):
    def run_each(self, code, variable, values, **environment):
        """What the program prints with each of the values, the processes side by side."""
        with tempfile.TemporaryDirectory() as folder:
            started = [
                support.start(code, folder, **{variable: value}, **environment) for value in values
            ]
            results = [support.ended(process, 60) for process in started]
        for status, output in results:
            self.assertEqual(status, 0, output)
        return [output for _, output in results]

    def test_frames(self):
        kinds = {"device": [0, 0], "exportable": [1, 0], "rdma": [1, 1]}
        if not can_register_memory():
            del kinds["rdma"]
        found = self.run_each(FRAMES, "VMM_FRAMES", kinds)
        self.assertEqual(dict(zip(kinds, map(json.loads, found), strict=True)), kinds)
        # In a job of several processes on this machine.
        (found,) = self.run_each(FRAMES, "WORLD_SIZE", ["2"], LOCAL_WORLD_SIZE="2")
        self.assertEqual(json.loads(found), kinds["exportable"])

    def test_memory_passes_between_streams_as_chosen(self):
        ways = ("wait", "reached", "never")
        found = self.run_each(CROSSING, "VMM_CROSS_STREAM", ways, VMM_TARGET="256MiB")
        (idle, busy), *others = map(json.loads, found)
        self.assertLess(busy[0], 300)
        self.assertGreater(busy[1], 0)
        self.assertLess(idle[0], 300)
        for (idle, busy), crosses in zip(others, (True, False), strict=True):
            self.assertGreaterEqual(busy[0], 390)
            self.assertEqual(busy[1], 0)
            self.assertEqual(idle[0] < 300, crosses, idle)

    def test_idle_memory_stays_as_long_as_chosen(self):
        ways = ("short", "long")
        short, long = self.run_each(KEEPING, "VMM_RETENTION", ways, VMM_TARGET="64MiB")
        self.assertLessEqual(json.loads(short), 128)
        self.assertGreaterEqual(json.loads(long), 500)

    def test_what_is_logged(self):
        off, info, debug = self.run_each(TELLING, "VMM_LOG", ["off", "info", "debug"])
        self.assertEqual(off, "")
        for text in (info, debug):
            self.assertIn("vmm_torch: libvmm ", text)
            self.assertIn("the full door, PyTorch ", text)
            self.assertIn("vmm_torch: made the pool of device 0\n", text)
            self.assertRegex(text, "vmm_torch: device 0: peak reserved [0-9]+, peak requested ")
        self.assertNotIn("CUDA out of memory", info)
        self.assertIn("CUDA out of memory. Tried to allocate 1.00 TiB", debug)

    def test_a_limit_and_a_target(self):
        code = """
            import json, torch, vmm_torch
            vmm_torch.install()
            x = torch.ones(10, device="cuda")
            print(json.dumps([vmm_torch.stats(0)[name] for name in ("limit", "target")]))
        """
        (found,) = self.run_each(code, "VMM_LIMIT", ["1GiB"], VMM_TARGET="0.5 GiB")
        self.assertEqual(json.loads(found), [1024 * MIB, 512 * MIB])


def can_register_memory():
    """Whether network cards can register mapped memory of the first GPU."""
    driver = ctypes.CDLL("libcuda.so.1")
    can, device = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return False
    # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    driver.cuDeviceGetAttribute(ctypes.byref(can), 110, device)
    return can.value != 0


if __name__ == "__main__":
    unittest.main()
