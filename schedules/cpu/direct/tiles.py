"""The knobs of a register tile of outputs, and the work of kernels that are made of register tiles.

The size of a tile follows from the analysis of the im2win thesis (section 3.2): at least as many vectors as
multiply-adds are under way at once, and no more than there are registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm

from tvmconv.problem import Problem
from tvmconv.problem.layout import has_channels_last
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Cpu, cpu_of

from ...space import ceil_div
from ..machine import staged_bytes
from ..model import Counts, Read, allocations, by_cache, converted, operands, packed_weight, pieces, spilled, threads_of


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
    """The copy of the padded input: 0 for none, 1 for a band in each task, 2 for all of it before the tasks."""
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


def counts(problem: Problem, config: TileConfig, target: tvm.target.Target, windows: bool) -> Counts:
    """Return the work of a kernel; its staged input is a padded copy, or im2win's windows if `windows` is true."""
    workload, cpu = problem.workload, cpu_of(target)
    (height, width), (rows, _), nbytes = workload.output_size, workload.kernel, staged_bytes(workload)
    channels, vectors = workload.w_shape[1], config.vectors * pieces(config.vector, cpu)
    registers = config.vectors * ceil_div(config.vector, cpu.lanes)
    terms, bands = channels * prod(workload.kernel), ceil_div(height, config.rows * config.tiles)
    tasks = workload.batch * blocks(workload, config) * bands
    tiles = tasks * config.tiles * ceil_div(width, config.columns)
    steps, sums = tiles * terms, vectors * config.outputs
    stored_as_summed = has_channels_last(workload.out_layout)

    block_bytes = terms * config.block * nbytes  # of the weight
    band_rows, _ = workload.read_by((config.rows * config.tiles, width))
    row_bytes = channels * workload.padded_input[1] * nbytes
    tile_bytes = channels * prod(workload.read_by((config.rows, config.columns))) * nbytes
    band_bytes = band_rows * row_bytes
    copied, is_tested = 0.0, any(workload.padding) and not config.staged
    if config.staged or windows:
        copies = rows if windows else 1
        whole = workload.batch * workload.groups * workload.padded_input[0]
        copied = copies * row_bytes * (tasks * band_rows if config.staged == 1 else whole)
    return Counts(
        tasks=tasks if config.parallel else 1,
        threads=threads_of(target, config.parallel),
        loops=(1 + (not problem.constant_weight) + (config.staged == 2)) * config.parallel,
        multiplied=steps * sums,
        loaded=steps * vectors,
        broadcast=steps * config.outputs,
        chained=steps,
        allocated=allocations(tiles, workload.sum_bytes * config.block * config.outputs),
        issued=steps * config.outputs * is_tested + converted(workload, copied / nbytes, cpu),
        spilled=spilled(steps, registers * (config.outputs + 1) + 1, cpu),
        stored=tiles * (sums if stored_as_summed else row_pieces(config, cpu)),
        transposed=tiles * sums * (not stored_as_summed),
        paired=tiles * sums**2 * (not stored_as_summed),
        copied=0.0 if windows else copied / cpu.unit_bytes,
        moved=copied / nbytes if windows else 0.0,
        packed=packed_weight(problem),
        **by_cache(
            cpu,
            *operands(problem),
            Read(tiles * block_bytes, block_bytes if block_bytes <= cpu.l1_bytes else block_bytes + band_bytes),
            Read(tiles * tile_bytes, band_bytes),
        ),
    )


def row_pieces(config: TileConfig, cpu: Cpu) -> int:
    """Return the number of stores of a transposed tile: each row of each channel is stored separately."""
    return config.block * config.rows * pieces(config.columns, cpu)


def blocks(workload: ConvWorkload, config: TileConfig) -> int:
    """Return the number of blocks of output channels; none reaches into another group."""
    return workload.groups * ceil_div(workload.multiplier, config.block)
