"""The gap between default configurations and tuned ones, over random workloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from tvmconv.autotvm.task import ConvTask, create
from tvmconv.autotvm.tidy import default_record
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for
from tvmconv.dispatch.history import applicable, best_record
from tvmconv.dispatch.record import Record
from tvmconv.dispatch.trial import Stage
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import DeviceFacts

LEAST_BYTES, MOST_BYTES = 2**20, 2**26
"""The least and the most bytes in the tensors of a random workload, in float32.

They are work enough for a GPU and little enough to make and to check quickly.
"""

MOST_FLOPS = 2**33
"""The most floating-point operations of a random dense workload: 0.2 ms of a GPU's multiply-adds, 0.1 s of a CPU's."""

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Gap:
    """A workload's default configuration and its best one, as measured again at the end of its tuning."""

    workload: ConvWorkload
    default: Record
    best: Record
    space: int
    """The number of configurations of the default's template; with only one, the default is the best of them."""

    @property
    def times(self) -> float:
        """The ratio of the default's time to the best one's: 1 where nothing is better."""
        return self.default.cost / self.best.cost


def random_workloads(count: int, seed: int, dense: bool = False, dtype: str = "float32") -> list[ConvWorkload]:
    """Return random depthwise or dense workloads of any type; a seed gives the same workloads on every machine.

    A longer list begins with a shorter one. The kernel fits the image, and the tensors hold `LEAST_BYTES` to
    `MOST_BYTES`; a workload that does not, or a dense one with more than `MOST_FLOPS`, is drawn again.
    """
    draw, workloads = Draw(seed), list[ConvWorkload]()
    attempt = _dense if dense else _depthwise
    while len(workloads) < count:
        try:
            workload = attempt(draw)
        except InvalidArgumentError:  # a tensor with more bytes than a workload may have
            continue
        if workload is not None and LEAST_BYTES <= workload.bytes_moved <= MOST_BYTES:
            workloads.append(msgspec.structs.replace(workload, dtype=dtype))
    return workloads


def _depthwise(draw: Draw) -> ConvWorkload | None:
    """Return a depthwise workload; None where the dilated kernel is larger than the image.

    Batches up to 64, channels up to 1024 and sides up to 256 are uniform in their logarithms; strides 1 to 3, dilations
    1 to 3, kernels 1x1 to 11x11, multipliers 1 to 4 and both paddings are equally likely.
    """
    channels, kernel, dilation = draw.logarithmic(1, 1024), draw.uniform(1, 11), draw.uniform(1, 3)
    height, width = draw.logarithmic(1, 256), draw.logarithmic(1, 256)
    if (kernel - 1) * dilation >= min(height, width):
        return None
    return ConvWorkload.depthwise(
        (draw.logarithmic(1, 64), channels, height, width),
        (channels, draw.uniform(1, 4), kernel, kernel),
        stride=draw.uniform(1, 3),
        padding=draw.of(("SAME", "VALID")),
        dilation=dilation,
    )


def _dense(draw: Draw) -> ConvWorkload | None:
    """Return a dense or grouped workload; None where it has too many operations, or the kernel is too large.

    Batches up to 64 and sides up to 128 are uniform in their logarithms, as are channels up to 1024, three quarters of
    them in eights. Half of the kernels are 3x3 and a quarter 1x1, a quarter of the strides and an eighth of the
    dilations are 2, and an eighth of the workloads have 2 to 32 groups.
    """
    groups = draw.of((2, 4, 8, 32)) if draw.chance(1 / 8) else 1
    most = 1024 // groups
    inputs, outputs = (
        8 * draw.logarithmic(1, most // 8) if draw.chance(3 / 4) else draw.logarithmic(2, most) for _ in range(2)
    )
    kernel, dilation = draw.of((1, 1, 3, 3, 3, 3, 5, 7)), 2 if draw.chance(1 / 8) else 1
    height, width = draw.logarithmic(4, 128), draw.logarithmic(4, 128)
    if (kernel - 1) * dilation >= min(height, width):
        return None
    workload = ConvWorkload.conv2d(
        (draw.logarithmic(1, 64), groups * inputs, height, width),
        (groups * outputs, inputs, kernel, kernel),
        stride=2 if draw.chance(1 / 4) else 1,
        padding=draw.of(("SAME", "VALID")),
        dilation=dilation,
        groups=groups,
    )
    return workload if workload.flops <= MOST_FLOPS else None


def tasks_of(workload: ConvWorkload, target: Any, precision: str, all_algorithms: bool) -> list[ConvTask]:
    """Return the task of the algorithm that is taken where nothing has been measured, and those of others if wanted.

    A workload that no algorithm of the target takes has none.
    """
    taken = create(workload, target, precision=precision)
    known = algorithms_for(taken.problem, taken.target)
    if not known:
        return []
    others = [create(workload, target, algorithm, precision=precision) for algorithm in known if all_algorithms]
    return [taken, *(task for task in others if task.name != taken.name)]


def gaps(tasks: Iterable[ConvTask], records: Sequence[Record], device: DeviceFacts) -> list[Gap]:
    """Return the gap of each workload whose default and best were confirmed on the device, the largest first.

    The default is that of the workload's first task.
    """
    found = []
    for workload, group in groupby(tasks, lambda task: task.workload):
        first, *_ = same = [*group]
        confirmed = [
            [record for record in applicable(records, task, device) if record.stage is Stage.CONFIRM] for task in same
        ]
        default, bests = (
            default_record(confirmed[0]),
            [best for best in map(best_record, confirmed) if best is not None],
        )
        if default is not None:
            best = min(bests, key=lambda record: record.cost)
            found.append(Gap(workload, default, best, len(first.space.configs)))
    return sorted(found, key=lambda gap: -gap.times)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """Return the `QUANTILES` of values, by name."""
    return {
        f"{share:.0%}": float(value) for share, value in zip(QUANTILES, np.quantile([*values], QUANTILES), strict=True)
    }
