"""A test of random convolutions in worker processes: each is built, run, and compared with the float64 reference."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import tvm
from tvm.runtime import Executable

from tvmconv.autotvm.measure import worker
from tvmconv.autotvm.measure.packages import require_packages
from tvmconv.autotvm.measure.processes import WorkerPool
from tvmconv.autotvm.measure.protocol import last_error
from tvmconv.checking.draws import Draw
from tvmconv.checking.operands import check_result, random_operands
from tvmconv.dispatch import select, template_for
from tvmconv.lowering import KERNEL_NAME, build_kernel, build_twin
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import Workspace
from tvmconv.problem.constants import COMPILED_IN, Constants, constants_of
from tvmconv.problem.errors import TvmconvError, WrongResultError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime.arrays import operand
from tvmconv.targets import GPU_ALIGNMENT, cross_triple, device_of, resolve_target

from .configs import legal_configs
from .emulated import emulate
from .guarded import guarded
from .trials import Trial, random_trial

NONFINITE = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class How:
    """The way to run trials: the target, as serial twins or not, in guarded memory or not."""

    target: str
    """The target as JSON."""
    twin: bool = False
    """True if CUDA kernels are run as their serial twins, on the CPU."""
    bounds: bool = False
    """True if the arrays of CPU kernels lie at the edge of memory that nothing may touch."""
    opened: bool = False
    """True if all random trials have kernels of open sizes, else some have."""
    algorithm: str | None = None
    """The algorithm of all random trials; None for any that a target has."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial."""

    trial: Trial
    failure: str | None = None
    """The kind of failure: "wrong result", "crash", "timeout" or "error"; None where the result is right."""
    reason: str = ""
    again: bool = False
    """True if the trial failed once more, alone in a new process."""


@dataclass(frozen=True)
class Slot:
    """A worker process, with the trial that it runs."""

    pool: WorkerPool
    source: int | Trial


def conformance(
    how: How, sources: Iterable[int | Trial], seed: int, jobs: int, timeout: float
) -> Generator[Outcome, None, None]:
    """Try each of the sources, given trials or numbers of random ones, and yield their outcomes, in any order.

    A trial that fails, or takes more than `timeout` seconds, is tried again in a new process, so that a kernel that
    damages its process does not make another trial fail.
    """
    require_packages()
    waiting, running = iter(sources), dict[Future[Trial], Slot]()

    def begin(pool: WorkerPool) -> None:
        if (source := next(waiting, None)) is None:
            pool.shutdown()
        else:
            running[pool.submit(attempt, how, source, seed)] = Slot(pool, source)

    try:
        for _ in range(jobs):
            begin(_worker(timeout))
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                slot = running.pop(future)
                if (error := future.exception()) is None:
                    yield Outcome(future.result())
                    begin(slot.pool)
                    continue
                slot.pool.shutdown()
                yield _failed(how, slot.source, seed, error, timeout)
                begin(_worker(timeout))
    finally:
        for slot in running.values():
            slot.pool.shutdown()


def attempt(how: How, source: int | Trial, seed: int) -> Trial:
    """Build and run a trial's kernel, and return the trial if its result is right; runs in a worker process."""
    try:
        trial = described(how, source, seed)
        check(how, trial)
    except TvmconvError as error:
        # Other errors cannot be sent back, or lose their message.
        kind = WrongResultError if isinstance(error, WrongResultError) else RuntimeError
        raise kind(str(error)) from None
    return trial


def described(how: How, source: int | Trial, seed: int) -> Trial:
    """Return the random trial with a number, which depends on the seed alone; or the trial that is given."""
    if isinstance(source, Trial):
        return source
    trial, is_default = _drawn(how, source, seed)
    if is_default:
        return trial
    config = next(configs(trial, tvm.target.Target(how.target)))
    return msgspec.structs.replace(trial, knobs=msgspec.to_builtins(config))


def _drawn(how: How, number: int, seed: int) -> tuple[Trial, bool]:
    """Return the random trial with a number, without knobs, and whether its configuration is the default."""
    target = tvm.target.Target(how.target)
    return random_trial(Draw(f"{seed}/{number}"), target, number, how.opened, how.algorithm)


def check(how: How, trial: Trial) -> None:
    """Raise `WrongResultError` if the trial's kernel, built once, does not compute each of its workloads.

    Serial twins are built for each, of one schedule.
    """
    tried = [(workload, _operands(trial, workload)) for workload in trial.workloads]
    constants, target = constants_of(tried[0][1]), tvm.target.Target(how.target)
    kernel = None if how.twin else kernel_of(trial, target, constants, None)
    for workload, operands in tried:
        made = kernel or kernel_of(trial, target, constants, workload)
        if trial.sparsity is not None:
            operands.update(constants)
        passed = {name: array for name, array in operands.items() if trial.sparsity is None or name not in COMPILED_IN}
        got = _run(how, made, workload, passed, trial.operands % 2 == 0)
        try:
            with np.errstate(invalid="ignore"):
                check_result(workload, operands, got, 0.0, trial.problem.precision, trial.direction)
        except AssertionError as error:
            sizes = ", ".join(f"{name} {getattr(workload, name)}" for name in trial.open_sizes)
            raise WrongResultError(f"with {sizes}: {error}" if sizes else str(error)) from None


