"""The default configuration of convolutions of few input channels on tensor cores, and the model that chooses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import tvm

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.shallow_tiles import EIGHT, STEP, steps, window_terms
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import arch_of, tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, ceil_to, named, wasted
from ..machine import BLOCK_BYTES, PRODUCTS, REGISTERS, SECTOR, WARP
from ..tensor.model import KERNEL, mostly_largest, saved_launch
from .tiles import (
    LEAST,
    Config,
    accesses,
    blocks,
    constraints,
    elements_read,
    instructions,
    registers_of,
    shared_bytes,
    weight_pitch,
)

MOST_CHANNELS = 4
"""The most input channels: with more, a tap fills at least half of an asynchronous copy, as `cuda/tensor` has it."""


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take images of few channels, whose windows have no gaps."""
    workload = problem.workload
    if not problem.is_dense or workload.groups > 1:
        return "is for dense convolutions in one group"
    if problem.precision == "strict":
        return "is not for the precision strict"
    if "mma" not in tensor_instructions(target):
        return f"needs a GPU with tensor cores, sm_80 or later, not {arch_of(target)}"
    if workload.in_channels > MOST_CHANNELS:
        return f"takes up to {MOST_CHANNELS} input channels, not {workload.in_channels}"
    if workload.out_channels % EIGHT:
        return f"takes output channels in multiples of {EIGHT}, not {workload.out_channels}"
    if workload.dilation != (1, 1):
        return "takes a dilation of 1"
    if (terms := window_terms(workload)) < EIGHT:  # a copy of weights would be of a part of a vector
        return f"takes windows of {EIGHT} terms or more, not of {terms}"
    if not all(holds(LEAST) for holds in constraints(problem, target).values()):
        return f"takes windows that fit in shared memory and code, not of {'x'.join(map(str, workload.kernel))}"
    return None


WIDTHS = (1, 2, 3, 4, 7)
"""The matrices of a block along a row of pixels in a default."""

LEAST_MATRICES, MOST_MATRICES = 2, 8
"""The matrices of pixels of a warp in a default: of fewer, loads of weights take as long as products."""


def _block_outputs(workload: ConvWorkload) -> list[int]:
    """Return the output channels of a block that are tried: all, or equal shares of them."""
    whole = ceil_to(workload.out_channels, EIGHT)
    return sorted({ceil_to(ceil_div(whole, parts), 2 * EIGHT) for parts in (1, 2, 3, 4)} | {whole})


def _candidates(workload: ConvWorkload) -> list[Config]:
    """Return the tiles that a default is chosen from: of two to eight warps, and hardly larger than an image."""
    height, width = workload.output_size
    return [
        Config(warps_m * rows * 2, columns * EIGHT, block_n, warps_m, warps_n)
        for warps_m, warps_n, rows, columns in product((1, 2, 4, 8), (1, 2), (1, 2, 4), WIDTHS)
        for block_n in _block_outputs(workload)
        if 2 <= warps_m * warps_n <= 8 and LEAST_MATRICES <= rows * columns <= MOST_MATRICES
        if warps_m * rows * 2 < height + 2 * warps_m and columns * EIGHT < width + EIGHT
    ]


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of some, that the model finds the fastest."""
    legal = constraints(problem, target).values()
    tried = [LEAST, *_candidates(problem.workload)]
    return min(
        (config for config in tried if all(holds(config) for holds in legal)),
        key=lambda config: estimate(problem, config, target),
    )


ISSUED = 3.8
"""The instructions that a multiprocessor's warps begin in a clock, of four at best.

This and the numbers below without another source are fitted to 247 configurations of eight first layers in float16 on
an H200, at batch 1 and 128, with a root mean square error of 0.3 in the logarithm: the one estimated to be the fastest
takes 1.09 times as long as the one that is.
"""

TURN = 3.9
"""The clocks from one instruction of a warp to its next where no other warps fill the time."""

STEPPING = 12.0
"""The instructions of a thread for the places of a step's terms, read off machine code of sm_90."""

