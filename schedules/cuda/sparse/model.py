"""A model of the time of sparse convolutions on an H100.

Its ten numbers were fitted to some 220 configurations of 10 operators that were measured there with 90% zeros, at
batch 64 and 1. It is 12% off in the mean; the configuration that it finds the fastest of those measured takes 1.04
times as long as the fastest in the mean, and 1.12 times at most. With any operator left out of the fit, 1.04 and 1.12
times.
"""

from __future__ import annotations

from math import hypot, prod

from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, Gpu

from ...space import ceil_div, ceil_to
from ..machine import BLOCK_BYTES, REGISTERS
from .tiles import Config, blocks, copies, elements, registers, shared_bytes, staged_elements, window

INSTRUCTION_BYTES = 16

START, BARRIER, LATENCY = 2100, 50, 210
"""The clocks of a launch, of the barrier of a chunk, and until staged data has come from memory."""

COLD, FAR_COLD = 0.86, 4.1
"""The clocks of an instruction that a multiprocessor has not run yet, and the factor where it comes from far."""

MISSED, FETCHED = 6.9, 0.9
"""The clocks of an instruction that a multiprocessor has run but not kept: a block's wait, and the fetch.

During the fetch no other block gets an instruction.
"""

NEAR_CODE, FAR_CODE = 110 * 1024, 256 * 1024
"""The bytes of code of which half is still in a multiprocessor, or in the caches around it, when run again."""

L2_BYTES = 18.4
"""The bytes that the L2 cache moves in a clock for a multiprocessor."""

READ_AGAIN = 5 / 8
"""The share of the L2 cache that an input which is read again has beside the output."""

ROW_ENDS, SECTOR = 17, 32
"""The bytes moved in vain at the ends of a row; and the bytes of a piece that memory is moved in."""

LARGE_CODE, FROM_MEMORY = 64 * 1024, 16
"""The bytes of a kernel from which code comes from memory in each call, and then the clocks of an instruction."""


def clocks(workload: ConvWorkload, config: Config, gpu: Gpu, density: float, evicted: bool = False) -> float:
    """Return the clocks of the busiest multiprocessor, or of the memory.

    `evicted` says that the L2 cache has lost the code since the last call, as it does in a large network.
    """
    body, warps = instructions(workload, config, density), ceil_div(config.threads, WARP)
    grid, bodies = blocks(workload, config), ceil_div(workload.out_channels, config.block_m)
    share = ceil_div(grid * bodies, gpu.multiprocessors)
    together = min(share, resident_blocks(workload, config, gpu))
    running = min(bodies, max(1.0, together * gpu.multiprocessors / grid))  # of the bodies, at a time
    chunks = workload.in_channels // config.block_c

    code = INSTRUCTION_BYTES * body
    missed = body * _missed(code, NEAR_CODE)
    busy = warps * body / 4 + FETCHED * missed
    behind = max(0.0, LATENCY - (config.num_stages - 1) * busy / chunks)
    waiting = chunks * BARRIER + LATENCY + (chunks - 1) * behind
    computing = share / together * hypot(together * busy, busy + MISSED * missed + waiting)
    starting = COLD * body * min(bodies, share) * (1 + FAR_COLD * _missed(running * code, FAR_CODE))
    busiest = config.tiles * computing + starting
    if evicted and bodies * code > LARGE_CODE:
        busiest = hypot(config.tiles * computing, FROM_MEMORY * body * min(bodies, share))
    return START + _overlapped(busiest, *_moving(workload, config, gpu, together))


def _missed(size: float, room: float) -> float:
    """Return the share of data that has left memory of `room` bytes, when `size` bytes are used in turn again."""
    return 1 / (1 + (room / size) ** 4)


def _overlapped(*times: float) -> float:
    """Return the time of activities that go on at the same time: little more than the longest."""
    return float(sum(time**3 for time in times) ** (1 / 3))


def _moving(workload: ConvWorkload, config: Config, gpu: Gpu, together: int) -> tuple[float, float]:
    """Return the clocks of memory and of the L2 cache, where a multiprocessor has `together` blocks."""
    size, bodies = workload.itemsize, ceil_div(workload.out_channels, config.block_m)
    read, written = size * prod(workload.x_shape), size * prod(workload.output_shape)
    rows, columns = window(workload, config)
    tiles = bodies * blocks(workload, config) * config.tiles
    windows = tiles * workload.in_channels * config.images * rows * (columns * size + ROW_ENDS)
    if together * (shared_bytes(workload, config) + BLOCK_BYTES) > gpu.cached_shared_bytes:
        windows = windows * 3 // 2
    row = config.tile[1] * size
    cut = row % SECTOR > 0 and config.tile[1] < workload.output_size[1]
    written *= 1 + workload.epilogue.residual  # the residual is read where the output is written
    stored = written * (1 + (ROW_ENDS + SECTOR * cut) / row)
    again = (bodies - 1) * max(0.0, 1 - READ_AGAIN * gpu.l2_room / read)
    beyond = max(0.0, 1 - gpu.l2_room / (read + written))
    memory = beyond * (read * (1 + again) + stored)
    return memory / gpu.memory_bytes / gpu.multiprocessors, (windows + stored) / L2_BYTES / gpu.multiprocessors


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the number of blocks that a multiprocessor has room for at once."""
    warps = ceil_div(config.threads, WARP)
    block_registers = ceil_to(registers(workload, config), 8) * warps * WARP
    shared = shared_bytes(workload, config) + BLOCK_BYTES
    return max(1, min(REGISTERS // block_registers, gpu.shared_bytes // shared, gpu.warps // warps))


def instructions(workload: ConvWorkload, config: Config, density: float) -> float:
    """Return the instructions of a thread, which has no loops: the code of a block of output channels."""
    products = density * config.outputs * (workload.in_channels // workload.groups) * prod(workload.kernel)
    staging = (3 if copies(workload) else 6) * workload.in_channels * staged_elements(workload, config)
    end = workload.epilogue
    epilogue = 2 * end.residual + end.shift + end.operations(to_half=False)
    return products + loads(workload, config, density) + staging + (2 + epilogue) * config.outputs


def loads(workload: ConvWorkload, config: Config, density: float) -> float:
    """Return the elements that a thread reads from shared memory: those that one of its products needs."""
    return workload.in_channels * elements(workload, config) * (1 - (1 - density) ** config.block_m)
