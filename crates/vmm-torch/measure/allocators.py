"""Choosing an allocator in the process that is measured, before CUDA is used."""

import argparse
import os
import sys
from pathlib import Path

ALLOCATORS = ("native", "expandable", "vmm")


def arguments(description):
    """The options that every measured process has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--allocator", choices=ALLOCATORS, required=True)
    parser.add_argument("--limit", type=int, default=0, help="bytes that are never passed")
    parser.add_argument("--target", type=int, default=0, help="bytes to stay under (vmm)")
    return parser


def choose(options):
    """Puts the allocator in; returns PyTorch. A limit is a fraction for PyTorch's own."""
    if options.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if options.allocator == "vmm":
        try:
            import vmm_torch
        except ImportError:
            sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
            import vmm_torch
        vmm_torch.install(limit=options.limit or None, target=options.target or None, door="full")
    import torch

    if options.limit and options.allocator != "vmm":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(options.limit / total)
    return torch


def missed():
    """Seconds in which threads of this process waited for vmm to find memory, so far; 0 for others."""
    return figures().get("miss_ns", 0) / 1e9


def figures():
    """vmm's own figures, empty for other allocators."""
    own = sys.modules.get("vmm_torch")
    return own.stats(0) if own else {}
