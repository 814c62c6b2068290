"""The default configuration of convolutions in narrow groups on tensor cores, and the model that chooses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import tvm

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.grouped_tiles import LANES, lays_out_group_weight, unit_inputs, unit_outputs, units
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import arch_of, tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, named, wasted
from ..machine import BLOCK_BYTES, LINE, PRODUCTS, REGISTERS, SECTOR, WARP
from ..tensor.model import KERNEL, mostly_largest, saved_launch
from .tiles import (
    LEAST,
    Config,
    blocks,
    constraints,
    has_pairs,
    instructions,
    registers_of,
    shared_bytes,
    sums,
    vectors,
)

MOST_CHANNELS = 64
"""The most channels of a group: of more, chunks of the reduction are shorter than a group."""


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take groups of whole vectors of channels, or pairs of groups of four."""
    workload = problem.workload
    inputs, outputs = workload.w_shape[1], workload.multiplier
    if not problem.is_dense or workload.groups == 1:
        return "is for convolutions in groups of several channels"
    if problem.precision == "strict":
        return "is not for the precision strict"
    if "mma" not in tensor_instructions(target):
        return f"needs a GPU with tensor cores, sm_80 or later, not {arch_of(target)}"
    pairs = inputs == outputs == LANES // 2 and workload.groups % 2 == 0
    if not pairs and (inputs % LANES or outputs % LANES or max(inputs, outputs) > MOST_CHANNELS):
        return (
            f"takes groups of multiples of {LANES} channels up to {MOST_CHANNELS}, or an even number of groups of 4, "
            f"not of {inputs} to {outputs}"
        )
    if workload.window[1] < workload.stride[1]:  # TVM has no room in shared memory for columns that no window reads
        return f"takes windows at least as wide as their stride of {workload.stride[1]}, not of {workload.window[1]}"
    if not all(holds(LEAST) for holds in constraints(problem, target).values()):
        return f"takes windows that fit in shared memory and code, not of {'x'.join(map(str, workload.kernel))}"
    return None


MOST_MATRICES = 8
"""The most matrices of sums of a warp in a default: of more, warps were slower than more warps of fewer."""


def _candidates(workload: ConvWorkload) -> list[Config]:
    """Return the tiles that a default is chosen from: of two to sixteen warps, and hardly larger than an image."""
    height, width = workload.output_size
    most = MOST_MATRICES // (1 + has_pairs(workload))
    known = {
        Config(warps_m * rows * 2, columns * 8, warps_m, warps_n, images)
        for warps_m, rows, columns, warps_n in product((1, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4, 7), range(1, 17))
        for images in (1, 2, 4, 8)
        if warps_n <= units(workload) and 64 <= images * warps_m * warps_n * WARP <= 512
        if rows * columns <= most
        if warps_m * rows * 2 < height + 2 * warps_m and columns * 8 < width + 8
    }
    return sorted(known, key=lambda config: tuple(vars(config).values()))


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of some, that the model finds the fastest."""
    legal = constraints(problem, target).values()
    tried = [LEAST, *_candidates(problem.workload)]
    return min(
        (config for config in tried if all(holds(config) for holds in legal)),
        key=lambda config: estimate(problem, config, target),
    )


ISSUED = 3.0
"""The instructions that a multiprocessor's warps begin in a clock, of four at best.

