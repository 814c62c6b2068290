"""The gap between default configurations and tuned ones, over random depthwise workloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..autotvm.task import ConvTask
from ..autotvm.tidy import default_record
from ..checking.draws import Draw
from ..dispatch.history import applicable, best_record
from ..dispatch.record import Record
from ..dispatch.trial import Stage
from ..targets import DeviceFacts
from ..workload import ConvWorkload

LEAST_BYTES, MOST_BYTES = 2**20, 2**26
"""The least and the most bytes in the tensors of a random workload.

They are work enough for a GPU and little enough to make and to check quickly.
"""

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Gap:
    """A workload's default configuration and its best one, as measured again at the end of its tuning."""

    workload: ConvWorkload
    default: Record
    best: Record
    space: int
    """The number of configurations; with only one, the default is the best."""

    @property
    def times(self) -> float:
        """The ratio of the default's time to the best one's: 1 where nothing is better."""
        return self.default.cost / self.best.cost


def random_workloads(count: int, seed: int) -> list[ConvWorkload]:
    """Return depthwise workloads in float32, the same for the same seed everywhere.

    A longer list begins with a shorter one. Batches up to 64, channels up to 1024 and sides up to 256 are uniform in
    their logarithms; strides 1 to 3, dilations 1 to 3, kernels 1x1 to 11x11, multipliers 1 to 4 and both paddings are
    equally likely. The dilated kernel fits the image, and the tensors hold `LEAST_BYTES` to `MOST_BYTES`; what does not
    is drawn again.
    """
    draw, workloads = Draw(seed), list[ConvWorkload]()
    while len(workloads) < count:
        channels, kernel, dilation = draw.logarithmic(1, 1024), draw.uniform(1, 11), draw.uniform(1, 3)
        height, width = draw.logarithmic(1, 256), draw.logarithmic(1, 256)
        if (kernel - 1) * dilation >= min(height, width):
            continue
        workload = ConvWorkload.depthwise(
            (draw.logarithmic(1, 64), channels, height, width),
            (channels, draw.uniform(1, 4), kernel, kernel),
            stride=draw.uniform(1, 3),
            padding=draw.of(("SAME", "VALID")),
            dilation=dilation,
        )
        if LEAST_BYTES <= workload.bytes_moved <= MOST_BYTES:
            workloads.append(workload)
    return workloads


def gaps(tasks: Iterable[ConvTask], records: Sequence[Record], device: DeviceFacts) -> list[Gap]:
    """Return the gap of each task whose default and best were confirmed on the device, the largest first."""
    found = []
    for task in tasks:
        confirmed = [record for record in applicable(records, task, device) if record.stage is Stage.CONFIRM]
        default, best = default_record(confirmed), best_record(confirmed)
        if default is not None and best is not None:
            found.append(Gap(task.workload, default, best, len(task.space.configs)))
    return sorted(found, key=lambda gap: -gap.times)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """Return the `QUANTILES` of values, by name."""
    return {
        f"{share:.0%}": float(value) for share, value in zip(QUANTILES, np.quantile([*values], QUANTILES), strict=True)
    }
