"""The default configuration of depthwise convolutions on tensor cores, and the model that chooses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import tvm

from tvmconv.compute.depthwise.bands import BAND, EIGHT, VECTOR_BYTES, in_planes, lanes, lines_read
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import arch_of, tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, divisors, wasted
from ..machine import BLOCK_BYTES, PRODUCTS, REGISTERS, WARP
from ..tensor.model import KERNEL, mostly_largest, saved_launch
from ..tensor.tiles import tf32_products
from .tiles import LEAST, Config, blocks, constraints, products, registers_of, shared_bytes, taps_bytes, taps_rows


def obstacle_on_tensor_cores(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take dense windows of planes that each have one output, on GPUs with tensor cores."""
    workload = problem.workload
    if not problem.is_depthwise:
        return "is for depthwise convolutions"
    if problem.precision == "strict":
        return "is not for the precision strict"
    if "mma" not in tensor_instructions(target):
        return f"needs a GPU with tensor cores, sm_80 or later, not {arch_of(target)}"
    if workload.multiplier > 1:
        return f"takes one output channel for each input channel, not {workload.multiplier}"
    if workload.stride != (1, 1) or workload.dilation != (1, 1):
        return "takes strides and dilations of 1"
    return None


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take such windows that fit in shared memory."""
    if (found := obstacle_on_tensor_cores(problem, target)) is not None:
        return found
    workload = problem.workload
    if problem.open_sizes and in_planes(workload) is not workload:
        return "takes no number of sequences that is left open"
    if not all(holds(LEAST) for holds in constraints(problem, target).values()):
        return f"takes windows that fit in shared memory, not of {'x'.join(map(str, workload.kernel))}"
    return None


MOST_BANDS = 16
"""The most bands of a warp."""


def _candidates(workload: ConvWorkload) -> list[Config]:
    """Return the tiles that a default is chosen from: of one to sixteen warps, and hardly larger than a plane."""
    height, width = workload.output_size
    most_y, most_x = ceil_div(height, EIGHT), ceil_div(width, BAND)
    known = {
        Config(warps_y, bands * BAND, images, channels)
        for warps_y in {1, 2, 4, 8, min(most_y, 16), ceil_div(most_y, 2)}
        for bands in {1, 2, 4, 8, min(most_x, MOST_BANDS), ceil_div(most_x, 2)}
        for images, channels in product(divisors(workload.batch, 8), divisors(workload.in_channels, 8))
        if warps_y <= most_y and bands <= min(most_x, MOST_BANDS) and warps_y * channels <= 16 and bands * images <= 16
    }
    return sorted(known, key=lambda config: tuple(vars(config).values()))


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of some, that the model finds the fastest."""
    legal = constraints(problem, target).values()
    tried = [LEAST, *_candidates(in_planes(problem.workload))]
    return min(
        (config for config in tried if all(holds(config) for holds in legal)),
        key=lambda config: estimate(problem, config, target),
    )


ISSUED = 3.0
"""The instructions that a multiprocessor's warps begin in a clock, of four at best.

This and the numbers below without another source are those of `cuda/grouped`, whose blocks work alike.
"""

TURN = 4.5
"""The clocks from one instruction of a warp to its next where no other warps fill the time."""

COPYING, STORING, BEGINNING = 12.0, 8.0, 80.0
"""The instructions of a thread for an asynchronous copy and for a sum that it stores, and those that it begins with."""

ACCESS = 1.7
"""The clocks of 128 bytes that a warp reads from shared memory, or copies to it from one line of the L2 cache."""

LATENCY = 3500.0
"""The clocks of a block beside its instructions, most of which it waits for its copies."""

