"""A bound of the time of depthwise convolutions on CUDA, and the tests of tiles worth a trial."""

from __future__ import annotations

from math import prod

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu

from ...space import named, wasted
from ..simt.model import START, bytes_per_clock
from ..template import Tests
from ..tensor.model import mostly_largest
from .default import full_gpu_threads
from .tiles import Config, blocks

THREAD_BYTES = 24
"""The bytes that memory moves in the time that a thread costs for itself.

On an H200 kernels of four outputs a thread took 1.1 to 2.2 times as long as those of sixteen (MobileNetV2, batch 32).
"""

MULTIPLY_ADDS = 51.0
"""The multiply-adds of a multiprocessor in a clock, of 128 at best: on an H200 windows from 5x5 to 31x31 in float16
took 0.8 to 1.05 of the time that this tells.
"""

STAGED = 15.0
"""The multiply-adds in the time that staging an element in shared memory takes, with its tests and the waiting.

It lies between two windows in float16 on an H200: 13x13 on planes of 7x7, which stages 400 elements for 49 outputs and
took 57 µs where multiply-adds alone told 35, and 31x31 on planes of 56x56, of which they told all.
"""


def least_clocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> float:
    """Return the clocks that memory takes to move the operands once, with what whole blocks read and write in vain.

    Each thread adds some for itself. Large windows take longer, which multiply-adds bound, and the elements that are
    staged for them.
    """
    waste = prod(map(wasted, workload.output_size, (config.block_y, config.block_x)))
    threads = prod(workload.output_shape) / config.outputs
    moved = waste * (workload.bytes_moved + THREAD_BYTES * threads)
    staged = config.shared_input * prod(workload.read_by((config.block_y, config.block_x)))
    staging = STAGED * staged * blocks(workload, config) * config.planes / workload.multiplier
    computed = (waste * workload.flops / 2 + staging) / (MULTIPLY_ADDS * gpu.multiprocessors)
    return START + mostly_largest(moved / bytes_per_clock(gpu), computed)


def heuristics(workload: ConvWorkload, gpu: Gpu) -> Tests[Config]:
    """Return tests that select legal configurations worth building, by name.

    Without them a space has some hundred times as many configurations.
    """
    height, width = workload.output_size
    share = prod(workload.output_shape) / full_gpu_threads(gpu)

    def widest_stores(config: Config) -> bool:
        return config.flat or config.thread_x == config.store or width % config.thread_x != 0

    def neighbours_read_together(config: Config) -> bool:
        return config.flat or (
            config.thread_x <= (16 // workload.itemsize if height > 1 else 8) and config.threads_x > 1
        )

    def whole_warps(config: Config) -> bool:
        return config.threads <= 256 and wasted(config.threads, 32) <= 1.35

    def enough_threads(config: Config) -> bool:
        return config.threads >= 32 and blocks(workload, config) >= min(gpu.multiprocessors, 512 * share)

    def little_waste(config: Config) -> bool:
        return wasted(height, config.block_y) <= 1.2 and wasted(width, config.block_x) <= 1.2

    def few_registers(config: Config) -> bool:
        return config.outputs <= 32

    def enough_work(config: Config) -> bool:
        return config.outputs >= min(4, share / 2)

    def one_stage(config: Config) -> bool:
        return not (config.shared_input and config.shared_filter)

    def one_way_of_striding(config: Config) -> bool:
        return config.vthreads_y * config.vthreads_x <= (2 if height > 1 else 8)

    return named(
        widest_stores,
        neighbours_read_together,
        whole_warps,
        enough_threads,
        little_waste,
        few_registers,
        enough_work,
        one_stage,
        one_way_of_striding,
    )
