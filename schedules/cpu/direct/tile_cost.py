"""The knobs of a tile of outputs in registers, and a model of its time.

The size of a tile follows from the analysis of the im2win thesis (section 3.2): at least as many vectors as
multiply-adds are under way at once, and no more than there are registers. The rest was fitted on Zen 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm

from tvmconv.problem.layout import has_channels_last
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Cpu, cpu_of

from ...space import ceil_div
from ..machine import PAGE_BYTES, staged_bytes

WEIGHT_CYCLES = 0.16
"""The cycles that a vector of the weight takes beside the multiply-adds."""

STACK_BYTES, BEYOND_STACK_CYCLES = 1024, 250
"""The largest bytes of a tile on the stack, and so in registers alone, and the cycles of a larger one.

The cycles are those for keeping it in memory too.
"""

FINISH_CYCLES = 0.22
"""The cycles to transpose, finish and store an output, for each vector of the tile."""

WAIT_CYCLES = 0.15
"""The cycles of a transposed tile for each pair of its vectors: a core finishes few of them while it sums the next
tile, and waits for many. Fitted on Zen 4, with AVX-512 and with AVX2."""

STORE_CYCLES = 1.5
"""The cycles to finish a vector of results and to store it as it is."""

CONFLICT_CYCLES, CONFLICTING = 11, 16
"""The extra cycles of a channel's row where channels lie whole pages apart, and the most channels without.

Such channels are in one set of the first cache.
"""


@dataclass(frozen=True)
class TileConfig:
    """The knobs. Sizes count outputs, where nothing else is said."""

    vectors: int
    """The number of vectors of output channels in a register tile."""
    vector: int
    """The number of lanes of a vector."""
    rows: int
    """The number of rows of a register tile."""
    columns: int
    """The number of columns of a register tile."""
    channels: int
    """The number of input channels that the innermost loop runs over; the taps are around it."""
    tiles: int
    """The number of register tiles of a task, one below the other."""
    staged: int
    """The place that the padded input is copied to: 0 nowhere, 1 a band for each task, 2 as a whole ahead."""
    parallel: bool
    """True to spread the work over the threads of the machine."""

    @property
    def block(self) -> int:
        """The number of output channels of a task."""
        return self.vectors * self.vector

    @property
    def outputs(self) -> int:
        """The number of outputs of a channel in a register tile."""
        return self.rows * self.columns


def cost(workload: ConvWorkload, config: TileConfig, target: tvm.target.Target) -> float:
    """Return the cycles that a core takes for an image, by its units for multiply-adds and loads and by its caches."""
    (height, width), cpu = workload.output_size, cpu_of(target)
    taps = workload.w_shape[1] * prod(workload.kernel)
    tiles = ceil_div(height, config.rows) * ceil_div(width, config.columns)
    vector_bytes = staged_bytes(workload) * config.block
    weight_bytes = taps * vector_bytes
    units = max(config.vectors * config.outputs, config.vectors + config.outputs) / cpu.fma_units
    step = max(units, cpu.fma_latency, vector_bytes / weight_bandwidth(weight_bytes, tiles, cpu))
    step += WEIGHT_CYCLES * config.vectors + cpu.broadcast_cycles * config.outputs
    planes = 0.0 if has_channels_last(workload.layout) else cpu.plane_cycles * workload.w_shape[1] * config.outputs
    beyond_stack = BEYOND_STACK_CYCLES if workload.sum_bytes * config.block * config.outputs > STACK_BYTES else 0
    finish = FINISH_CYCLES * config.vectors * config.block * config.outputs
    finish += WAIT_CYCLES * (config.vectors * config.outputs) ** 2
    if has_channels_last(workload.out_layout):
        finish = STORE_CYCLES * config.vectors * config.outputs
    elif workload.itemsize * height * width % PAGE_BYTES == 0 and config.block > CONFLICTING:
        finish += CONFLICT_CYCLES * config.block * config.rows
    return blocks(workload, config) * tiles * (taps * step + planes + beyond_stack + finish)


def weight_bandwidth(weight_bytes: int, tiles: int, cpu: Cpu) -> int:
    """Return the bytes of a weight that a core reads in a cycle, by the cache that has it after so many tiles."""
    return 64 if weight_bytes <= cpu.l1_bytes else 21 if weight_bytes <= cpu.l2_bytes or tiles == 1 else 8


def blocks(workload: ConvWorkload, config: TileConfig) -> int:
    """Return the number of blocks of output channels; none reaches into another group."""
    return workload.groups * ceil_div(workload.multiplier, config.block)