CAUTION = 1.6
"""The factor of the estimate: that of `cuda/depthwise` is as much too high where memory bounds it, and is compared."""


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the kernel should take.

    As for `cuda/tensor`, three things bound it: the units of the busiest multiprocessor, the blocks that have to wait
    for one another, and the memory.
    """
    workload, gpu = in_planes(problem.workload), gpu_of(target)
    turns = ceil_div(blocks(workload, config), gpu.multiprocessors)
    together = min(turns, resident_blocks(problem, config, gpu))
    spans = [taps_rows(workload, config, warp) for warp in range(config.warps_y)]
    rows = sum(max(0, last - first) for first, last in spans) * config.channels
    longest = max(last - first for first, last in spans)
    pairs = products(workload, config)
    columns, matrices = len({block for *_, block in pairs}), 4 * len({step for _, step, _ in pairs})
    parts = max(1, tf32_products(problem))
    taken_apart = 0 if workload.dtype in NARROW else 3 * (parts - 1) + 1  # instructions for each factor
    of_row = config.images * (parts * len(pairs) + columns * (0.5 + 2 * taken_apart) + 3)
    of_row += matrices * (1 + taken_apart) + 6
    copies, taps = copied(workload, config)
    others = BEGINNING + (copies + taps) * COPYING + config.sums * STORING
    warps = config.threads // WARP
    issued = rows * of_row + warps * others
    accesses = rows * (matrices + 2 * columns * config.images) + warps * (4 * (copies + taps) + config.sums)
    clocks = rows * config.images * len(pairs) * parts * PRODUCTS / tensor_instructions(target)["mma"].products
    units = turns * mostly_largest(issued / ISSUED, accesses * ACCESS, clocks)
    waiting = ceil_div(turns, together) * (LATENCY + TURN * (longest * of_row + others))
    launches = 2 * KERNEL - saved_launch(problem)
    return CAUTION * (mostly_largest(units, waiting, workload.bytes_moved / gpu.bytes_per_clock) + launches)


def copied(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the vectors of the input that a thread copies, and those of taps."""
    rows, columns = lines_read(workload, config.tile)
    lines = config.images * len(rows) * len(columns) / lanes(workload)
    taps = workload.kernel[0] * taps_bytes(workload) / VECTOR_BYTES
    return lines * config.channels / config.threads, taps * config.channels / config.threads


def resident_blocks(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by shared memory and registers."""
    workload = in_planes(problem.workload)
    by_registers = REGISTERS // (config.threads * registers_of(problem, config))
    by_shared = gpu.shared_bytes // (shared_bytes(workload, config) + BLOCK_BYTES)
    return max(1, min(by_shared, by_registers, gpu.warps * WARP // config.threads, gpu.blocks))


WORTH_A_TRIAL = 1.5
"""The clocks that a configuration may take by the model to be tried, as a multiple of the default's."""


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    default, workload = default_config(problem, target), in_planes(problem.workload)
    bound = WORTH_A_TRIAL * estimate(problem, default, target)
    most_y, most_x = (ceil_div(size, step) for size, step in zip(workload.output_size, (EIGHT, BAND), strict=True))

    def promising(config: Config) -> bool:
        return estimate(problem, config, target) <= bound

    knobs = {
        "warps_y": tuple(range(1, min(16, most_y) + 1)),
        "block_x": tuple(range(BAND, min(MOST_BANDS, most_x) * BAND + 1, BAND)),
        "images": divisors(workload.batch, 8),
        "channels": divisors(workload.in_channels, 8),
    }
    return Space(default, LEAST, knobs, constraints(problem, target), {}, promising)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = in_planes(problem.workload)
    height, width = workload.output_size
    return {
        "clocks": estimate(problem, config, target),
        "sums": config.sums,
        "threads": config.threads,
        "products": len(products(workload, config)),
        "rows": workload.kernel[0],
        "blocks": blocks(workload, config),
        "shared_bytes": shared_bytes(workload, config),
        "waste_y": wasted(height, config.block_y),
        "waste_x": wasted(width, config.block_x),
    }


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {
        "several warps": replace(config, warps_y=1, channels=1),
        "several images": replace(config, images=1),
        "wide tiles": replace(config, block_x=BAND),
    }
