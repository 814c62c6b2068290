"""Measuring where there is no GPU: kernels are built for one, and their times are made up."""

from __future__ import annotations

from zlib import crc32

from tvmconv.autotvm.measure import BuildResult, MeasureInput, RunResult
from tvmconv.autotvm.task import Task
from tvmconv.autotvm.templates import TemplateTask
from tvmconv.targets import DeviceFacts


class PretendedRunner:
    """A runner that runs nothing; of a template of one's own it checks the serial twin."""

    def begin(self, task: Task) -> int:
        return 1

    def device(self, task: Task) -> DeviceFacts:
        return DeviceFacts("a GPU that is not here", driver="0")

    def shares_cores(self, task: Task) -> bool:
        return True

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        if isinstance(trial.task, TemplateTask):
            trial.task.check(trial.config)
        return RunResult((1e-6 * (1 + crc32(str(trial.config).encode()) % 1000),))

    def close(self) -> None: ...
