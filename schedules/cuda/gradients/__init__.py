"""The gradients of a depthwise convolution on CUDA, by its input and by its weight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tvmconv import compute
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from ...space import ceil_div, divisors, evenly
from ..machine import SUM_BYTES

BLOCK_THREADS = 128
"""The threads of a block in a default configuration, where nothing in shared memory asks for more."""

COUNTED = 64
"""The most sums that count as registers for a tile of one pixel of each phase: compilers spill the rest."""

OTHER_REGISTERS = 24
"""The registers of a thread besides its sums and what it reads: for addresses."""


LOADING, STORING, BEGINNING = 8.0, 3.0, 60.0
"""The instructions of a thread for a load with its address and the tests of whether it is in the padding, for a store
with its address, and those that it begins with, counted in machine code for sm_90."""

CACHED_LOADING = 24.0
"""The instructions of a thread for a load that serves a single product: its tests of both axes serve no other load."""

IN_FLIGHT, CACHED_IN_FLIGHT = 16, 8
"""The loads of a thread that are in flight together: of a window, and of products that read through the cache."""


def threads_of_axis(tiles: int, limit: int) -> int:
    """Return the number of threads of a block along an axis, for a number of tiles along a plane.

    It is the largest divisor up to `limit`, unless an even split allows more than twice as many threads.
    """
    whole, even = divisors(tiles, limit)[-1], evenly(tiles, limit)
    return even if even > 2 * whole else whole


window_shape = lru_cache(maxsize=1024)(compute.window_shape)  # asked for each of thousands of configurations


def obstacle(problem: Problem) -> str | None:
    """Return why a problem's workload has no gradient here; None for a depthwise one."""
    return None if problem.is_depthwise else "is for depthwise convolutions"


def obstacle_in_nhwc(problem: Problem, max_taps: int) -> str | None:
    """Return why a gradient in NHWC does not take a problem; None where it does."""
    workload = problem.workload
    if (reason := obstacle(problem)) is not None:
        return reason
    if workload.multiplier > 1:
        return f"takes one output for each channel, not {workload.multiplier}"
    taps = workload.kernel[0] * workload.kernel[1]
    return None if taps <= max_taps else f"takes kernels of at most {max_taps} taps, not {taps}"


def parts_bytes(workload: ConvWorkload, parts: int) -> int:
    """Return the bytes that are written, and read by a second kernel, for sums of several parts; 0 for one part."""
    return 2 * SUM_BYTES * parts * prod(workload.w_shape) if parts > 1 else 0


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

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of a block, of each phase."""
        return self.threads_y * self.thread_y, self.threads_x * self.thread_x

    def is_cut(self, workload: ConvWorkload) -> bool:
        """Return whether a strided gradient's last blocks pass the plane in both axes, and a row has several blocks.

        For windows in registers TVM then generates code for each combination of conditions: up to 233 KB instead of
        about 20 KB, which took up to 17 times as long as other tiles on an H200.
        """
        (height, width), (rows, columns) = compute.phase_sizes(workload), self.sides
        return max(workload.stride) > 1 and height % rows != 0 and width % columns != 0 and columns < width

    def block_elements(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the elements of the output's gradient that a block reads in each channel, and those that it writes."""
        across = zip(self.sides, workload.window, workload.stride, strict=True)
        read = prod(side + ceil_div(size, step) - 1 for side, size, step in across)
        return read, prod(self.sides) * prod(workload.stride)
