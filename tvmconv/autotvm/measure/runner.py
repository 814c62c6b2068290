"""A runner of trials in worker processes, one for each device."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Lock

from tvmconv.dispatch.record import bounded
from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureInput, Status
from tvmconv.lowering.workspace import Workspace
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.targets import DeviceFacts, arch_of, backend_named, backend_of, cross_triple, device_facts, is_for

from ..gone import refuse_arguments
from . import worker
from .packages import require_packages
from .processes import WorkerPool
from .protocol import BuildResult, Calls, RunResult, last_error, require_seconds


class LocalRunner:
    """Checks and times kernels on this machine's devices, one at a time on each.

    `devices` are the numbers of GPUs; by default all that CUDA shows and that are of the same model as the first, as
    costs of different models do not belong into one search. A CPU with all its cores is one device.

    A kernel runs in a worker process of its device. A process in which a trial has failed, however it failed, is not
    used again, so that damage to the process or to the GPU's context touches no other trial.

    A cost is the average over `number` calls, or more, until they take `min_repeat_ms`; there are `repeat` costs. The
    arrays stay the same, so caches are warm, a GPU's L2 too. With `enable_cpu_cache_flush` a CPU's caches hold none of
    a kernel's arguments except the first when a repeat begins; on a GPU it does nothing. A run that takes more than
    `timeout` seconds, checking included, is killed. The device rests `cooldown_interval` seconds after a run.

    The arguments except `devices` are AutoTVM's, in its order; `InvalidArgumentError` tells of those that are gone.
    """

    def __init__(
        self,
        timeout: float = 10.0,
        number: int = 10,
        repeat: int = 5,
        min_repeat_ms: int = 10,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        *,
        devices: Sequence[int] | None = None,
        **others: object,
    ) -> None:
        refuse_arguments("LocalRunner", others)
        require_seconds("timeout", timeout)
        require_seconds("cooldown_interval", cooldown_interval, may_be_zero=True)
        self._calls = Calls.checked(number, repeat, min_repeat_ms, enable_cpu_cache_flush)
        require_packages()
        self.timeout = timeout
        self.cooldown_interval = cooldown_interval
        self.devices = None if devices is None else tuple(devices)
        self._lock = Lock()
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._processes: dict[str, list[DeviceProcess]] = {}
        self._free: dict[str, SimpleQueue[DeviceProcess]] = {}

    def device(self, task: Task) -> DeviceFacts:
        """Return this machine's device for a task.

        Raises `NoDeviceError` or `MissingPackageError` where it cannot be measured.
        """
        backend, numbers = backend_of(task.target), self._chosen(task)
        facts = device_facts(backend.kind, numbers[0]) if numbers else None
        if facts is None:
            raise NoDeviceError(f"measuring {task} needs {backend.missing}, and none is visible here")
        backend.require_timer()  # without it every trial would fail in its worker
        if (arch := backend.arch_here(numbers[0])) != arch_of(task.target):
            raise InvalidArgumentError("target", str(task.target), f"one of arch {arch}, as {facts} has")
        if cross_triple(str(task.target)) is not None:
            raise InvalidArgumentError("target", str(task.target), "one whose host is a CPU of this machine's kind")
        require_for(task, facts)
        return facts

    def shares_cores(self, task: Task) -> bool:
        """Return whether builds on this machine would disturb the timing."""
        return backend_of(task.target).uses_host_cores

    def begin(self, task: Task) -> int:
        """Begin to start the workers for a task, unless they exist; return the number of trials that run at once."""
        kind = task.target.kind.name
        with self._lock:
            if kind not in self._processes:
                self._processes[kind] = [
                    DeviceProcess(f"{backend_named(kind).device_type}:{number}", self.timeout)
                    for number in self._chosen(task)
                ]
                self._free[kind] = SimpleQueue()
                for process in self._processes[kind]:
                    process.start()
                    self._free[kind].put(process)
            return len(self._processes[kind])

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        """Check and time a trial's kernel; raise `NoDeviceError` where the device is gone: the trial may be sound."""
        self.begin(trial.task)
        free = self._free[trial.task.target.kind.name]
        process = free.get()
        try:
            result = process.run(trial.task.problem.to_json(), build.workspace, build.library, self._calls)
            time.sleep(self.cooldown_interval)
            return result
        finally:
            free.put(process)

    def _chosen(self, task: Task) -> tuple[int, ...]:
        """Return the numbers of the devices for a task, chosen once."""
        kind = task.target.kind.name
        if kind not in self._numbers:
            self._numbers[kind] = chosen_devices(kind, self.devices)
        return self._numbers[kind]

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            for processes in self._processes.values():
                for process in processes:
                    process.close()
            self._processes.clear()
            self._free.clear()


