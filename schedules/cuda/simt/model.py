"""A model of the time of a matrix product's tiles on an H100: the default configuration, and those worth a trial.

Its numbers were fitted to some 480 configurations of 12 layers that were measured there, at batch 128 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import tvm

from tvmconv.errors import NoValidConfigurationError
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import H100, Gpu, gpu_of

from ...space import Space, ceil_div, divisors, named, wasted
from ..gemm.tiles import (
    VECTOR,
    C,
    GemmConfig,
    blocks,
    chunks,
    constraints,
    copies_behind,
    fragments,
    part_channels,
    reads_zeros,
    shared_bytes,
    widest_store,
)
from ..machine import BLOCK_BYTES, REGISTERS, WARP
from ..tensor.model import saved_launch

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""The values of `split_k` to try; they need not divide the input channels."""

COPY, WAIT, COLD_WAIT, START, SECOND_KERNEL = 20, 450, 650, 8000, 4000
"""The issue slots of a copied element or vector, and the clocks of waits and of starts.

The clocks are those of a chunk in which a block alone waits, for shared memory and its barriers; more where it waits
for memory too; of launches, of which a first one lays out the weight; of a kernel that adds up the parts.
"""

BYTES_PER_CLOCK = 1700
"""The bytes per clock that an H100's memory moves, for parts on their way out and in again."""

MOST_ELEMENTS = 2**29 - 1, 2**31 - 1
"""The most elements of four bytes that `cp.async` reaches, and that TVM counts: constraints ask no more of them."""

WORTH_A_TRIAL = 1.5
"""The largest ratio of a configuration's time to the default's, by the model, in the space."""


def clocks(workload: ConvWorkload, config: GemmConfig, gpu: Gpu) -> Any:
    """Return the clocks of the busiest multiprocessor: a float, or an array for a config whose knobs are arrays."""
    share = ceil_div(blocks(workload, config), gpu.multiprocessors)
    together = np.minimum(share, resident_blocks(workload, config, gpu))
    copies = config.block_k * (config.block_m / config.load + config.block_n) / config.threads
    busy = (config.block_k * (config.outputs + fragments(config) / VECTOR) + COPY * copies) * config.threads / WARP / 4
    alone = busy + WAIT + COLD_WAIT * (config.num_stages == 1)
    computing = share / together * chunks(workload, config) * np.hypot(together * busy, alone)
    moved = 8.0 * config.split_k * prod(workload.output_shape)
    return START + computing + (config.split_k > 1) * (SECOND_KERNEL + moved / bytes_per_clock(gpu))


def estimated_clocks(problem: Problem, config: GemmConfig, gpu: Gpu) -> float:
    """Return the clocks of the busiest multiprocessor, or those of the memory where it takes longer."""
    workload, saved = problem.workload, saved_launch(problem) if config.packed else 0.0
    return float(max(clocks(workload, config, gpu), START + workload.bytes_moved / gpu.bytes_per_clock)) - saved


def bytes_per_clock(gpu: Gpu) -> float:
    """Return `BYTES_PER_CLOCK` of another GPU, in proportion to its memory."""
    return BYTES_PER_CLOCK * (gpu.bytes_per_clock / H100.bytes_per_clock)


