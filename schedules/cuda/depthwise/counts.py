"""The work of a depthwise convolution's tiles on CUDA."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import tvm

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, wasted
from ..machine import LINE, SECTOR, SUM_BYTES, WORD, bank_reads, fetched_code
from ..model import Axes, Counts, first_warp, memory_bytes, touched
from .tiles import Config, blocks, staged_elements

LOADING, TESTING, STORING, FINISHING, BEGINNING = 3.0, 5.0, 3.0, 2.0, 60.0
"""The instructions for a load with its address, for the tests of whether a load is in the padding, for a store, for an
output's epilogue, and those that a thread begins with."""

STAGING, COPYING = 30.0, 10.0
"""The instructions of a thread for staging in shared memory: for a tap, or a load of a padded tile, with the divisions
that its index takes, and for a load or a store of planes that are copied whole."""

IN_FLIGHT, STAGED_IN_FLIGHT, COPIES_IN_FLIGHT = 16, 4, 8
"""The loads that a thread waits for together: unrolled ones, those of a padded tile, and the loads and stores by which
it copies whole planes."""


def counts(workload: ConvWorkload, config: Config, target: tvm.target.Target, resident: int) -> Counts:
    """Return the work of a kernel, where a multiprocessor has room for `resident` blocks."""
    taps, converted = prod(workload.kernel), workload.itemsize < SUM_BYTES
    in_shared, padded, warps = config.shared_input or config.flat, any(workload.padding), ceil_div(config.threads, WARP)
    own_taps, read = taps * config.siblings, _read(workload, config)
    staged, copied = _staged_loads(workload, config), _copied(workload, config)
    if in_shared:
        loads, reads_of_element = 0.0, float(_bank_reads(workload, config))
        reading = read * (1 + converted)
    else:
        loads, reads_of_element = read, _sectors(workload, config) * SECTOR / LINE
        reading = read * (LOADING + TESTING * padded + converted * config.load)
    unrolled = config.outputs * taps + reading + own_taps * (1 + converted)
    stored = config.outputs / (1 if config.flat else config.store)
    issued = fetched_code(unrolled) if config.unroll == 2 else unrolled
    issued += STAGING * (staged + config.shared_filter * config.planes * taps / config.threads) + COPYING * copied
    issued += STORING * stored + FINISHING * config.outputs + BEGINNING
    global_taps = 0 if config.shared_filter else own_taps
    issued += global_taps
    lines = _stored_lines(workload, config)
    arrivals = 1 + (loads + global_taps) / IN_FLIGHT + staged / STAGED_IN_FLIGHT + copied / COPIES_IN_FLIGHT
    waste = prod(map(wasted, workload.output_size, (config.block_y, config.block_x)))
    return Counts(
        blocks=blocks(workload, config),
        resident=resident,
        warps=warps,
        issued=issued,
        moved=waste * memory_bytes(workload, target),
        fetched=_block_elements(workload, config) * workload.itemsize,
        accessed=warps * (read * reads_of_element + stored * lines + staged + copied + own_taps + global_taps),
        arrivals=arrivals,
        serial=issued,
    )


def _read(workload: ConvWorkload, config: Config) -> float:
    """Return the number of loads by which a thread reads its window: of elements that are terms, or of vectors."""
    if config.unroll < 2:
        return config.outputs * prod(workload.kernel)
    tile, vthreads = (config.thread_y, config.thread_x), config.vthreads_y * config.vthreads_x
    sizes = zip(tile, workload.stride, workload.kernel, workload.dilation, strict=True)
    elements, vectors = prod(_reached(*size) for size in sizes), prod(workload.read_by(tile)) / config.load
    return vthreads * (elements if config.shared_input or config.flat else min(elements, vectors))


@lru_cache(maxsize=1024)
def _reached(outputs: int, stride: int, taps: int, dilation: int) -> int:
    """Return the number of different input rows, or columns, that `outputs` neighbouring outputs read."""
    return len({output * stride + tap * dilation for output in range(outputs) for tap in range(taps)})


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


def _block_elements(workload: ConvWorkload, config: Config) -> int:
    """Return the elements that a block reads and writes, and its taps."""
    block, channels = (config.block_y, config.block_x), ceil_div(config.planes, workload.multiplier)
    read = channels * prod(map(min, workload.read_by(block), (workload.height, workload.width)))
    return read + config.planes * (prod(map(min, block, workload.output_size)) + prod(workload.kernel))


def _stored_lines(workload: ConvWorkload, config: Config) -> int:
    """Return the accesses by which each thread of a warp stores an output: lines, or 1 in shared memory."""
    if config.flat:
        return 1
    height, width = workload.output_size
    steps = config.siblings * height * width, config.thread_y * width, config.thread_x
    return _touched(workload, config, steps, LINE)


def _sectors(workload: ConvWorkload, config: Config) -> int:
    """Return the sectors of the L2 cache that the threads of a warp touch as each loads an element of its window."""
    return _touched(workload, config, _thread_distances(workload, config, workload.height, workload.width), SECTOR)


def _touched(workload: ConvWorkload, config: Config, steps: Axes, unit: int) -> int:
    """Return the units of `unit` bytes that a warp touches as each thread accesses an element, `steps` apart."""
    z, y, x = (step * workload.itemsize for step in steps)
    return touched(_threads(config), (z, y, x), workload.itemsize, unit)


def _bank_reads(workload: ConvWorkload, config: Config) -> int:
    """Return the reads of the busiest bank of shared memory as each thread of a warp reads an element of its window."""
    rows, columns = workload.height, workload.width
    if config.shared_input:
        rows, _ = workload.read_by((config.block_y, config.block_x))
        columns = staged_elements(workload, config, (config.block_y, config.block_x)) // rows
    elements = first_warp(_threads(config), _thread_distances(workload, config, rows, columns))
    return bank_reads({element * workload.itemsize // WORD for element in elements})


def _thread_distances(workload: ConvWorkload, config: Config, rows: int, columns: int) -> Axes:
    """Return the elements between the reads of neighbouring threads in z, y and x, of planes of `rows` and `columns`.

    Threads in z that read the same input channel are counted as if they read different parts of its plane.
    """
    stride_y, stride_x = workload.stride
    plane = rows * columns * config.siblings // workload.multiplier
    return plane, config.thread_y * stride_y * columns, config.thread_x * stride_x


def _threads(config: Config) -> Axes:
    return config.threads_z, config.threads_y, config.threads_x