class DeviceProcess:
    """A worker process that checks and times kernels on one device, such as "cuda:1"; it is replaced after a failure.

    A run that takes more than `timeout` seconds is killed.
    """

    def __init__(self, device: str, timeout: float) -> None:
        self.device = device
        self.timeout = timeout
        self._pool: WorkerPool | None = None

    def start(self) -> WorkerPool:
        """Return the process, which begins to use the device if it is new; the caller need not wait for that."""
        if self._pool is None:
            self._pool = WorkerPool(1, self.timeout, worker.initialize)
            self._pool.submit(worker.touch, self.device)
        return self._pool

    def run(self, problem: str, workspace: Workspace, library: str, calls: Calls) -> RunResult:
        """Return the result of a library's kernel; raise `NoDeviceError` where the device itself fails."""
        future = self.start().submit(worker.evaluate, problem, workspace, library, self.device, calls)
        error = future.exception()
        if error is None:
            return RunResult(tuple(future.result()))
        self.close()
        self.require_device()
        if isinstance(error, TimeoutError):
            return RunResult((), Status.RUN_TIMEOUT, f"killed after {self.timeout:g} seconds")
        if isinstance(error, ChildProcessError):
            return RunResult((), Status.CRASH, "the process died")
        return failure(str(error))

    def require_device(self) -> None:
        """Let the process, a new one after a failure, use the device; raise `NoDeviceError` where it cannot."""
        error = self.start().submit(worker.touch, self.device).exception()
        if error is not None:
            self.close()
            raise NoDeviceError(
                f"the device {self.device} does not answer any more ({bounded(last_error(str(error)))}); "
                "when it does, the same command goes on where it was"
            )

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def require_for(task: Task, device: DeviceFacts) -> None:
    """Raise `InvalidArgumentError` for a task whose target names another model than the device that measures it."""
    if not is_for(task.target, device):
        raise InvalidArgumentError("target", str(task.target), f"one without a model, or for the {device}")


def chosen_devices(kind: str, chosen: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of the devices that measure for targets of a kind.

    They are the chosen ones, or all of the model of the first. There are none where there is no GPU.
    """
    if backend_named(kind).uses_host_cores:
        if chosen is not None:
            raise InvalidArgumentError("devices", chosen, "None for a CPU, which is one device")
        return (0,)
    there: list[DeviceFacts] = []
    while (facts := device_facts(kind, len(there))) is not None:
        there.append(facts)
    listed = ", ".join(f"{number}: {facts}" for number, facts in enumerate(there))
    if chosen is None:
        equal_devices = tuple(number for number, facts in enumerate(there) if facts == there[0])
        if len(equal_devices) < len(there):
            warnings.warn(
                f"measuring on GPU {', '.join(map(str, equal_devices))} alone, as others differ: {listed}", stacklevel=2
            )
        return equal_devices
    expected = f"different numbers of GPUs of one model; there are {listed}"
    if there and not (chosen and set(chosen) <= set(range(len(there))) and len(set(chosen)) == len(chosen)):
        raise InvalidArgumentError("devices", chosen, expected)
    if len({there[number] for number in chosen if there}) > 1:
        raise InvalidArgumentError("devices", chosen, expected)
    return tuple(chosen) if there else ()


def failure(message: str) -> RunResult:
    """Return the result for a kernel on which `worker.evaluate` raised an error."""
    if worker.WRONG_ANSWER in message:
        return RunResult((), Status.WRONG_ANSWER, message.rpartition(worker.WRONG_ANSWER)[2])
    return RunResult((), Status.RUNTIME_ERROR, last_error(message))
