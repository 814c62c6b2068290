"""The default configuration of depthwise convolutions of planes on tensor cores, and the model that chooses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import hypot, prod

import tvm

from tvmconv.compute.depthwise.bands import EIGHT, VECTOR_BYTES
from tvmconv.compute.depthwise.planes import copied, eights, neighbours, side_by_side
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, divisors
from ..depthwise_bands.model import obstacle_on_tensor_cores
from ..machine import BLOCK_BYTES, PRODUCTS, REGISTERS, bank_reads
from ..simt.model import START
from ..tensor.model import mostly_largest
from .tiles import (
    LEAST,
    Config,
    blocks,
    channels_of,
    constraints,
    in_registers,
    lines_of,
    matrices,
    pairs,
    pixel_lanes,
    products,
    registers_of,
    shared_bytes,
    store_lanes,
    sums_of,
)

FEWEST = 2
"""The most halves of an array in shared memory that TVM moves to registers, since they are 32 bits, and then misses."""


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take dense windows of small planes that each have one output."""
    if (found := obstacle_on_tensor_cores(problem, target)) is not None:
        return found
    workload = problem.workload
    if workload.layout != workload.out_layout:
        return f"takes no output in {workload.out_layout} from {workload.layout}"
    if workload.in_channels % neighbours(workload):
        return f"takes even numbers of channels in NHWC, not {workload.in_channels}"
    least = min(prod(workload.kernel), workload.height * workload.width, prod(workload.output_size))
    if least <= FEWEST:
        return f"takes windows and planes of more than {FEWEST} elements, not of {least}"
    if not all(holds(LEAST) for holds in constraints(problem, target).values()):
        plane, window = ("x".join(map(str, sizes)) for sizes in (workload.output_size, workload.kernel))
        return f"takes small planes and windows, which a block has room for, not {plane} and {window}"
    return None


MOST_IMAGES, MOST_WARPS = 32, 32
"""The most images and warps of a block."""


def _candidates(workload: ConvWorkload) -> list[Config]:
    """Return the configurations that a default is chosen from."""
    every = product(divisors(workload.batch, MOST_IMAGES), _warps(workload))
    return [Config(images, warps) for images, warps in every]


