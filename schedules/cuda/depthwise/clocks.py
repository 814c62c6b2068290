"""A model of the time of a depthwise convolution's tiles on CUDA, by which the default configuration is chosen."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu

from ...space import ceil_div, ceil_to, wasted
from ..machine import LINE, QUARTERS, SECTOR, bank_reads
from ..template import resident_blocks
from ..tensor.model import mostly_largest
from .tiles import Config, blocks, shared_bytes, staged_elements, window_elements

# All of these were fitted together to 4695 measured configurations of 179 workloads, most of them in float32: those of
# benchmarks/defaults-h100.jsonl.gz, of tuning_logs/exhaustive, and of the records of an H100 and an H200. The fit is by
# the errors of the times, which are a quarter in the mean, and by how fast the configuration is that looks fastest.

START = 1790.0
"""The clocks of a kernel that has nothing to do."""

BLOCK = 64.3
"""The clocks of a multiprocessor for each of its blocks, beside what its threads do."""

MULTIPLY_ADD, SHARED_LOAD, PADDED_LOAD = 1.07, 2.25, 8.61
"""The instructions of a multiply-add, of a load from shared memory, and of a load from global memory with the tests of
whether it is in the padding; others cost what they touch."""

CODE, REFETCHED = 3100.0, 0.79e-3
"""The instructions that stay in a multiprocessor's cache, and what each that is beyond adds to the cost of all of them,
as a share."""

STAGED, STAGED_TAP, COPIED = 29.5, 43.7, 9.98
"""The instructions of a thread for what it stages in shared memory: for a load of a padded tile with its tests, for a
tap, and for a load or a store of planes that are copied as they lie."""

SECTOR_LOADED, BANK_READ, LINE_STORED = 0.113, 0.34, 3.54
"""The clocks of a multiprocessor for each sector that a warp's load touches, for each read of a bank of shared
memory, and for each line that a warp's store touches."""

LATENCY, STEP_LATENCY, STAGED_LATENCY, COPIED_LATENCY, TAP_LATENCY = 669.0, 1.4, 235.0, 72.4, 22.9
"""The clocks that a thread has to wait, however few there are: once, for each multiply-add and load from shared memory,
for each load of a padded tile, for each load or store of a copy, and for each tap that it reads through the cache."""

WORD = 4
"""The bytes of a word, of which a bank of shared memory gives one at a time."""

OWN_REGISTERS = 24
"""The registers of a thread beside its outputs and its window."""

MEMORY_BYTES, CACHED_BYTES = 15.4, 31.7
"""The bytes that memory moves, a clock and multiprocessor, and those of the L2 cache, which holds a small problem."""


def clocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> float:
    """Return the clocks that a kernel takes whose operands the caches hold, as far as they have room."""
    taps, in_shared = prod(workload.kernel), config.shared_input or config.flat
    warps, grid = ceil_div(config.threads, WARP), blocks(workload, config)
    multiply_adds, window = config.outputs * taps, _window(workload, config)
    staged, copied = _staged_loads(workload, config), _copied(workload, config)
    own_taps = taps * config.siblings
    refetched = 1 + REFETCHED * max(0.0, multiply_adds + window + own_taps - CODE)
    if in_shared:
        read, moved = SHARED_LOAD * window, BANK_READ * window * _reads(workload, config)
    else:
        read = PADDED_LOAD * window * any(workload.padding)
        moved = SECTOR_LOADED * window * _sectors(workload, config)
    moved += 0.0 if config.flat else LINE_STORED * _stored_lines(workload, config) * config.outputs / config.store
    instructions = refetched * (MULTIPLY_ADD * multiply_adds + read) + STAGED * staged + COPIED * copied
    instructions += STAGED_TAP * config.shared_filter * config.planes * taps / config.threads
    latency = LATENCY + STEP_LATENCY * (refetched * multiply_adds + in_shared * window)
    latency += STAGED_LATENCY * staged + COPIED_LATENCY * copied
    latency += 0.0 if config.shared_filter else TAP_LATENCY * own_taps

    blocks_each = ceil_div(grid, gpu.multiprocessors)
    resident = resident_blocks(gpu, config.threads, registers_of(workload, config), shared_bytes(workload, config))
    together = min(resident, blocks_each)
    busy = together * warps
    turn = mostly_largest(busy * instructions / QUARTERS, busy * moved, latency)
    turns = (blocks_each / together + ceil_div(blocks_each, together)) / 2  # blocks begin as others end
    waste = prod(map(wasted, workload.output_size, (config.block_y, config.block_x)))
    per_clock = MEMORY_BYTES if workload.bytes_moved > gpu.l2_room else CACHED_BYTES
    memory = workload.bytes_moved * waste / (gpu.multiprocessors * per_clock)
    return START + mostly_largest(turns * turn + BLOCK * blocks_each, memory)


