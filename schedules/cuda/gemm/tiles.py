"""Code that the CUDA schedules of dense convolutions share: the tiles of a matrix product, and their constraints.

Rows of the product are output channels of a group, columns are pixels of all images, and its terms are input channels
and taps. A block computes a tile of it, and a thread a micro-tile in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, TypeVar

import tvm

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import gpu_of

from ...space import ceil_div, ceil_to, named
from ..machine import BLOCK_BYTES, REGISTERS, SHARED_ALIGNMENT, WARP

VECTOR = 4


@dataclass(frozen=True)
class GemmConfig:
    """The knobs. A block computes `vthreads * threads * outputs of a thread` channels and pixels."""

    threads_m: int
    """The number of threads of a block along the output channels."""
    threads_n: int
    """The number of threads of a block along the pixels."""
    lanes_m: int
    """The number of threads of a warp along the output channels; the others of its 32 lie along the pixels."""
    vthreads_m: int
    """The number of strided parts of a block; each thread works in all of them."""
    vthreads_n: int
    thread_m: int
    """The number of neighbouring output channels that a thread computes in each of its vthreads."""
    thread_n: int
    """The number of neighbouring pixels, likewise."""
    block_c: int
    """The number of input channels of a chunk of the reduction."""
    block_r: int
    """The number of rows of the kernel in a chunk."""
    block_s: int
    """The number of columns of the kernel in a chunk."""
    num_stages: int = 1
    """The number of chunks in shared memory: 1 computes after each copy, more copy the next ones meanwhile."""
    asynchronous: bool = False
    """True to copy the next chunks with cp.async, else one goes through registers."""
    packed: bool = False
    """True to lay the weight out in tiles first, else it is read as it is."""
    load: int = 1
    """The number of neighbouring elements of the packed weight that one load instruction reads."""
    store: int = 1
    """The number of neighbouring pixels that one store instruction writes."""
    split_k: int = 1
    """The number of parts of the reduction, which blocks share."""
    min_blocks_per_sm: int = 1
    """The number of blocks that a multiprocessor has to have room for, which limits the registers."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {
        "channels": "thread_m",
        "pixels": "thread_n",
        "chunk_c": "block_c",
        "chunk_r": "block_r",
        "chunk_s": "block_s",
        "stages": "num_stages",
        "parts": "split_k",
        "resident": "min_blocks_per_sm",
    }

    @property
    def threads(self) -> int:
        return self.threads_m * self.threads_n

    @property
    def block_m(self) -> int:
        """The number of output channels of a block."""
        return self.vthreads_m * self.threads_m * self.thread_m

    @property
    def block_n(self) -> int:
        """The number of pixels of a block."""
        return self.vthreads_n * self.threads_n * self.thread_n

    @property
    def outputs(self) -> int:
        """The number of outputs of a thread."""
        return self.vthreads_m * self.thread_m * self.vthreads_n * self.thread_n

    @property
    def block_k(self) -> int:
        """The number of terms of the reduction in a chunk."""
        return self.block_c * self.block_r * self.block_s


C = TypeVar("C", bound=GemmConfig)


