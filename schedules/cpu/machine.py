"""The assumptions of the schedules about every CPU; `targets.devices` has the properties that differ."""

from __future__ import annotations

from tvmconv.problem.workload import ConvWorkload

PARALLEL_FLOPS = 500_000
"""The number of operations below which waking threads costs more than they save."""

LINE_BYTES = 64
"""The bytes of a line of a cache."""

STACK_BYTES = 1024
"""The bytes of a tile's sums from which on TVM takes memory for them; fewer are on the stack, and so in registers."""


def staged_bytes(workload: ConvWorkload) -> int:
    """Bytes of an element of x or w that is copied before it is read.

    Copies of bfloat16 are in float32, by TVM, and those of integers that depthwise convolutions read, too.
    """
    return workload.itemsize if workload.dtype in ("float32", "float16") else workload.sum_bytes
