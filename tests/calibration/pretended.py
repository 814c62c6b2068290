"""A pretended machine, whose kernels take as long as the model tells by some rates, and records of such kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tvm

from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Status
from tvmconv.autotvm.measure.protocol import never
from tvmconv.autotvm.task import ConvTask, Task
from tvmconv.calibration.fit import counted_as, counts_work, model_of
from tvmconv.calibration.problems import LARGE
from tvmconv.calibration.session import REFERENCE
from tvmconv.calibration.trials import trials
from tvmconv.dispatch.record import Record, append
from tvmconv.problem import Problem
from tvmconv.schedules.cpu.template import CpuTemplate
from tvmconv.schedules.cuda.model import clocks
from tvmconv.schedules.cuda.model.rates import Rates
from tvmconv.schedules.cuda.template import GpuTemplate
from tvmconv.schedules.fitted import Factors
from tvmconv.targets import DeviceFacts, resolve_target
from tvmconv.targets.devices import Gpu

L40S = DeviceFacts("NVIDIA L40S", driver="580.1")


def target_of(model: str, arch: str) -> tvm.target.Target:
    return resolve_target({"kind": "cuda", "arch": arch, "model": model})


def record(trial: MeasureInput, seconds: float, device: DeviceFacts) -> Record:
    return Record.of(trial, MeasureResult((seconds,), Status.OK, None, 1.0, 0.0, device))


def write(log: Path, device: DeviceFacts, gpu: Gpu, rates: Rates, factors: Factors, target: tvm.target.Target) -> None:
    """Write records of kernels of three templates, and of others that take their problems, on a GPU of a row."""
    found = []
    for trial in trials(["attention", "input_gradient", "weight_gradient_nhwc"], 4, 8, 0, target, LARGE, 3):
        if counts_work(trial.task.name):
            found.append(record(trial, clocks(counts_of(trial), gpu, rates, factors) / gpu.clock, device))
    append(log, found)


def counts_of(trial: MeasureInput) -> Any:
    assert isinstance(trial.task, ConvTask)
    assert isinstance(trial.task.template, GpuTemplate | CpuTemplate)
    return trial.task.template.counts(trial.task.problem, trial.config, trial.target)


@dataclass
class Pretended:
    """Measures by the model; the reference kernel takes 20 µs."""

    rates: msgspec.Struct
    device_here: DeviceFacts = L40S
    noise: float = 0.02
    """The standard deviation of logarithms of times."""
    slower: Callable[[int], float] = lambda number: 1.0
    """The factor of the time of each trial, by its number."""
    drift: float = 1.05
    mhz: int = 2500
    highest: int = 3000
    use: int = 0
    measured: list[MeasureInput] = field(default_factory=list)
    most: float = float("inf")
    """The trials after which the process is ended, as by Ctrl-C."""

    def device(self, task: Task) -> DeviceFacts:
        return self.device_here

    def measure(
        self,
        inputs: Iterable[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = never,
    ) -> Iterator[tuple[MeasureInput, MeasureResult]]:
        for trial in inputs:
            if stop():
                return
            if len(self.measured) >= self.most:
                raise KeyboardInterrupt
            started(trial)
            cost = self.seconds(trial) * self.slower(len(self.measured))
            self.measured.append(trial)
            costs = (cost, 0.999 * cost, 1.001 * cost)
            yield trial, MeasureResult(costs, Status.OK, None, 0.1, 1.0, self.device_here)

    def seconds(self, trial: MeasureInput) -> float:
        if trial.task.problem == Problem(REFERENCE):
            return 2e-5
        model = model_of(trial.task.name)
        row, factors = model.row_of(trial.target), model.table().templates[counted_as(trial.task.name)]
        noise = np.random.default_rng(len(self.measured)).normal(0, self.noise)
        found: float = model.clocks(counts_of(trial), row, self.rates, factors) / row.clock * exp(noise)
        return found

    def close(self) -> None:
        pass
