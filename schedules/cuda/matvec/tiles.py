"""The knobs of linear layers of few rows on CUDA, and sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `rows` output channels, for all rows of x."""

    warps: int
    """The number of warps along a sum."""
    rows: int
    """The number of output channels of a block, each with threads of its own."""
    ahead: int
    """The number of vectors of a weight that a thread loads before it uses the first one."""

    @property
    def lanes(self) -> int:
        """The number of threads along a sum."""
        return self.warps * WARP

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


def vector(workload: ConvWorkload) -> int:
    """Return the elements that a thread loads at once: up to 16 bytes, of which rows of a weight have whole numbers."""
    return gcd(COPY_BYTES // workload.itemsize, workload.in_channels)


OTHER_REGISTERS = 16
"""The registers of a thread beside vectors and sums, which NVRTC takes for sm_90."""


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers that a thread takes: for vectors of the weight and of each row of x, and for sums."""
    words = ceil_div(vector(workload) * workload.itemsize, 4)
    return config.ahead * words * (1 + workload.batch) + workload.batch + OTHER_REGISTERS


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of shared memory of a block: its sums, and, if warps share one, those of each and a result."""
    sums = config.rows * workload.batch
    return 4 * (sums + (config.warps * sums + config.rows if config.warps > 1 else 0))


def chunks(workload: ConvWorkload, config: Config) -> int:
    """Return how many times a thread waits for vectors."""
    return ceil_div(workload.in_channels // vector(workload), config.lanes * config.ahead)


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    return ceil_div(workload.out_channels, config.rows)
