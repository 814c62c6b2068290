"""The configurations that the default of a matrix product on CUDA cores is chosen from, and their resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu

from ...space import ceil_div
from ..gemm.tiles import (
    VECTOR,
    GemmConfig,
    chunks,
    copies_behind,
    fragments,
    reads_zeros,
    shared_bytes,
    widest_store,
)
from ..machine import BLOCK_BYTES, MAX_REGISTERS, REGISTERS

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""The values of `split_k` to try; they need not divide the input channels."""

OTHER_REGISTERS = 20
"""The registers of a thread besides its outputs and the factors that it multiplies."""


def copies(config: GemmConfig) -> Any:
    """Return the elements of a chunk, or vectors of the weight, that a thread copies; an array for arrays."""
    return config.block_k * (config.block_m / config.load + config.block_n) / config.threads


def registers_of(config: GemmConfig) -> Any:
    """Return the registers of a thread, roughly; an array for knobs that are arrays."""
    return np.minimum(_max_registers(config), _wanted_registers(config))


def spilled(config: GemmConfig) -> Any:
    """Return the registers that a thread wants and does not get; an array for knobs that are arrays."""
    return np.maximum(0, _wanted_registers(config) - _max_registers(config))


def _wanted_registers(config: GemmConfig) -> int:
    return config.outputs + fragments(config) + OTHER_REGISTERS


def _max_registers(config: GemmConfig) -> Any:
    return np.minimum(MAX_REGISTERS, REGISTERS // (config.threads * config.min_blocks_per_sm))


def resident_blocks(workload: ConvWorkload, config: GemmConfig, gpu: Gpu) -> Any:
    """Return the number of blocks that a multiprocessor has room for at once; an array for knobs that are arrays."""
    registers = registers_of(config) * config.threads
    shared = shared_bytes(workload, config) + BLOCK_BYTES
    by_memory = np.minimum(REGISTERS // registers, gpu.shared_bytes // shared)
    return np.maximum(1, np.minimum(by_memory, np.minimum(gpu.blocks, gpu.warps * WARP // config.threads)))


def knobs_at(tried: GemmConfig, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the knobs of the configurations at some indices, of a config whose knobs are numbers or arrays."""
    for index in indices:
        yield {name: value[index].item() if np.ndim(value) else value for name, value in vars(tried).items()}


def candidates(workload: ConvWorkload, elements: int) -> GemmConfig:
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
