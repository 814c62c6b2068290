"""What the schedules for CPUs assume of the machine."""

from __future__ import annotations

from functools import lru_cache

import tvm
from tvm.target import codegen

PARALLEL_FLOPS = 500_000
"""Below this, waking threads costs more than they save."""

TURNS = 32
"""Parts of the work for the threads to share, at least: enough of them to end together."""

FMA_UNITS = 2
"""Vector multiply-adds, and vector loads, that begin in a cycle."""

FMA_LATENCY = 4
"""Cycles until the result of a multiply-add can be added to."""

MOST_LANES = 16
"""Float32 elements in the widest vector there is: AVX-512's."""

L1_BYTES, L2_BYTES = 32 * 1024, 768 * 1024
"""How much of the first and second cache a schedule counts on for what it reads again and again."""

PAGE_BYTES = 4096
"""Elements so far apart, or a multiple of it, are in the same set of the first cache."""

L3_BYTES = 16 * 1024 * 1024
"""Of weights that stay in the last cache from one call of a network to the next; those of a larger one come from memory
each time."""


@lru_cache(maxsize=64)  # estimates ask for each configuration of a space, and LLVM takes 0.1 ms for a feature
def native_lanes(target: tvm.target.Target) -> int:
    """Float32 elements in the widest vector of the target."""
    # llvm_get_vector_width answers 512 for every x86.
    if not str(target.attrs.get("mtriple", "x86_64")).startswith("x86_64"):
        return int(codegen.llvm_get_vector_width(target)) // 32
    widths = (("avx512f", 16), ("avx2", 8))
    return next((lanes for feature, lanes in widths if codegen.target_has_features(feature, target)), 4)


def vector_registers(target: tvm.target.Target) -> int:
    """Vector registers of the target: AVX-512 and the 64-bit ARM have 32, what came before on x86 has 16."""
    x86 = str(target.attrs.get("mtriple", "x86_64")).startswith("x86_64")
    return 16 if x86 and native_lanes(target) < 16 else 32
