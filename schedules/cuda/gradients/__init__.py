"""The gradients of a depthwise convolution on CUDA, by its input and by its weight."""

from __future__ import annotations

from tvmconv.problem import Problem

BLOCK_THREADS = 128
"""The threads of a block in a default configuration, where nothing in shared memory asks for more."""

COUNTED = 64
"""The most sums that count as registers for a tile of one pixel of each phase: compilers spill the rest."""

OTHER_REGISTERS = 24
"""The registers of a thread beside its sums and what it reads, for addresses."""


def obstacle(problem: Problem) -> str | None:
    """Return why a problem's workload has no gradient here; None for a depthwise one."""
    return None if problem.is_depthwise else "is for depthwise convolutions"


def obstacle_in_nhwc(problem: Problem, most_taps: int) -> str | None:
    """Return why registers do not hold the sums of a gradient in NHWC; None where they do."""
    workload = problem.workload
    if (reason := obstacle(problem)) is not None:
        return reason
    if workload.multiplier > 1:
        return f"takes one output for each channel, not {workload.multiplier}"
    taps = workload.kernel[0] * workload.kernel[1]
    return None if taps <= most_taps else f"takes kernels of at most {most_taps} taps, not {taps}"
