"""What a tile of outputs in registers is, and how long it takes.

How large it has to be follows from the analysis of the im2win thesis (section 3.2): at least as many vectors as
multiply-adds are under way at once, and no more than there are registers. The rest was fitted on Zen 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm

from tvmconv.targets.devices import cpu_of
from tvmconv.workload import ConvWorkload, channel_block

from ..space import ceil_div
from .machine import PAGE_BYTES

WEIGHT_CYCLES = 0.16
"""What a vector of the weight takes beside the multiply-adds."""

STACK_BYTES, BEYOND_STACK_CYCLES = 1024, 250
"""A tile of so many bytes is on the stack, and so in registers alone; what a larger one takes to be in memory too."""

FINISH_CYCLES = 0.22
"""What it takes to transpose, finish and store an output, for each vector of the tile."""

STORE_CYCLES = 1.5
"""What it takes to finish a vector of results and to store it as it is."""

CONFLICT_CYCLES, CONFLICTING = 11, 16
"""What it takes more for each row of a channel where channels lie whole pages apart, and so in one set of the first
cache; and how many channels are not yet too many for that."""


@dataclass(frozen=True)
class TileConfig:
    """The knobs. Sizes count outputs, where nothing else is said."""

    vectors: int
    """Vectors of output channels in a register tile."""
    vector: int
    """Lanes of a vector."""
    rows: int
    """Rows of a register tile."""
    columns: int
    """Columns of a register tile."""
    channels: int
    """Input channels that the innermost loop runs over; the taps are around it."""
    tiles: int
    """Register tiles of a task, one below the other."""
    staged: int
    """Where the input with its padding is copied to: 0 nowhere, 1 a band for each task, 2 as a whole ahead."""
    parallel: bool
    """Spread the work over the threads of the machine."""

    @property
    def block(self) -> int:
        """Output channels of a task."""
        return self.vectors * self.vector

    @property
    def outputs(self) -> int:
        """Outputs of a channel in a register tile."""
        return self.rows * self.columns


def cost(workload: ConvWorkload, config: TileConfig, target: tvm.target.Target) -> float:
    """Cycles that a core takes for an image, by its units for multiply-adds and loads and by its caches."""
    (height, width), cpu = workload.output_size, cpu_of(target)
    taps = workload.w_shape[1] * prod(workload.kernel)
    tiles = ceil_div(height, config.rows) * ceil_div(width, config.columns)
    weight_bytes = 4 * taps * config.block
    bandwidth = 64 if weight_bytes <= cpu.l1_bytes else 21 if weight_bytes <= cpu.l2_bytes or tiles == 1 else 8
    units = max(config.vectors * config.outputs, config.vectors + config.outputs) / cpu.fma_units
    step = max(units, cpu.fma_latency, 4 * config.block / bandwidth)
    step += WEIGHT_CYCLES * config.vectors + cpu.broadcast_cycles * config.outputs
    beyond_stack = BEYOND_STACK_CYCLES if 4 * config.block * config.outputs > STACK_BYTES else 0
    finish = FINISH_CYCLES * config.vectors * config.block * config.outputs
    if channel_block(workload.out_layout) > 1:
        finish = STORE_CYCLES * config.vectors * config.outputs
    elif 4 * height * width % PAGE_BYTES == 0 and config.block > CONFLICTING:
        finish += CONFLICT_CYCLES * config.block * config.rows
    return blocks(workload, config) * tiles * (taps * step + beyond_stack + finish)


def blocks(workload: ConvWorkload, config: TileConfig) -> int:
    """Blocks of output channels; none reaches into another group."""
    return workload.groups * ceil_div(workload.multiplier, config.block)