READING, COPYING, STORING, BEGINNING = 17.3, 8.0, 4.0, 52.0
"""The instructions of a thread for an element of the input that it brings to shared memory, for an asynchronous copy
and for a sum that it stores, as `cuda/grouped` has them, and those that it begins with."""

ACCESS = 1.7
"""The clocks of an access of a warp to shared memory, as `cuda/grouped` has it."""

L2_BYTES, WEIGHT_BYTES = 5.3, 8.7
"""The bytes of pixels that a multiprocessor gets from the L2 cache in a clock, a short segment at a time, and those of
weights, which all blocks read at once."""

LATENCY = 628.0
"""The clocks of a block beside its instructions, most of which it waits for its copies."""

MEMORY = 1.7
"""The clocks of the memory, as a multiple of those of its bytes: threads store half of what comes of memory at once."""

PLANES = 2.4
"""The clocks of the memory where threads store to planes, as a multiple of those where channels lie side by side: on an
H100 at batch 32 64 channels of 3x3 windows took 2.2 times as long so, as did those of 7x7 windows."""


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the kernels should take.

    As for `cuda/grouped`, three things bound it: the units of the busiest multiprocessor, the blocks that have to wait
    for one another, and the memory.
    """
    workload, gpu = problem.workload, gpu_of(target)
    turns = ceil_div(blocks(workload, config), gpu.multiprocessors)
    together = min(turns, resident_blocks(workload, config, gpu))
    warps, matrices, outputs = config.threads // WARP, config.rows * config.columns, config.outputs // EIGHT
    read, weights = elements_read(workload, config), config.block_n * weight_pitch(workload)
    issued = (
        instructions(workload, config) + steps(workload) * STEPPING + config.sums * STORING + BEGINNING + read * READING
    )
    issued += weights / COPY_BYTES / config.threads * COPYING
    loads = warps * steps(workload) * (4 * matrices * accesses(workload, config) + 2 * outputs)
    products = warps * steps(workload) * matrices * outputs * PRODUCTS / tensor_instructions(target)["mma"].products
    pixels = prod(workload.read_by((config.block_y, config.block_x))) * workload.in_channels * workload.itemsize
    copied = pixels / L2_BYTES + weights / WEIGHT_BYTES
    units = turns * mostly_largest(warps * issued / ISSUED, loads * ACCESS, products, copied)
    waiting = ceil_div(turns, together) * (LATENCY + TURN * issued)
    memory = MEMORY * workload.bytes_moved / gpu.bytes_per_clock
    if workload.out_layout == "NCHW":  # a warp stores short lines of planes
        memory *= PLANES * max(1.0, SECTOR / (config.block_x * workload.output_storage.itemsize))
    # The kernel that lays out the weight is in the measured times that the numbers above are fitted to.
    return mostly_largest(units, waiting, memory) + KERNEL - saved_launch(problem)


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by shared memory and registers."""
    by_registers = REGISTERS // (config.threads * registers_of(config))
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
        "block_y": tuple(sorted({default.block_y, 2, 4, 8, 16, 32})),
        "block_x": tuple(sorted({default.block_x, 8, 16, 24, 32, 56})),
        "block_n": tuple(sorted({default.block_n, *_block_outputs(problem.workload)})),
        "warps_m": (1, 2, 4, 8),
        "warps_n": (1, 2, 4),
    }
    return Space(default, LEAST, knobs, constraints(problem, target), named(several_warps), promising)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = problem.workload
    height, width = workload.output_size
    return {
        "clocks": estimate(problem, config, target),
        "sums": config.sums,
        "threads": config.threads,
        "terms": steps(workload) * STEP,
        "blocks": blocks(workload, config),
        "shared_bytes": shared_bytes(workload, config),
        "waste_y": wasted(height, config.block_y),
        "waste_x": wasted(width, config.block_x),
        "waste_n": wasted(workload.out_channels, config.block_n),
    }


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {
        "tiles of several matrices": replace(config, block_y=2 * config.warps_m, block_x=EIGHT),
        "all outputs": replace(config, block_n=EIGHT, warps_n=1),
    }