def resident_blocks(workload: ConvWorkload, config: GemmConfig, gpu: Gpu) -> Any:
    """Return the number of blocks that a multiprocessor has room for at once; an array for knobs that are arrays."""
    registers = np.minimum(255, config.outputs + fragments(config) + 20) * config.threads
    shared = shared_bytes(workload, config) + BLOCK_BYTES
    by_memory = np.minimum(REGISTERS // registers, gpu.shared_bytes // shared)
    return np.maximum(1, np.minimum(by_memory, gpu.warps * WARP // config.threads))


def best_config(workload: ConvWorkload, target: tvm.target.Target, elements: int) -> GemmConfig:
    """Return the legal configuration, of a few, that the model finds the fastest, reading from so many elements."""
    return _best_config(workload, target, min(filter(elements.__le__, MOST_ELEMENTS), default=elements))


@lru_cache(maxsize=1024)
def _best_config(workload: ConvWorkload, target: tvm.target.Target, elements: int) -> GemmConfig:
    tried = _candidates(workload, elements)
    checks = constraints(workload, target, elements).values()
    for place in np.argsort(clocks(workload, tried, gpu_of(target)), kind="stable"):
        knobs = {name: value[place].item() if np.ndim(value) else value for name, value in vars(tried).items()}
        config = GemmConfig(**knobs)
        if all(holds(config) for holds in checks):
            return config
    raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")


def _candidates(workload: ConvWorkload, elements: int) -> GemmConfig:
    """Return configurations for the default, not all of them legal: a knob is one number, or an array of all."""
    narrow = (VECTOR,) if workload.multiplier > 16 else (4, 2, 1)
    reductions = [*_reductions(workload, elements)]
    tiles = (1, 2, 4, 8, 12, 16, 32), (4, 8, 16, 32), (1, 2, 3), (1, 2), narrow, range(len(reductions))
    *sizes, number = (axis.ravel() for axis in np.meshgrid(*tiles, indexing="ij"))
    threads_m, threads_n, vthreads_m, vthreads_n, thread_m = sizes
    knobs: dict[str, Any] = {
        "threads_m": threads_m,
        "threads_n": threads_n,
        "lanes_m": np.minimum(4, threads_m & -threads_m),
        "vthreads_m": vthreads_m,
        "vthreads_n": vthreads_n,
        "thread_m": thread_m,
        "thread_n": VECTOR,
        "packed": True,
        "load": thread_m,
        "store": widest_store(workload, VECTOR),
    }
    return GemmConfig(
        **knobs, **{knob: np.array([each[knob] for each in reductions])[number] for knob in reductions[0]}
    )


def _reductions(workload: ConvWorkload, elements: int) -> Iterator[dict[str, Any]]:
    """Yield the knobs of the reduction, which are tried with all tiles."""
    far = not copies_behind(workload, elements)
    for split_k in SPLITS:
        block_c, block_r, block_s = _chunk(workload, split_k)
        knobs: dict[str, Any] = {"block_c": block_c, "block_r": block_r, "block_s": block_s, "split_k": split_k}
        reduction = GemmConfig(1, 1, 1, 1, 1, 1, 1, **knobs)
        # A predicated cp.async is a branch, a predicated load is not: padding goes through registers, if they do.
        registers = far or reads_zeros(workload, reduction)
        num_stages = min(chunks(workload, reduction), 2 if registers else 3)
        yield {**knobs, "num_stages": num_stages, "asynchronous": not registers and num_stages > 1}
        if num_stages > 1:
            yield {**knobs, "num_stages": 1, "asynchronous": False}


def _chunk(workload: ConvWorkload, split_k: int) -> tuple[int, int, int]:
    """Return a chunk of some eight terms: input channels for one tap, and more taps where channels are too few."""
    share = ceil_div(workload.w_shape[1], split_k)

    def badness(size: tuple[int, int, int]) -> float:
        surplus = split_k * ceil_div(share, size[0]) * size[0] / workload.w_shape[1] - 1
        return abs(prod(size) - 8) + 20 * surplus + (surplus > 0)

    r, s = workload.kernel
    return min(product(range(min(16, share), 0, -1), sorted({1, r}), sorted({1, s})), key=badness)


def search_space(default: C, least: C, workload: ConvWorkload, target: tvm.target.Target, elements: int) -> Space[C]:
    """Return the configurations worth a trial: the model does not find them much slower than the default."""
    channels, (r, s) = workload.w_shape[1], workload.kernel
    gpu = gpu_of(target)
    bound = WORTH_A_TRIAL * clocks(workload, default, gpu)

    def short_chunks(config: GemmConfig) -> bool:
        whole_rows = config.block_s == s or config.block_r == 1
        return (7 <= config.block_k <= 18 and whole_rows) or config.block_k in (channels * r * s, default.block_k)

    def whole_gpu(config: GemmConfig) -> bool:
        return config.split_k == 1 or gpu.multiprocessors <= blocks(workload, config) <= 12 * gpu.multiprocessors

    def register_limit_that_matters(config: GemmConfig) -> bool:
        """Return whether the limit lets so many blocks in, taking at most a few registers from a kernel."""
        needed = config.min_blocks_per_sm * config.threads * 2 * config.outputs
        return config.min_blocks_per_sm == 1 or needed == REGISTERS

    def promising(config: GemmConfig) -> bool:
        return bool(clocks(workload, config, gpu) <= bound)

    knobs = {
        "threads_m": (4, 8, 12, 16, 32),
        "threads_n": (8, 16, 32),
        "lanes_m": (4,),
        "vthreads_m": (1, 2, 3),
        "vthreads_n": (1, 2, 4),
        "thread_m": (VECTOR,),
        "thread_n": (VECTOR,),
        "block_c": tuple(sorted({default.block_c, *divisors(channels, 16)})),
        "block_r": tuple(sorted({1, r})),
        "block_s": tuple(sorted({1, s})),
        "num_stages": (2, 3) if channels * r * s > 24 else (1, 2, 3),
        "asynchronous": (False, True),
        "packed": (True,),
        "load": (VECTOR,),
        "store": (widest_store(workload, VECTOR),),
        "split_k": SPLITS,
        "min_blocks_per_sm": (1, 2, 4, 8),
    }
    checks = constraints(workload, target, elements)
    return Space(default, least, knobs, checks, named(short_chunks, whole_gpu, register_limit_that_matters), promising)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take convolutions whose channels meet."""
    return None if problem.is_dense else "is for dense convolutions"


def features(problem: Problem, config: GemmConfig, target: tvm.target.Target) -> dict[str, Any]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload, gpu = problem.workload, gpu_of(target)
    grid, resident = blocks(workload, config), int(resident_blocks(workload, config, gpu))
    pixels, terms = workload.batch * prod(workload.output_size), workload.w_shape[1] * prod(workload.kernel)
    summed = part_channels(workload, config) * config.split_k * prod(workload.kernel)
    share = ceil_div(grid, gpu.multiprocessors)
    return {
        "clocks": float(clocks(workload, config, gpu)),
        "block_m": config.block_m,
        "block_n": config.block_n,
        "outputs": config.outputs,
        "threads": config.threads,
        "block_k": config.block_k,
        "chunks": chunks(workload, config),
        "blocks": grid,
        "resident": resident,
        "warps": min(share, resident) * config.threads / WARP,
        "balance": share * gpu.multiprocessors / grid,
        "waste_m": wasted(workload.multiplier, config.block_m),
        "waste_n": wasted(pixels, config.block_n),
        "waste_terms": summed / terms,
        "copied": config.block_k * (config.block_m / config.load + config.block_n) / config.threads,
        "copied_bytes": (1 / config.block_m + 1 / config.block_n) * summed,
        "shared_bytes": shared_bytes(workload, config),
        "zeros": reads_zeros(workload, config),
        "row": min(WARP, workload.output_size[1]),
        "terms": terms,
        "pixels": pixels,
        "rows": workload.multiplier,
        "groups": workload.groups,
    }
