"""What a tile of outputs in registers is, and how long it takes.

How large it has to be follows from the analysis of the im2win thesis (section 3.2): at least as many vectors as
multiply-adds are under way at once, and no more than there are registers. The rest was fitted on Zen 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm

from tvmconv.workload import ConvWorkload, channel_block

from ..space import ceil_div
from .machine import FMA_LATENCY, FMA_UNITS, L1_BYTES, L2_BYTES, PAGE_BYTES, staged_bytes, vector_registers

WEIGHT_CYCLES, INPUT_CYCLES = 0.16, 0.05
"""What a vector of the weight, and what an input that is broadcast, takes beside the multiply-adds."""

LOADED_INPUT_CYCLES = 0.15
"""The same for an input before AVX-512, where no multiply-add broadcasts it by itself; measured on Zen 3."""

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
    height, width = workload.output_size
    taps = workload.w_shape[1] * prod(workload.kernel)
    tiles = ceil_div(height, config.rows) * ceil_div(width, config.columns)
    vector_bytes = staged_bytes(workload) * config.block
    weight_bytes = taps * vector_bytes
    bandwidth = 64 if weight_bytes <= L1_BYTES else 21 if weight_bytes <= L2_BYTES or tiles == 1 else 8
    units = max(config.vectors * config.outputs, config.vectors + config.outputs) / FMA_UNITS
    step = max(units, FMA_LATENCY, vector_bytes / bandwidth)
    broadcast = INPUT_CYCLES if vector_registers(target) == 32 else LOADED_INPUT_CYCLES
    step += WEIGHT_CYCLES * config.vectors + broadcast * config.outputs
    beyond_stack = BEYOND_STACK_CYCLES if workload.sum_bytes * config.block * config.outputs > STACK_BYTES else 0
    finish = FINISH_CYCLES * config.vectors * config.block * config.outputs
    if channel_block(workload.out_layout) > 1:
        finish = STORE_CYCLES * config.vectors * config.outputs
    elif workload.itemsize * height * width % PAGE_BYTES == 0 and config.block > CONFLICTING:
        finish += CONFLICT_CYCLES * config.block * config.rows
    return blocks(workload, config) * tiles * (taps * step + beyond_stack + finish)


def blocks(workload: ConvWorkload, config: TileConfig) -> int:
    """Blocks of output channels; none reaches into another group."""
    return workload.groups * ceil_div(workload.multiplier, config.block)
