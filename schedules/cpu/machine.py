"""The properties of the machine that the schedules for CPUs assume."""

from __future__ import annotations

import tvm
from tvm.target import codegen

from tvmconv.workload import ConvWorkload

PARALLEL_FLOPS = 500_000
"""The number of operations below which waking threads costs more than they save."""

TURNS = 32
"""The least number of parts of the work that threads share: enough of them to end together."""

FMA_UNITS = 2
"""The number of vector multiply-adds, and of vector loads, that begin in a cycle."""

FMA_LATENCY = 4
"""The cycles until the result of a multiply-add can be added to."""

MOST_LANES = 16
"""The number of float32 elements in the widest vector there is: AVX-512's."""

L1_BYTES, L2_BYTES = 32 * 1024, 768 * 1024
"""The bytes of the first and second cache that a schedule counts on for data read again and again."""

PAGE_BYTES = 4096
"""The bytes of a page: elements so far apart, or a multiple of it, are in the same set of the first cache."""

L3_BYTES = 16 * 1024 * 1024
"""The bytes of weights that stay in the last cache from one call of a network to the next.

The weights of a larger network come from memory each time.
"""


def native_lanes(target: tvm.target.Target) -> int:
    """Return the number of float32 elements in the widest vector of the target."""
    # llvm_get_vector_width answers 512 for every x86.
    if not str(target.attrs.get("mtriple", "x86_64")).startswith("x86_64"):
        return int(codegen.llvm_get_vector_width(target)) // 32
    widths = (("avx512f", 16), ("avx2", 8))
    return next((lanes for feature, lanes in widths if codegen.target_has_features(feature, target)), 4)


def staged_bytes(workload: ConvWorkload) -> int:
    """Bytes of an element of x or w that is copied before it is read: TVM keeps copies of bfloat16 in float32."""
    return workload.sum_bytes if workload.dtype == "bfloat16" else workload.itemsize


def vector_registers(target: tvm.target.Target) -> int:
    """Return the number of vector registers: AVX-512 and the 64-bit ARM have 32, older x86 has 16."""
    x86 = str(target.attrs.get("mtriple", "x86_64")).startswith("x86_64")
    return 16 if x86 and native_lanes(target) < 16 else 32
