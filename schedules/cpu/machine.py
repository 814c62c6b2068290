"""What the schedules for CPUs assume of every CPU; what differs between them is in `targets.devices`."""

from __future__ import annotations

import tvm

from tvmconv.targets.devices import cpu_of

PARALLEL_FLOPS = 500_000
"""Below this, waking threads costs more than they save."""

TURNS = 32
"""Parts of the work for the threads to share, at least: enough of them to end together."""

MOST_LANES = 16
"""Float32 elements in the widest vector there is: AVX-512's."""

PAGE_BYTES = 4096
"""Elements so far apart, or a multiple of it, are in the same set of the first cache."""


def native_lanes(target: tvm.target.Target) -> int:
    """Float32 elements in the widest vector of the target."""
    return cpu_of(target).lanes


def vector_registers(target: tvm.target.Target) -> int:
    """Vector registers of the target."""
    return cpu_of(target).registers
