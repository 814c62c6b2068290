"""The default configuration of convolutions on tensor cores, and the model that chooses it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import tvm

from tvmconv.compute.tensor_gemm import COPY_BYTES, ROW_BYTES, chunks
from tvmconv.problem import Problem
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, named, wasted
from .tensor_tiles import LEAST, Config, blocks, constraints, part_chunks, shared_bytes


def supports(problem: Problem, target: tvm.target.Target) -> bool:
    """Support convolutions in half precision, whose channels fill whole copies, on GPUs with tensor cores for it.

    Output channels of several groups have to be whole tiles, of which the least is of `LEAST_COLUMNS`.
    """
    workload = problem.workload
    lanes = COPY_BYTES // workload.itemsize
    least = lanes if workload.groups == 1 else LEAST_COLUMNS
    whole = workload.w_shape[1] % lanes == 0 and workload.multiplier % least == 0
    known = workload.dtype in ("float16", "bfloat16") and bool(tensor_instructions(target))
    return problem.is_dense and whole and known


LEAST_COLUMNS = 16
"""The output channels of the narrowest tile: two matrices of 8, which `mma` loads together."""


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    workload, default, gpu = problem.workload, default_config(problem, target), gpu_of(target)

    def whole_gpu(config: Config) -> bool:
        return config.split_k == 1 or blocks(workload, config) <= 4 * gpu.multiprocessors

    knobs = {
        "block_m": (32, 64, 128, 192, 256),
        "block_n": tuple(sorted({default.block_n, 32, 64, 96, 128, 256})),
        "warps_m": (1, 2, 4),
        "warps_n": (1, 2, 4),
        "num_stages": (2, 3, 4, 5, 6),
        "split_k": (1, 2, 4, 8),
        "wgmma": (False, True),
        "min_blocks_per_sm": (1, 2, 3),
    }
    return Space(default, LEAST, knobs, constraints(workload, target), named(whole_gpu))


CANDIDATES = tuple(
    Config(block_m, block_n, warps_m, warps_n, num_stages=stages, wgmma=wgmma)
    for wgmma, stages, tiles in (
        (True, 4, ((256, 128, 2, 1), (128, 256, 2, 1), (128, 128, 2, 1), (128, 64, 2, 1), (64, 128, 1, 1))),
        (True, 4, ((64, 256, 1, 1), (64, 64, 1, 1), (64, 32, 1, 1), (128, 96, 2, 1), (128, 32, 2, 1))),
        (False, 3, ((128, 128, 2, 2), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (32, 64, 1, 2))),
        (False, 3, ((64, 32, 2, 1), (32, 32, 1, 1), (16, 64, 1, 2), (128, 32, 4, 1))),
        (False, 3, ((64, 16, 2, 1), (64, 48, 2, 1))),
    )
    for block_m, block_n, warps_m, warps_n in tiles
)
"""The tiles that a default is chosen from."""


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of a few, that the model finds the fastest."""
    workload = problem.workload
    legal = constraints(workload, target).values()
    tried = [
        config
        for candidate in CANDIDATES
        for split_k in (1, 2, 4, 8)
        for config in [_fitting(replace(candidate, split_k=split_k), workload)]
        if all(holds(config) for holds in legal)
    ]
    return min(tried, key=lambda config: clocks(workload, config, target))


def _fitting(config: Config, workload: ConvWorkload) -> Config:
    """Return the configuration with no more stages than there are chunks to fill them."""
    most = part_chunks(workload, config) + (2 if config.wgmma else 1)
    return replace(config, num_stages=max(2 + config.wgmma, min(config.num_stages, most)))


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the busiest multiprocessor should take, or the memory."""
    return clocks(problem.workload, config, target)


L2_BYTES = 40.0
"""The bytes that a multiprocessor gets from the L2 cache in a clock."""

LATENCY = 1500.0
"""The clocks until the first chunk has come, and until the sums are stored."""


def clocks(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks of the busiest multiprocessor, or of the memory if these are more."""
    gpu, rate = gpu_of(target), tensor_instructions(target)["wgmma" if config.wgmma else "mma"].products
    grid = blocks(workload, config)
    turns = ceil_div(grid, gpu.multiprocessors)
    together = min(turns, resident_blocks(workload, config, gpu))
    steps = part_chunks(workload, config)
    product = config.block_m * config.block_n * ROW_BYTES / workload.itemsize / rate
    copy = (config.block_m + config.block_n) * ROW_BYTES / L2_BYTES
    block = steps * max(product, copy)
    stored = config.block_m * config.block_n * workload.sum_bytes / L2_BYTES
    busy = turns * (block + stored) + LATENCY * ceil_div(turns, together)
    written = prod(workload.output_shape)
    moved = workload.bytes_moved + (2 * config.split_k * written * workload.sum_bytes if config.split_k > 1 else 0)
    adding = 2 * LATENCY if config.split_k > 1 else 0
    return max(busy, moved / gpu.bytes_per_clock) + adding


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the blocks that a multiprocessor has room for, by shared memory and registers."""
    registers = 65536 // (config.threads * (config.sums + 64))
    return max(1, min(gpu.shared_bytes // shared_bytes(workload, config), registers, gpu.blocks))


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload = problem.workload
    return {
        "clocks": clocks(workload, config, target),
        "sums": config.sums,
        "threads": config.threads,
        "chunks": part_chunks(workload, config),
        "terms": chunks(workload),
        "blocks": blocks(workload, config),
        "shared_bytes": shared_bytes(workload, config),
        "waste_m": wasted(workload.batch * prod(workload.output_size), config.block_m),
        "waste_n": wasted(workload.multiplier, config.block_n),
        "pixels": workload.batch * prod(workload.output_size),
        "channels": workload.out_channels,
    }


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {
        "copies ahead": replace(config, num_stages=LEAST.num_stages + config.wgmma),
        "shared reduction": replace(config, split_k=1),
    }
