"""What vmm tells and does beyond PyTorch's own functions."""

from .errors import VmmError
from .installing import installed
from .options import parse_bytes, parse_limit


def stats(device=None):
    """The figures of the pool of a device, as a dictionary; without a device those of all devices
    in use, by their numbers.

    Beside the counters of libvmm (`vmm_stats_t` in `vmm_torch/cpp/vmm.h` says what they count; lengths
    in bytes):

    fragmentation: the part of reserved memory that nobody asked for, 0 to 1.
    peak_fragmentation: the same of the two peaks.
    miss_ns: what the allocator costs beyond about a microsecond for each tensor: nanoseconds in which
        threads waited for memory to be made, moved or released.
    driver_calls: pieces of memory made, moved and released, and mappings removed.
    frame_kind: "device", "exportable" or "rdma": what new pieces of memory are. A device that refuses
        the kind that was asked for gives the first.
    """
    place = installed()
    if device is not None:
        return _figures(place, _index(device), _pool(place, device))
    return {number: _figures(place, number, pool) for number, pool in _pools(place).items()}


def snapshot(file, device=None):
    """Writes what a device's pool has at this moment to a file, for `vmm replay` and PyTorch's
    viewer (pytorch.org/memory_viz); gzipped if the name ends in ".gz"."""
    place = installed()
    place.library.write_snapshot(_pool(place, device), file)


def trim(keep=0, device=None, wait=False):
    """Gives idle memory back to the devices until at most `keep` bytes of each are reserved.
    Returns how many bytes went. It is made again only when it is needed, also below the target.

    Does not wait, unless told so: memory that queued work still uses stays, and goes later.
    """
    place = installed()
    keep = parse_bytes(keep, "keep")
    pools = _pools(place) if device is None else {device: _pool(place, device)}
    return sum(place.library.trim(pool, keep, wait) for pool in pools.values())


def set_limit(limit):
    """Sets the memory of each device that is never passed, in bytes or as "20GiB"; 0: none.

    One below what is reserved stops growth at once, and idle memory above it is given back. No memory
    is made because of it: that is what the target and the limit of `install` are for.
    """
    place = installed()
    place.refuse_fork()
    place.door.set_limit(parse_limit(limit))


def share_memory(*_, **__):
    """Not there yet: memory of this allocator cannot be shared with other processes."""
    raise VmmError(
        "vmm_torch cannot share CUDA memory with other processes yet: "
        "send tensors by way of the CPU"
    )


def sleep(*_, **__):
    """Not there yet: memory cannot be put to sleep."""
    raise VmmError(
        "vmm_torch cannot put memory to sleep yet: delete tensors, or move them to the CPU, and "
        "call torch.cuda.empty_cache()"
    )


def _figures(place, index, pool):
    figures = place.library.stats(pool)
    # libvmm's own is what allocators of users leave of it.
    figures["limit"] = place.door.limit(index)
    calls = ("frames_made", "frames_moved", "frames_released", "unmaps")
    figures["fragmentation"] = _unused(figures["requested_bytes"], figures["reserved_bytes"])
    figures["peak_fragmentation"] = _unused(
        figures["peak_requested_bytes"], figures["peak_reserved_bytes"]
    )
    figures["driver_calls"] = sum(figures[name] for name in calls)
    return figures


def _unused(requested, reserved):
    return max(0.0, 1 - requested / reserved) if reserved else 0.0


def _pools(place):
    place.refuse_fork()
    return place.pools()


def _pool(place, device):
    place.refuse_fork()
    index = _index(device)
    pool = place.door.pool(index)
    if not pool:
        raise VmmError(f"no memory of CUDA device {index} is in use yet")
    return pool


def _index(device):
    """The number of a CUDA device: of a number, a text such as "cuda:1", a `torch.device`, or, for
    None and "cuda", the present one."""
    import torch

    index, kind = device, "cuda"
    if device is None:
        index = None
    elif isinstance(device, bool) or not isinstance(device, int):
        try:
            named = torch.device(device)
            index, kind = named.index, named.type
        except (RuntimeError, TypeError):
            kind = None
    if kind != "cuda":
        raise VmmError(f'device is {device!r}: give the number of a CUDA device, or "cuda:0"')
    if index is None:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if not 0 <= index < torch.cuda.device_count():
        raise VmmError(
            f"there is no CUDA device {index}: PyTorch can use {torch.cuda.device_count()} here, "
            "numbered from 0"
        )
    return index
