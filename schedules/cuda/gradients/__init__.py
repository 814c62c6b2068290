"""The gradients of a depthwise convolution on CUDA, by its input and by its weight."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class InputTiles:
    """The knobs of both gradients by the input. Sizes along planes count elements of each phase of the stride."""

    threads_c: int
    """The number of threads of a block along the channels."""
    threads_y: int
    threads_x: int
    thread_y: int
    """The number of neighbouring rows of a thread."""
    thread_x: int
    """The number of neighbouring columns of a thread."""

    @property
    def threads(self) -> int:
        return self.threads_c * self.threads_y * self.threads_x

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and columns of a thread."""
        return self.thread_y, self.thread_x
