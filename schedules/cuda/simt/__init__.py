"""Dense convolution on the CUDA cores of NVIDIA GPUs, as a matrix product: direct, and over im2win's windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import tvm

from tvmconv.problem import Problem
from tvmconv.problem.errors import NoValidConfigurationError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu, gpu_of

from ...space import Space, ceil_div, divisors, named, wasted
from ...template import Layouts
from ..gemm.tiles import (
    VECTOR,
    GemmConfig,
    block_channels,
    blocks,
    chunks,
    copies_behind,
    fragments,
    reads_zeros,
    shared_bytes,
    widest_store,
)
from ..machine import BLOCK_BYTES, REGISTERS, SUM_BYTES
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests
from .candidates import SPLITS, candidates, copies, knobs_at, registers_of, resident_blocks, spilled

COPYING, TESTING, TURNING, STORING, BEGINNING = 14.0, 10.0, 40.0, 4.0, 100.0
"""The instructions of a thread: for each element or vector that it copies, for the test whether that lies inside the
input, for each chunk beside its products, for each output that it stores, and once at the beginning."""

MEETING = 80.0
"""The clocks of waiting at the barriers of a chunk, for each warp of a block after the first."""

LOADED_AT_ONCE = 4
"""The elements or vectors that a thread waits for together where shared memory has one stage alone."""

VECTOR_ACCESSES = 2
"""The accesses to shared memory by which a warp loads vectors of a factor: several threads load the same one."""


class Simt(GpuTemplate[GemmConfig]):
    """Dense convolution as a matrix product on CUDA cores, whose columns are read from one tensor or another."""

    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = GemmConfig(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    examples = (
        Problem(ConvWorkload.conv2d((2, 16, 9, 11), (24, 16, 3, 3), shift=True, residual=True, activation="relu")),
        Problem(ConvWorkload.conv2d((2, 16, 12, 12), (64, 8, 3, 3), groups=2, stride=2, dilation=2, scale=True)),
        Problem(ConvWorkload.conv2d((1, 3, 27, 27), (41, 3, 7, 7), stride=2, padding="VALID", dtype="float16")),
        Problem(ConvWorkload.conv2d((1, 38, 9, 9), (34, 19, 3, 3), groups=2, dtype="bfloat16"), open_sizes=OPEN_SIZES),
    )
    MAX_UNROLLED = 8192

    @abstractmethod
    def elements(self, workload: ConvWorkload) -> int:
        """Return the number of elements of the tensor that columns are read from."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take dense convolutions."""
        return None if problem.is_dense else "is for dense convolutions"

    def registers(self, problem: Problem, config: GemmConfig) -> int:
        return int(registers_of(config))

    def shared_bytes(self, problem: Problem, config: GemmConfig) -> int:
        return shared_bytes(problem.workload, config)

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
        return int(target.attrs["max_shared_memory_per_block"])

    def blocks(self, problem: Problem, config: GemmConfig) -> int:
        return blocks(problem.workload, config)

    def blocks_y(self, problem: Problem, config: GemmConfig) -> int:
        return config.split_k

    def instructions(self, problem: Problem, config: GemmConfig) -> int:
        """Return the multiply-adds of the chunks that shared memory has room for."""
        return config.outputs * config.block_k * config.num_stages

    def rules(self, problem: Problem) -> Tests[GemmConfig]:
        workload, elements = problem.workload, self.elements(problem.workload)
        channels, kernel, plane = workload.w_shape[1], workload.kernel, prod(workload.output_size)

        def whole_warps(config: GemmConfig) -> bool:
            lanes_n = WARP // config.lanes_m
            return (
                WARP % config.lanes_m == 0
                and config.threads_m % config.lanes_m == 0
                and config.threads_n % lanes_n == 0
            )

        def whole_chunks(config: GemmConfig) -> bool:
            return kernel[0] % config.block_r == 0 and kernel[1] % config.block_s == 0

        def splits_with_terms(config: GemmConfig) -> bool:
            return (config.split_k - 1) * block_channels(workload, config) < channels

        def pipeline(config: GemmConfig) -> bool:
            """Return whether copies ahead are possible in this way, and there is at least a chunk for each stage."""
            fits = copies_behind(workload, elements) if config.asynchronous else config.num_stages <= 2
            ahead = config.num_stages > 1 or not config.asynchronous
            return fits and ahead and chunks(workload, config) >= config.num_stages

        def whole_loads(config: GemmConfig) -> bool:
            whole = config.block_m % config.load == 0 and config.load * workload.itemsize <= 16
            return config.load == 1 or (config.packed and config.load in (2, 4, 8) and whole)

        def whole_stores(config: GemmConfig) -> bool:
            return config.store in (1, 2, 4) and plane % config.store == 0 and config.thread_n % config.store == 0

        def indices(config: GemmConfig) -> bool:
            """Return whether TVM can count the elements in 32 bits, those of the sums and of the packed weight too."""
            rows = workload.groups * ceil_div(workload.multiplier, config.block_m) * config.block_m
            depth = config.split_k * block_channels(workload, config) * prod(kernel)
            return max(elements, config.split_k * prod(workload.output_shape), rows * depth) < 2**31

        return named(whole_warps, whole_chunks, splits_with_terms, pipeline, whole_loads, whole_stores, indices)

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[GemmConfig]:
        """Return the tests that a configuration must pass, among them of registers and of shared memory.

        Outputs, copies and the elements that go through registers are limited, however many threads there are. Where
        `min_blocks_per_sm` is above 1, blocks also have to fit into the registers and the shared memory of a
        multiprocessor.
        """
        workload, gpu = problem.workload, gpu_of(target)

        def registers(config: GemmConfig) -> bool:
            """Return whether outputs and copies fit registers: addresses, and elements that go through registers."""
            return config.outputs <= 144 and copies(config) <= 64 and _held(config) <= 24

        def room(config: GemmConfig) -> bool:
            """Return whether the registers that are left hold the outputs, and about the same number besides."""
            left = REGISTERS // (config.threads * config.min_blocks_per_sm)
            least = max(2 * config.outputs, config.outputs + fragments(config) + _held(config) + 32)
            shared = config.min_blocks_per_sm * (shared_bytes(workload, config) + BLOCK_BYTES)
            return config.min_blocks_per_sm == 1 or (left >= least and shared <= gpu.shared_bytes)

        return {**super().constraints(problem, target), **named(registers, room)}

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[GemmConfig]:
        """Return the candidates from the fastest on: the model tells the clocks of all of them at once, as arrays."""
        tried = candidates(problem.workload, self.elements(problem.workload))
        order = np.argsort(super().estimate(problem, tried, target), kind="stable")
        return (self.Config(**knobs) for knobs in knobs_at(tried, order))

    def default_config(self, problem: Problem, target: tvm.target.Target) -> GemmConfig:
        """Return the first legal candidate, which is the fastest: few of the thousands are looked at one by one."""
        legal = self.legal(self.candidates(problem, target), problem, target)
        if (best := next(legal, None)) is None:
            raise NoValidConfigurationError(f"{problem}: no configuration is legal on {target}")
        return best

    def knobs(self, problem: Problem, default: GemmConfig) -> Mapping[str, tuple[Any, ...]]:
        channels, (r, s) = problem.workload.w_shape[1], problem.workload.kernel
        return {
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
            "store": (widest_store(problem.workload, VECTOR),),
            "split_k": SPLITS,
            "min_blocks_per_sm": (1, 2, 4, 8),
        }

    def space(self, problem: Problem, target: tvm.target.Target) -> Space[GemmConfig]:
        """Return the configurations worth a trial: heuristics know the default and the GPU here."""
        workload, gpu, default = problem.workload, gpu_of(target), self.default_config(problem, target)
        channels, (r, s) = workload.w_shape[1], workload.kernel
        bound = self.WORTH_A_TRIAL * self.estimate(problem, default, target)

        def short_chunks(config: GemmConfig) -> bool:
            whole_rows = config.block_s == s or config.block_r == 1
            return (7 <= config.block_k <= 18 and whole_rows) or config.block_k in (channels * r * s, default.block_k)

        def whole_gpu(config: GemmConfig) -> bool:
            return config.split_k == 1 or gpu.multiprocessors <= blocks(workload, config) <= 12 * gpu.multiprocessors

        def effective_register_limit(config: GemmConfig) -> bool:
            """Return whether registers are not limited, or to exactly twice the outputs of a thread."""
            needed = config.min_blocks_per_sm * config.threads * 2 * config.outputs
            return config.min_blocks_per_sm == 1 or needed == REGISTERS

        def promising(config: GemmConfig) -> bool:
            return self.estimate(problem, config, target) <= bound

        heuristics = named(short_chunks, whole_gpu, effective_register_limit)
        constraints, knobs = self.constraints(problem, target), self.knobs(problem, default)
        return Space(default, self.LEAST, knobs, constraints, heuristics, promising)

    def resident_blocks(self, problem: Problem, config: GemmConfig, gpu: Gpu) -> int:
        """Return the number of blocks that a multiprocessor has room for, by the function that the model uses."""
        return int(resident_blocks(problem.workload, config, gpu))

    def counts(self, problem: Problem, config: GemmConfig, target: tvm.target.Target) -> Counts:
        """Return the work of the kernels; a config whose knobs are arrays has counts that are arrays."""
        workload, rounds = problem.workload, chunks(problem.workload, config)
        loads, fetched = config.block_k * fragments(config) / VECTOR, config.block_k * (config.block_m + config.block_n)
        reloads = 2 * config.block_k * spilled(config)
        converted = config.block_k * fragments(config) * (workload.itemsize < SUM_BYTES)
        products = config.block_k * config.outputs + loads + converted + reloads
        copying = copies(config) * (COPYING + TESTING * reads_zeros(workload, config))
        issued = rounds * (products + copying + TURNING) + config.outputs * STORING + BEGINNING
        warps, is_split, itemsize = ceil_div(config.threads, WARP), config.split_k > 1, workload.output_storage.itemsize
        written = config.block_m * config.block_n * (itemsize + (SUM_BYTES - itemsize) * is_split)
        lays_out = config.packed and not problem.constant_weight
        laid_out = lays_out * prod(workload.w_shape) * workload.itemsize
        sums = is_split * config.split_k * prod(workload.output_shape) * SUM_BYTES
        return Counts(
            blocks=blocks(workload, config),
            resident=resident_blocks(workload, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=rounds * fetched * workload.itemsize + written,
            accessed=warps * rounds * (VECTOR_ACCESSES * loads + copies(config) + reloads),
            arrivals=1 + rounds * (1 + (config.num_stages == 1) * (1 + copies(config) / LOADED_AT_ONCE)),
            serial=issued + rounds * MEETING * (warps - 1),
            kernels=1 + is_split + lays_out,
            beside=2.0 * (laid_out + sums),
        )

    def estimate(self, problem: Problem, config: GemmConfig, target: tvm.target.Target) -> float:
        """Return the clocks that a call should take, as a float of Python: counts are numbers of NumPy."""
        return float(super().estimate(problem, config, target))

    def sizes(self, problem: Problem, config: GemmConfig) -> Mapping[str, float]:
        workload = problem.workload
        pixels, terms = workload.batch * prod(workload.output_size), workload.w_shape[1] * prod(workload.kernel)
        summed = block_channels(workload, config) * config.split_k * prod(workload.kernel)
        return {
            "block_m": config.block_m,
            "block_n": config.block_n,
            "outputs": config.outputs,
            "block_k": config.block_k,
            "chunks": chunks(workload, config),
            "waste_m": wasted(workload.multiplier, config.block_m),
            "waste_n": wasted(pixels, config.block_n),
            "waste_terms": summed / terms,
            "copied": copies(config),
            "copied_bytes": (1 / config.block_m + 1 / config.block_n) * summed,
            "shared_bytes": shared_bytes(workload, config),
            "zeros": reads_zeros(workload, config),
            "row": min(WARP, workload.output_size[1]),
            "terms": terms,
            "pixels": pixels,
            "rows": workload.multiplier,
            "groups": workload.groups,
        }

    def features(self, problem: Problem, config: GemmConfig, target: tvm.target.Target) -> dict[str, float]:
        """Return features for a cost model besides the knobs, with how blocks share the GPU."""
        gpu, grid = gpu_of(target), blocks(problem.workload, config)
        share, resident = ceil_div(grid, gpu.multiprocessors), self.resident_blocks(problem, config, gpu)
        return {
            **super().features(problem, config, target),
            "resident": resident,
            "warps": min(share, resident) * config.threads / WARP,
            "balance": share * gpu.multiprocessors / grid,
        }

    def ablations(self, config: GemmConfig) -> dict[str, GemmConfig]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one.

        They are those that the im2win thesis measures (figure 4-9), and the packed weight. Without vectors a thread
        has the same number of outputs, and without the micro-kernel it has one. Some may not be legal for a workload,
        or may equal the configuration.
        """
        separate_pixels: dict[str, Any] = {
            "vthreads_m": config.vthreads_m * config.thread_m,
            "vthreads_n": config.vthreads_n * config.thread_n,
        }
        single: dict[str, Any] = dict.fromkeys(
            ("vthreads_m", "vthreads_n", "thread_m", "thread_n", "store", "min_blocks_per_sm"), 1
        )
        load = min(config.load, VECTOR)
        return {
            "micro-kernel": replace(config, threads_m=16, threads_n=32, lanes_m=4, load=load, **single),
            "vector loads": replace(config, **separate_pixels, thread_m=1, thread_n=1, load=1, store=1),
            "prefetch": replace(config, num_stages=1, asynchronous=False),
            "packing": replace(config, packed=False, load=1),
        }


def _held(config: GemmConfig) -> float:
    """Return the elements of a chunk that a thread holds in registers on their way to shared memory."""
    through = not config.asynchronous and config.num_stages > 1
    return config.block_k * (config.block_m + config.block_n) / config.threads if through else 0