def ablations(config: C) -> dict[str, C]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one.

    They are those whose worth the im2win thesis measures (figure 4-9), and the packed weight. Without vectors a thread
    has as many outputs, and without the micro-kernel it has one. Not all are legal for every workload, or differ.
    """
    apart: dict[str, Any] = {
        "vthreads_m": config.vthreads_m * config.thread_m,
        "vthreads_n": config.vthreads_n * config.thread_n,
    }
    single: dict[str, Any] = dict.fromkeys(
        ("vthreads_m", "vthreads_n", "thread_m", "thread_n", "store", "min_blocks_per_sm"), 1
    )
    return {
        "micro-kernel": replace(config, threads_m=16, threads_n=32, lanes_m=4, load=min(config.load, VECTOR), **single),
        "vector loads": replace(config, **apart, thread_m=1, thread_n=1, load=1, store=1),
        "prefetch": replace(config, num_stages=1, asynchronous=False),
        "packing": replace(config, packed=False, load=1),
    }


def constraints(
    workload: ConvWorkload, target: tvm.target.Target, elements: int
) -> dict[str, Callable[[GemmConfig], bool]]:
    """Return the tests that a configuration must pass, by name, where columns are read from so many elements."""
    max_threads = int(target.attrs["max_threads_per_block"])
    max_shared = int(target.attrs["max_shared_memory_per_block"])
    gpu = gpu_of(target)
    channels, kernel = workload.w_shape[1], workload.kernel
    plane = prod(workload.output_size)

    def whole_warps(config: GemmConfig) -> bool:
        lanes_n = WARP // config.lanes_m
        return (
            WARP % config.lanes_m == 0
            and config.threads_m % config.lanes_m == 0
            and config.threads_n % lanes_n == 0
            and config.threads <= max_threads
        )

    def whole_chunks(config: GemmConfig) -> bool:
        return kernel[0] % config.block_r == 0 and kernel[1] % config.block_s == 0

    def parts_with_terms(config: GemmConfig) -> bool:
        return (config.split_k - 1) * part_channels(workload, config) < channels

    def pipeline(config: GemmConfig) -> bool:
        """Return whether registers hold one chunk, and a pipeline has as many chunks as stages."""
        fits = copies_behind(workload, elements) if config.asynchronous else config.num_stages <= 2
        ahead = config.num_stages > 1 or not config.asynchronous
        return fits and ahead and chunks(workload, config) >= config.num_stages

    def whole_loads(config: GemmConfig) -> bool:
        whole = config.block_m % config.load == 0 and config.load * workload.itemsize <= 16
        return config.load == 1 or (config.packed and config.load in (2, 4, 8) and whole)

    def whole_stores(config: GemmConfig) -> bool:
        return config.store in (1, 2, 4) and plane % config.store == 0 and config.thread_n % config.store == 0

    def shared_memory(config: GemmConfig) -> bool:
        return shared_bytes(workload, config) <= max_shared

    def held(config: GemmConfig) -> float:
        """Return the elements of a chunk that a thread has in registers on their way."""
        through = not config.asynchronous and config.num_stages > 1
        return config.block_k * (config.block_m + config.block_n) / config.threads if through else 0

    def registers(config: GemmConfig) -> bool:
        """Return whether outputs and copies fit registers: addresses, and elements that go through registers."""
        copies = config.block_k * (config.block_m / config.load + config.block_n) / config.threads
        return config.outputs <= 144 and copies <= 64 and held(config) <= 24

    def room(config: GemmConfig) -> bool:
        """Return whether the registers that are left hold the outputs, and about as much beside them."""
        left = REGISTERS // (config.threads * config.min_blocks_per_sm)
        least = max(2 * config.outputs, config.outputs + fragments(config) + held(config) + 32)
        shared = config.min_blocks_per_sm * (shared_bytes(workload, config) + BLOCK_BYTES)
        return config.min_blocks_per_sm == 1 or (left >= least and shared <= gpu.shared_bytes)

    def straight_line(config: GemmConfig) -> bool:
        return config.outputs * config.block_k * config.num_stages <= 8192

    def grid(config: GemmConfig) -> bool:
        return blocks(workload, config) < 2**31 and config.split_k < 2**16

    def indices(config: GemmConfig) -> bool:
        """Return whether TVM can count the elements in 32 bits, those of the sums and of the packed weight too."""
        rows = workload.groups * ceil_div(workload.multiplier, config.block_m) * config.block_m
        depth = config.split_k * part_channels(workload, config) * prod(kernel)
        return max(elements, config.split_k * prod(workload.output_shape), rows * depth) < 2**31

    return named(
        whole_warps,
        whole_chunks,
        parts_with_terms,
        pipeline,
        whole_loads,
        whole_stores,
        shared_memory,
        registers,
        room,
        straight_line,
        grid,
        indices,
    )


def fragments(config: GemmConfig) -> int:
    """Return the number of elements of both factors that a thread multiplies at a time."""
    return config.vthreads_m * config.thread_m + config.vthreads_n * config.thread_n


def widest_store(workload: ConvWorkload, pixels: int) -> int:
    """Return the neighbouring pixels, of so many, that one instruction can store wherever they begin."""
    return next(width for width in (4, 2, 1) if pixels % width == 0 and prod(workload.output_size) % width == 0)


def part_channels(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the input channels that a block sums over, rounded up to whole chunks."""
    return ceil_div(workload.w_shape[1], config.split_k * config.block_c) * config.block_c


def copies_behind(workload: ConvWorkload, elements: int) -> bool:
    """Return whether cp.async can copy from so many elements.

    They have 4 bytes at least, and TVM counts bytes there in 32 bits.
    """
    return workload.itemsize == 4 and elements * workload.itemsize < 2**31


def reads_zeros(workload: ConvWorkload, config: GemmConfig) -> bool:
    """Return whether copies of the input have to test each element: for padding, or past the last channel."""
    return any(workload.padding) or part_channels(workload, config) * config.split_k != workload.w_shape[1]


def chunks(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the number of chunks that a block goes through."""
    return part_channels(workload, config) * prod(workload.kernel) // config.block_k


def blocks(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the blocks of the grid, without those that lay out the weight or add up the parts."""
    rows = workload.groups * ceil_div(workload.multiplier, config.block_m)
    return config.split_k * rows * ceil_div(workload.batch * prod(workload.output_size), config.block_n)


def shared_bytes(workload: ConvWorkload, config: GemmConfig) -> int:
    """Return the shared memory of a block, in bytes.

    For weights that are not packed TVM leaves out the end of the last row.
    """
    row = config.block_m if config.packed else ceil_div(config.block_m - VECTOR, WARP) * WARP + VECTOR
    size = config.block_k * config.num_stages * workload.itemsize
    return ceil_to(row * size, SHARED_ALIGNMENT) + ceil_to(config.block_n * size, SHARED_ALIGNMENT)
