"""The tables of the TVM depthwise tutorial, each row a configuration of the one CUDA template, measured here.

Y. Hu, "Optimize Deep Learning GPU Operators with TVM: A Depthwise Convolution Example", 2017. Its tables have a block
for a whole channel against one of 32x32 outputs, counts of threads, counts of vthreads, larger kernels with more
outputs a channel, and scale, shift and ReLU in the same kernel. The input is 1x256xHxW in float32, the stride 1, the
padding SAME. Where the tutorial does not say how many threads a block has, 16x16 are taken, or 8x8 where a channel is
too small for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm

from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.cuda.depthwise.tiles import LEAST, Config
from tvmconv.schedules.space import ceil_div

from ..peers import LIMITS, OURS
from ..peers.ours import Configured
from ..peers.pytorch import PyTorch
from ..report import Row
from ..suite import How, measure_row

SOURCE = "TVM depthwise tutorial (Y. Hu, 2017): GTX 1080, TensorFlow 1.2"

PYTORCH = PyTorch()
BESIDE = (OURS.name, PYTORCH.name, *(limit.name for limit in LIMITS))
"""The names of the contenders that each configuration is compared with."""


@dataclass(frozen=True)
class Entry:
    """A row of a table: a configuration for a workload, and the tutorial's figures for a GTX 1080."""

    workload: ConvWorkload
    config: Config
    tvm: float
    """The microseconds of the tutorial's own kernel."""
    tensorflow: float | None = None
    """The microseconds of TensorFlow 1.2, where the table has them; of three operators where the kernel is fused."""


def _square(size: int, kernel: int = 3, multiplier: int = 1, fused: bool = False) -> ConvWorkload:
    shape, activation = (1, 256, size, size), "relu" if fused else None
    return ConvWorkload.depthwise(
        shape, (256, multiplier, kernel, kernel), scale=fused, shift=fused, activation=activation
    )


def _block(size: int, threads: tuple[int, int], vthreads: tuple[int, int] = (1, 1)) -> Config:
    """Return a configuration with a block of size x size outputs of one channel.

    Input and filter are in shared memory, and stores are of single elements.
    """
    rows, columns = (ceil_div(size, t * v) for t, v in zip(threads, vthreads, strict=True))
    return replace(
        LEAST,
        threads_y=threads[0],
        threads_x=threads[1],
        vthreads_y=vthreads[0],
        vthreads_x=vthreads[1],
        thread_y=rows,
        thread_x=columns,
        unroll=2,
        shared_input=True,
        shared_filter=True,
    )


BEST = _block(32, (8, 16), (1, 2))
"""The fastest configuration of the tutorial, which its last tables use."""

TABLES = {
    "a whole channel in one block": (
        Entry(_square(21), _block(21, (8, 8)), 9.1, 16.1),
        Entry(_square(32), _block(32, (16, 16)), 14.5, 34.8),
        Entry(_square(64), _block(64, (16, 16)), 98.9, 130.9),
        Entry(_square(96), _block(96, (16, 16)), 387.4, 251.6),
    ),
    "blocks of 32x32": (
        Entry(_square(64), _block(32, (8, 8)), 63.4, 130.9),
        Entry(_square(96), _block(32, (8, 8)), 132.5, 251.6),
    ),
    "threads": (
        Entry(_square(32), _block(32, (8, 32)), 9.7),
        Entry(_square(32), _block(32, (4, 32)), 8.8),
        Entry(_square(32), _block(32, (1, 32)), 17.7),
        Entry(_square(32), _block(32, (32, 1)), 32.5),
    ),
    "vthreads": (
        Entry(_square(96), _block(32, (8, 8)), 132.5),
        Entry(_square(96), _block(32, (8, 8), (1, 4)), 103.1),
        Entry(_square(96), _block(32, (4, 32)), 95.9),
        Entry(_square(96), BEST, 90.9),
    ),
    "larger kernels, more outputs a channel": (
        Entry(_square(96), BEST, 90.9, 251.6),
        Entry(_square(96, kernel=5), BEST, 128.9, 597.6),
        Entry(_square(96, multiplier=2), BEST, 143.7, 659.9),
        Entry(_square(96, kernel=5, multiplier=2), BEST, 170.5, 1203.9),
    ),
    "scale, shift and ReLU": (
        Entry(_square(96), BEST, 90.9, 251.6),
        Entry(_square(96, fused=True), BEST, 91.5, 419.9),
    ),
}


def measure_tables(target: tvm.target.Target, rounds: int) -> dict[ConvWorkload, Row]:
    """Measure the workloads of the tables: tvmconv as a user gets it, each configuration, PyTorch, and copies.

    All of a workload take turns; a configuration is under `str(config)`, and timed once if it is in several tables.
    Raises `InvalidArgumentError` for a configuration that is not legal on the target, `WrongResultError` for a wrong
    result.
    """
    configs: dict[ConvWorkload, dict[Config, None]] = {}
    for entry in (entry for entries in TABLES.values() for entry in entries):
        configs.setdefault(entry.workload, {})[entry.config] = None
    return {
        workload: measure_row(
            "tutorial", str(workload), workload, target, [*map(Configured, own), PYTORCH], How(rounds)
        )
        for workload, own in configs.items()
    }
