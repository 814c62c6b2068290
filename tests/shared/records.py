"""Records of a tuning log for tests: invented trials of a small depthwise convolution."""

from __future__ import annotations

from collections.abc import Sequence

from tvmconv import ConvWorkload
from tvmconv.autotvm import task
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record
from tvmconv.targets import device_facts

WORKLOAD = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3))
TASK = task.create(WORKLOAD, "llvm")
DEVICE = device_facts("llvm")


def record(
    index: int = 0, costs: Sequence[float] = (2e-6, 1e-6, 3e-6), status: Status = Status.OK, stage: Stage = Stage.SEARCH
) -> Record:
    reason = None if status is Status.OK else "it\nfailed " + 1000 * "x"
    result = MeasureResult(tuple(costs), status, reason, 0.25, 1e9, DEVICE)
    return Record.of(MeasureInput(TASK.target, TASK, TASK.space.configs[index], stage), result)