def _window(workload: ConvWorkload, config: Config) -> float:
    """Return the loads by which a thread reads the input, from memory or from what is staged of it."""
    if config.unroll < 2:
        return config.outputs * prod(workload.kernel)
    window = prod(workload.read_by((config.thread_y, config.thread_x))) * config.vthreads_y * config.vthreads_x
    return window if config.shared_input or config.flat else window / config.load


def _staged_loads(workload: ConvWorkload, config: Config) -> int:
    """Return the loads by which a thread stages its part of a padded tile."""
    if not config.shared_input:
        return 0
    rows, _ = workload.read_by((config.block_y, config.block_x))
    channels = ceil_div(config.planes, workload.multiplier)
    loads = staged_elements(workload, config, (config.block_y, config.block_x)) // rows // config.load
    return ceil_div(channels * rows, config.threads_z * config.threads_y) * ceil_div(loads, config.threads_x)


def _copied(workload: ConvWorkload, config: Config) -> float:
    """Return the loads and stores by which a thread copies its part of whole planes."""
    if not config.flat:
        return 0.0
    read = ceil_div(config.planes, workload.multiplier) * workload.height * workload.width
    return (read / config.load + config.planes * prod(workload.output_size) / config.store) / config.threads


def registers(workload: ConvWorkload, config: Config) -> int:
    """Return the registers of a thread."""
    return OWN_REGISTERS + config.outputs + window_elements(workload, config)


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers that a thread takes, which it gets in eights."""
    return ceil_to(registers(workload, config), 8)


def _stored_lines(workload: ConvWorkload, config: Config) -> int:
    """Return the lines of the L2 cache that the threads of a warp touch as each stores an output."""
    height, width = workload.output_size
    steps = config.siblings * height * width, config.thread_y * width, config.thread_x
    return len({place * workload.itemsize // LINE for place in _places(config, steps)})


def _sectors(workload: ConvWorkload, config: Config) -> int:
    """Return the sectors of the L2 cache that the threads of a warp touch as each loads an element of its window."""
    steps = _steps(workload, config, workload.height, workload.width)
    return len({place * workload.itemsize // SECTOR for place in _places(config, steps)})


def _reads(workload: ConvWorkload, config: Config) -> int:
    """Return the times that a bank of shared memory is read as each thread of a warp reads an element of its window."""
    rows, columns = workload.height, workload.width
    if config.shared_input:
        rows, _ = workload.read_by((config.block_y, config.block_x))
        columns = staged_elements(workload, config, (config.block_y, config.block_x)) // rows
    words = {place * workload.itemsize // WORD for place in _places(config, _steps(workload, config, rows, columns))}
    return bank_reads(words)


def _steps(workload: ConvWorkload, config: Config, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the elements between what neighbouring threads in z, y and x read of planes with so many columns.

    Threads of one input channel, as they are where each has one of several outputs, are taken to read parts of a plane.
    """
    stride_y, stride_x = workload.stride
    plane = rows * columns * config.siblings // workload.multiplier
    return plane, config.thread_y * stride_y * columns, config.thread_x * stride_x


def _places(config: Config, steps: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the elements of the threads of the first warp, at steps between neighbours in z, y and x."""
    return _of_threads(config.threads_y, config.threads_x, min(WARP, config.threads), steps)


@lru_cache(maxsize=1024)
def _of_threads(threads_y: int, threads_x: int, count: int, steps: tuple[int, int, int]) -> tuple[int, ...]:
    z, y, x = steps
    return tuple(
        thread // (threads_x * threads_y) * z + thread // threads_x % threads_y * y + thread % threads_x * x
        for thread in range(count)
    )