def _operands(trial: Trial, workload: ConvWorkload) -> dict[str, np.ndarray[Any, Any]]:
    """Return the operands to try a trial's kernel with on one of its workloads."""
    operands = random_operands(workload, trial.operands, trial.direction)
    if trial.nonfinite:
        _spoil(operands["x"], trial.operands)
    if trial.sparsity is not None:
        _prune(operands["w"], trial.sparsity, trial.operands)
    return operands


def _run(
    how: How, made: TrialKernel, workload: ConvWorkload, operands: dict[str, np.ndarray[Any, Any]], at_end: bool
) -> np.ndarray[Any, Any]:
    """Return the output of a kernel: on its device, or in an emulator where that is another kind of CPU."""
    if triple := cross_triple(str(made.target)):
        return emulate(made.executable, str(made.target), triple, operands)
    kernel, device = made.executable[KERNEL_NAME], device_of(made.target)
    memory = [tvm.runtime.empty(*parameter, device) for parameter in made.workspace.sized(workload)]
    if how.bounds:
        return _run_guarded(kernel, operands, memory, at_end, GPU_ALIGNMENT if how.twin else 1)
    tensors = [tvm.runtime.tensor(array, device) for array in operands.values()]
    kernel(*tensors, *memory)
    output: np.ndarray[Any, Any] = tensors[-1].numpy()
    return output


def _run_guarded(
    kernel: Any, operands: dict[str, np.ndarray[Any, Any]], memory: list[Any], at_end: bool, alignment: int
) -> np.ndarray[Any, Any]:
    """Run a kernel on operands in guarded memory, of which it may not pass one edge or the other; return its output."""
    arrays = {name: guarded(array, at_end, alignment) for name, array in operands.items()}
    kernel(*(operand(name, array).argument for name, array in arrays.items()), *memory)
    return arrays["output"]


def _spoil(x: np.ndarray[Any, Any], seed: int) -> None:
    """Put a few numbers that are not finite into x."""
    rng = np.random.default_rng(seed)
    x.reshape(-1)[rng.integers(0, x.size, len(NONFINITE))] = NONFINITE


def _prune(w: np.ndarray[Any, Any], sparsity: float, seed: int) -> None:
    """Make a share of a weight zero, of either sign."""
    zeros = np.random.default_rng(seed).random(w.shape) < sparsity
    w[zeros] *= 0


def _failed(how: How, source: int | Trial, seed: int, error: BaseException, timeout: float) -> Outcome:
    """Return the outcome of a trial that has failed, after a second try in a new process."""
    pool = _worker(timeout)
    drawing: Future[Trial] = pool.submit(described, how, source, seed)
    if drawing.exception() is None:
        trial = drawing.result()
        again = pool.submit(attempt, how, trial, seed).exception()
    else:  # not even its configuration is known
        assert isinstance(source, int)
        trial, _ = _drawn(how, source, seed)
        again = drawing.exception()
    pool.shutdown()
    return Outcome(trial, *_told(error if again is None else again, timeout), again is not None)


def _told(error: BaseException, timeout: float) -> tuple[str, str]:
    if isinstance(error, TimeoutError):
        return "timeout", f"killed after {timeout:g} s"
    if isinstance(error, ChildProcessError):
        return "crash", "the process died"
    kind = "wrong result" if isinstance(error, WrongResultError) else "error"
    return kind, " ".join(last_error(str(error)).split())


def _worker(timeout: float) -> WorkerPool:
    return WorkerPool(1, timeout, _initialize, calls=500)


def _initialize() -> None:
    """Prepare a new worker, which keeps no machine code: nobody needs these kernels again.

    TVM binds a process that has run a kernel to the first cores, the same ones for all workers.
    """
    worker.initialize()
    os.environ["TVM_BIND_THREADS"] = "0"
    os.environ["TVMCONV_CACHE_DIR"] = os.devnull


@dataclass(frozen=True)
class TrialKernel:
    """The kernel of a trial, and the target that it was built for."""

    executable: Executable
    target: tvm.target.Target
    workspace: Workspace


def configs(trial: Trial, target: tvm.target.Target) -> Iterator[Any]:
    """Yield legal configurations for a trial, which depend on its workload alone."""
    space = template_for(trial.problem, target, trial.algorithm).space(trial.problem, target)
    return legal_configs(space, str(trial.workload))


def kernel_of(
    trial: Trial, target: tvm.target.Target, constants: Constants, twin_of: ConvWorkload | None
) -> TrialKernel:
    """Build the kernel of a trial, or its serial twin for one of its workloads.

    The constants are compiled in where the trial says so.
    """
    template = template_for(trial.problem, target, trial.algorithm)
    config = None if trial.knobs is None else msgspec.convert(trial.knobs, template.Config)
    selection = select(trial.problem, target, config, trial.algorithm)
    compiled_in = None if trial.sparsity is None else constants
    if twin_of is None:
        kernel = build_kernel(trial.problem, selection, target, compiled_in)
        return TrialKernel(kernel.executable, target, kernel.workspace)
    twin = build_twin(trial.problem, selection, target, compiled_in, twin_of if trial.open_sizes else None)
    return TrialKernel(twin.executable, resolve_target(TWIN_TARGET), twin.workspace)