This and the numbers below without another source are fitted to 92 configurations of nine layers of ResNeXt and RegNet
in float16 on an H200, at batch 32, with a root mean square error of a fifth: the one estimated to be the fastest
takes 1.06 times as long as the one that is.
"""

TURN = 4.5
"""The clocks from one instruction of a warp to its next where no other warps fill the time."""

COPYING, STORING, BEGINNING = 8.0, 4.0, 80.0
"""The instructions of a thread for an asynchronous copy and for a sum that it stores, and those that it begins with."""

ACCESS = 1.7
"""The clocks of 128 bytes that a warp reads from shared memory, or copies to it from one line of the L2 cache."""

L2_BYTES = 48.0
"""The bytes of pixels that a multiprocessor gets from the L2 cache in a clock, as `cuda/tensor` has it."""

WEIGHT_BYTES = 13.6
"""The bytes of weights that it gets in a clock, which many blocks read at once."""

LATENCY = 3500.0
"""The clocks of a block beside its instructions, most of which it waits for its copies."""

WIDE_VECTORS, WIDE = 4, 1.4
"""The vectors of a group's channels from which on a block takes longer than by the numbers above, and how many times as
long: read off ResNeXt's two layers in groups of 32 channels in float16 on an H100, at batch 1, 8 and 32."""


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the kernels should take.

    As for `cuda/tensor`, three things bound it: the units of the busiest multiprocessor, the blocks that have to wait
    for one another, and the memory.
    """
    workload, gpu = problem.workload, gpu_of(target)
    turns = ceil_div(blocks(workload, config), gpu.multiprocessors)
    together = min(turns, resident_blocks(workload, config, gpu))
    warps, steps = config.threads // WARP, ceil_div(vectors(workload), 2)
    matrices, outputs = config.rows * config.columns, unit_outputs(workload) // LANES
    pixels = config.images * prod(workload.read_by((config.block_y, config.block_x)))
    across = _bytes_across(workload, config)
    weights = config.warps_n * unit_outputs(workload) * vectors(workload) * COPY_BYTES
    copies = (pixels * across + weights) / COPY_BYTES / config.threads
    issued = instructions(workload, config) + sums(workload, config) * STORING + BEGINNING + copies * COPYING
    accesses = warps * steps * (4 * matrices + 2 * outputs) + pixels * ceil_div(across, LINE) + weights / LINE
    rate = tensor_instructions(target)["mma"].products
    products = warps * steps * matrices * outputs * (1 + has_pairs(workload)) * PRODUCTS / rate
    copied = pixels * ceil_div(across, SECTOR) * SECTOR / L2_BYTES + weights / WEIGHT_BYTES
    launches = 2 * KERNEL - saved_launch(problem) if lays_out_group_weight(workload) else KERNEL
    units = turns * mostly_largest(warps * issued / ISSUED, accesses * ACCESS, products, copied)
    waiting = ceil_div(turns, together) * (LATENCY + TURN * issued)
    if unit_inputs(workload) // LANES >= WIDE_VECTORS:
        units, waiting = units * WIDE, waiting * WIDE
    return mostly_largest(units, waiting, workload.bytes_moved / gpu.bytes_per_clock) + launches


def _bytes_across(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of a pixel's channels that a block reads, which are side by side."""
    return config.warps_n * unit_inputs(workload) // LANES * COPY_BYTES


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by shared memory and registers."""
    by_registers = REGISTERS // (config.threads * registers_of(workload, config))
    by_shared = gpu.shared_bytes // (shared_bytes(workload, config) + BLOCK_BYTES)
    return max(1, min(by_shared, by_registers, gpu.warps * WARP // config.threads, gpu.blocks))


WORTH_A_TRIAL = 1.5
"""The clocks that a configuration may take by the model to be tried, as a multiple of the default's."""


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    default = default_config(problem, target)
    bound = WORTH_A_TRIAL * estimate(problem, default, target)

    def several_warps(config: Config) -> bool:
        return 2 * WARP <= config.threads <= 512

    def promising(config: Config) -> bool:
        return estimate(problem, config, target) <= bound

    knobs = {
        "block_y": tuple(sorted({default.block_y, 2, 4, 6, 8, 12, 14, 16, 28})),
        "block_x": tuple(sorted({default.block_x, 8, 16, 24, 32, 56})),
        "warps_m": (1, 2, 4),
        "warps_n": tuple(range(1, min(16, units(problem.workload)) + 1)),
        "images": (1, 2, 4, 8),
    }
    return Space(default, LEAST, knobs, constraints(problem, target), named(several_warps), promising)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = problem.workload
    height, width = workload.output_size
    return {
        "clocks": estimate(problem, config, target),
        "sums": sums(workload, config),
        "threads": config.threads,
        "vectors": vectors(workload),
        "blocks": blocks(workload, config),
        "shared_bytes": shared_bytes(workload, config),
        "waste_y": wasted(height, config.block_y),
        "waste_x": wasted(width, config.block_x),
        "channels": config.warps_n * unit_inputs(workload),
    }


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {
        "tiles of several matrices": replace(config, block_y=2 * config.warps_m, block_x=8),
        "several groups": replace(config, warps_n=1),
        "several images": replace(config, images=1),
    }