def _warps(workload: ConvWorkload) -> tuple[int, ...]:
    """Return the numbers of warps of a block that make up the channels, in NHWC by whole vectors where they can."""
    every = divisors(workload.in_channels // neighbours(workload), MOST_WARPS)
    whole = tuple(warps for warps in every if warps * neighbours(workload) * workload.itemsize % VECTOR_BYTES == 0)
    return whole if workload.layout == "NHWC" and whole else every


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of some, that the model finds the fastest."""
    legal = constraints(problem, target).values()
    tried = [config for config in (LEAST, *_candidates(problem.workload)) if all(holds(config) for holds in legal)]
    return min(tried, key=lambda config: estimate(problem, config, target))


ISSUED, ACCESS = 2.5, 1.2
"""The instructions that a multiprocessor's warps begin in a clock, of four at best, and the clocks of an access of a
warp to shared memory. These and the numbers below without another source were fitted to 200 configurations of eleven
layers in float16 on an H100. Like those of `depthwise_model`, with which they are compared, clocks are some 1.2 times
what a GPU needs."""

COPYING, STORING, FINISHING, BEGINNING = 3.7, 16.0, 1.3, 62.0
"""The instructions of a thread for a copy, for a vector that it stores, for a sum, and those that it begins with."""

TURN, SYNC, LATENCY = 5.2, 0.73, 1280.0
"""The clocks from one instruction of a warp to its next where no other blocks fill the time; those that each warp of
the block adds to them, since all wait at barriers; and those of a block beside its instructions, for its copies."""

MULTIPLYING = 1.43
"""The clocks of an instruction of tensor cores for each that the data sheet says."""

RUN = 30.5
"""The bytes that each run of neighbouring channels in NHWC costs in addition."""

LAST = 0.73
"""The factor of the estimate in NHWC: the clocks of `cuda/depthwise_nhwc`, which it is compared with, are fewer for
kernels that take as long."""


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks of the busiest multiprocessor, wave by wave of blocks.

    In each it issues instructions, accesses shared memory, multiplies and moves its share of what memory moves, while
    a block alone waits for its copies and takes its turns.
    """
    workload, gpu = problem.workload, gpu_of(target)
    grid = blocks(workload, config)
    share = ceil_div(grid, gpu.multiprocessors)
    together = min(share, resident_blocks(problem, config, gpu))
    issued, accesses = instructions(workload, config)
    products_of_warp = len(lines_of(workload)) * products(workload, config) * PRODUCTS * MULTIPLYING
    multiplied = config.warps * products_of_warp / tensor_instructions(target)["mma"].products
    moved = workload.bytes_moved / grid / (gpu.bytes_per_clock / gpu.multiprocessors)
    if workload.layout == "NHWC":
        moved *= 1 + RUN / (channels_of(workload, config) * workload.itemsize)
    busy = mostly_largest(config.warps * issued / ISSUED, config.warps * accesses * ACCESS, multiplied, moved)
    alone, waves = LATENCY + (TURN + SYNC * config.warps) * issued, ceil_div(share, together)
    last = share - (waves - 1) * together
    clocks = START + (waves - 1) * hypot(together * busy, alone) + hypot(last * busy, alone)
    return clocks * LAST if workload.layout == "NHWC" else clocks


TAPS_OF_TWO, TAPS, ROW = 8.0, 20.0, 6.0
"""The instructions that make the taps of two images side by side into a matrix, or those of one, and those of a row of
the input beside them, counted in machine code for sm_90."""


def instructions(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the instructions of a warp, and its accesses to shared memory."""
    own, pair, lines = neighbours(workload), side_by_side(workload, config.images), len(lines_of(workload))
    halves = 2 * own * len({step for _, step in pairs(workload)}) * config.images // pair
    loads, combined = (1, 1) if own == 1 and workload.width % 2 == 0 else (2 // own, 3)
    of_row, of_planes = halves * (loads + combined), 0
    if in_registers(workload):  # loaded once, then shuffled
        of_row, of_planes = halves, of_row
    taps = own * (TAPS_OF_TWO if pair == 2 else TAPS * len(matrices(workload)))
    copies, stores = copied_by(workload, config)
    sums, pieces = sums_of(workload, config), 4 if own == 2 else 1
    issued = lines * (taps + of_row + products(workload, config) + ROW) + of_planes + BEGINNING
    issued += copies * COPYING + stores * (STORING + pieces) + sums * FINISHING
    conflicts = 2 if own == 2 else 1
    accesses = lines * (taps / 3 + shared_banks(workload, config) * halves * (1 if in_registers(workload) else loads))
    return issued, accesses + 4 * copies + conflicts * (4 * stores + sums / own)


def shared_banks(workload: ConvWorkload, config: Config) -> float:
    """Return how many times the banks of shared memory are read for eight rows of a matrix, of four words each.

    In planes of 7, 14 and 28 columns, which the clocks above were fitted to, two words of NCHW are in one bank at most,
    of which the fit knows nothing.
    """
    last = workload.layout == "NHWC"
    row, pixel = eights(workload)[0] * workload.width, pixel_lanes(config) if last else 1
    words = {(place * row + 2 * pair) * pixel // 2 for place in range(EIGHT) for pair in range(4)}
    most = bank_reads(words)
    return most if last else max(1.0, most / 2)


def copied_by(workload: ConvWorkload, config: Config) -> tuple[float, float]:
    """Return the vectors that a thread copies, and those of the output that it stores."""
    pixels, vectors, _ = copied(workload, channels_of(workload, config))
    taps = channels_of(workload, config) * prod(workload.kernel)
    outputs = config.images * channels_of(workload, config) * prod(workload.output_size) / store_lanes(workload, config)
    return (config.images * pixels * vectors + taps) / config.threads, outputs / config.threads


def resident_blocks(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by shared memory and registers."""
    workload = problem.workload
    by_registers = REGISTERS // (config.threads * registers_of(workload, config))
    by_shared = gpu.shared_bytes // (shared_bytes(workload, config) + BLOCK_BYTES)
    return max(1, min(by_shared, by_registers, gpu.warps // config.warps, gpu.blocks))


WORTH_A_TRIAL = 1.5
"""The clocks that a configuration may take by the model to be tried, as a multiple of the default's."""


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    default, workload = default_config(problem, target), problem.workload
    bound = WORTH_A_TRIAL * estimate(problem, default, target)

    def promising(config: Config) -> bool:
        return estimate(problem, config, target) <= bound

    knobs = {
        "images": divisors(workload.batch, MOST_IMAGES),
        "warps": _warps(workload),
    }
    return Space(default, LEAST, knobs, constraints(problem, target), {}, promising)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = problem.workload
    rows, bands = eights(workload)
    return {
        "clocks": estimate(problem, config, target),
        "sums": sums_of(workload, config),
        "threads": config.threads,
        "products": products(workload, config),
        "rows": len(lines_of(workload)),
        "eights": rows,
        "bands": bands,
        "blocks": blocks(workload, config),
        "shared_bytes": shared_bytes(workload, config),
    }


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {"several images": replace(config, images=1), "several warps": replace(config, warps=1)}
