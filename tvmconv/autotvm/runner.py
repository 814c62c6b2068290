"""Running trials in a worker process, by MetaSchedule's runner."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RunnerInput
from tvm.s_tir.meta_schedule.runner import LocalRunner as MetaScheduleRunner

from ..errors import InvalidArgumentError, NoDeviceError
from ..targets import DeviceFacts, device_facts
from . import worker
from .measure import BuildResult, MeasureInput, RunResult, Status, last_error
from .record import bounded
from .task import Task
from .timing import cuda_driver

TVM_DEVICES = {"cuda": "cuda", "llvm": "cpu"}
"""TVM's device for each kind of target."""


class LocalRunner:
    """Checks and times kernels on this machine's device, one at a time, through MetaSchedule's `LocalRunner`.

    A kernel runs in a worker process. One in which a trial has failed, however it failed, is not used again, so what a
    kernel does to its process or to the GPU's context touches no other trial.

    A cost is the average over `number` calls or more, as many as take `min_repeat_ms`; there are `repeat` of them. The
    arrays stay the same, so caches are warm, a GPU's L2 too. With `enable_cpu_cache_flush` a CPU's caches hold none of
    a kernel's arguments but the first when a repeat begins; on a GPU it does nothing. A run that takes more than
    `timeout` seconds, checking included, is killed.
    """

    slots = 1
    """How many trials run at once."""

    def __init__(
        self,
        number: int = 10,
        repeat: int = 5,
        min_repeat_ms: int = 10,
        timeout: float = 10.0,
        *,
        enable_cpu_cache_flush: bool = False,
    ) -> None:
        worker.require_packages()
        if enable_cpu_cache_flush and (number, min_repeat_ms) != (1, 0):
            expected = "False, or number=1 and min_repeat_ms=0: the second call of a repeat finds its caches warm"
            raise InvalidArgumentError("enable_cpu_cache_flush", enable_cpu_cache_flush, expected)
        self.timeout = timeout
        self._evaluator = EvaluatorConfig(number, repeat, min_repeat_ms, enable_cpu_cache_flush)
        self._runner: Any = None

    def device(self, task: Task) -> DeviceFacts:
        """This machine's device for a task; `NoDeviceError` or `MissingPackageError` where it cannot be measured."""
        kind = task.target.kind.name
        facts = device_facts(kind)
        if facts is None:
            raise NoDeviceError(f"measuring {task} needs an NVIDIA GPU and its driver, and none is visible here")
        if kind == "cuda":
            cuda_driver()  # without it every trial would fail in its worker
        return facts

    def shares_cores(self, task: Task) -> bool:
        """Whether builds on this machine would disturb the timing."""
        return bool(task.target.kind.name == "llvm")

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        """Checks and times a trial's kernel; `NoDeviceError` where the device is gone: the trial may be sound."""
        self._start()
        folder, problem = str(Path(build.library).parent), trial.task.problem.to_json()
        self._runner.f_run_evaluator = partial(worker.evaluate, problem, build.workspace, folder)
        (future,) = self._runner.run([RunnerInput(build.library, TVM_DEVICES[trial.task.target.kind.name], [])])
        result = interpreted(future.result())
        if result.status is not Status.OK:
            self.close()
            self._require_device(TVM_DEVICES[trial.task.target.kind.name])
        return result

    def _start(self) -> None:
        """Makes a worker if there is none."""
        if self._runner is None:
            self._runner = MetaScheduleRunner(
                timeout_sec=self.timeout,
                evaluator_config=self._evaluator,
                f_alloc_argument=worker.no_arguments,
                initializer=worker.initialize,
            )

    def _require_device(self, device: str) -> None:
        """Has a new worker use the device."""
        self._start()
        error = self._runner.pool.submit(worker.touch, device).exception()
        if error is not None:
            self.close()
            raise NoDeviceError(
                f"the {device} device does not answer any more ({bounded(last_error(str(error)))}); "
                "when it does, the same command goes on where it was"
            )

    def close(self) -> None:
        """Ends the worker."""
        if self._runner is not None:
            self._runner.pool.shutdown()
            self._runner = None


def interpreted(result: Any) -> RunResult:
    """What MetaSchedule's runner answered, in our words."""
    if result.error_msg is None:
        return RunResult(tuple(float(cost) for cost in result.run_secs))
    message = str(result.error_msg)
    if "Timeout, killed after" in message:
        return RunResult((), Status.RUN_TIMEOUT, message)
    if "Subprocess terminated" in message:
        return RunResult((), Status.CRASH, "the process died")
    return failure(message)


def failure(message: str) -> RunResult:
    """What the error of `worker.evaluate` says of a kernel."""
    if worker.WRONG_ANSWER in message:
        return RunResult((), Status.WRONG_ANSWER, message.rpartition(worker.WRONG_ANSWER)[2])
    return RunResult((), Status.RUNTIME_ERROR, last_error(message))
