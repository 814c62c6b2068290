"""Random convolutions built, run, and compared with the float64 reference, thousands of them, in worker processes."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import tvm

from ..arrays import GPU_ALIGNMENT, operand
from ..autotvm import worker
from ..autotvm.processes import WorkerPool
from ..autotvm.protocol import last_error
from ..checking.draws import Draw
from ..checking.operands import check_result, random_operands
from ..errors import TvmconvError, WrongResultError
from ..folding.constants import COMPILED_IN, constants_of
from ..lowering import KERNEL_NAME
from .guarded import guarded
from .kernels import configs, kernel_of
from .trials import Trial, random_trial

NONFINITE = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class How:
    """Where and how trials are run."""

    target: str
    """As JSON."""
    twin: bool = False
    """Whether CUDA kernels are run as their serial twins, on the CPU."""
    bounds: bool = False
    """Whether what CPU kernels read and write lies at the edge of memory that nothing may touch."""


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    trial: Trial
    failure: str | None = None
    """What kind of failure: "wrong result", "crash", "timeout" or "error"; None where the result is right."""
    reason: str = ""
    again: bool = False
    """Whether it failed once more, alone in a new process."""


@dataclass(frozen=True)
class Slot:
    """A worker process, and what it is trying."""

    pool: WorkerPool
    source: int | Trial


def conformance(
    how: How, sources: Iterable[int | Trial], seed: int, jobs: int, timeout: float
) -> Generator[Outcome, None, None]:
    """Tries each of the sources, given trials or numbers of random ones, and yields what came of it, in any order.

    A trial that fails, or takes more than `timeout` seconds, is tried again in a new process, so that what a kernel has
    done to its process is not taken for another one's failure.
    """
    worker.require_packages()
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
    """Builds and runs a trial's kernel, and returns the trial if its result is right; runs in a worker process."""
    try:
        trial = described(how, source, seed)
        check(how, trial)
    except TvmconvError as error:
        # Others do not survive the way back, or lose their message.
        kind = WrongResultError if isinstance(error, WrongResultError) else RuntimeError
        raise kind(str(error)) from None
    return trial


def described(how: How, source: int | Trial, seed: int) -> Trial:
    """The random trial with a number, which is the same for the same seed; or the one that is given."""
    if isinstance(source, Trial):
        return source
    target = tvm.target.Target(how.target)
    trial, is_default = random_trial(Draw(f"{seed}/{source}"), target, source)
    if is_default:
        return trial
    return msgspec.structs.replace(trial, knobs=msgspec.to_builtins(next(configs(trial, target))))


def check(how: How, trial: Trial) -> None:
    """Raises `WrongResultError` if the trial's kernel does not compute its workload."""
    operands = random_operands(trial.workload, trial.operands)
    if trial.nonfinite:
        _spoil(operands["x"], trial.operands)
    if trial.sparsity is not None:
        _prune(operands["w"], trial.sparsity, trial.operands)
    made = kernel_of(trial, tvm.target.Target(how.target), how.twin, constants_of(operands))
    kernel = made.executable[KERNEL_NAME]
    memory = [tvm.runtime.empty(*parameter, made.device) for parameter in made.workspace.parameters]
    passed = {name: array for name, array in operands.items() if trial.sparsity is None or name not in COMPILED_IN}
    if how.bounds:
        got = _run_guarded(kernel, passed, memory, trial.operands % 2 == 0, GPU_ALIGNMENT if how.twin else 1)
    else:
        tensors = [tvm.runtime.tensor(array, made.device) for array in passed.values()]
        kernel(*tensors, *memory)
        got = tensors[-1].numpy()
    try:
        with np.errstate(invalid="ignore"):
            check_result(trial.workload, operands, got)
    except AssertionError as error:
        raise WrongResultError(str(error)) from None


def _run_guarded(
    kernel: Any, operands: dict[str, np.ndarray[Any, Any]], memory: list[Any], at_end: bool, alignment: int
) -> np.ndarray[Any, Any]:
    """What a kernel makes of its operands in memory whose edges, one of them or the other, may not be passed."""
    arrays = {name: guarded(array, at_end, alignment) for name, array in operands.items()}
    kernel(*(operand(name, array).argument for name, array in arrays.items()), *memory)
    return arrays["output"]


def _spoil(x: np.ndarray[Any, Any], seed: int) -> None:
    """Puts a few numbers that are not finite into x."""
    rng = np.random.default_rng(seed)
    x.reshape(-1)[rng.integers(0, x.size, len(NONFINITE))] = NONFINITE


def _prune(w: np.ndarray[Any, Any], sparsity: float, seed: int) -> None:
    """Makes a share of a weight zero, of either sign."""
    zeros = np.random.default_rng(seed).random(w.shape) < sparsity
    w[zeros] *= 0


def _failed(how: How, source: int | Trial, seed: int, error: BaseException, timeout: float) -> Outcome:
    """The outcome of a trial that has failed, tried again in a new process."""
    pool = _worker(timeout)
    drawing: Future[Trial] = pool.submit(described, how, source, seed)
    if drawing.exception() is None:
        trial = drawing.result()
        again = pool.submit(attempt, how, trial, seed).exception()
    else:  # not even its configuration is known
        assert isinstance(source, int)
        trial, _ = random_trial(Draw(f"{seed}/{source}"), tvm.target.Target(how.target), source)
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
    """Readies a new worker, which keeps no machine code: nobody needs these kernels again.

    TVM binds a process that has run a kernel to the first cores, the same ones for all workers.
    """
    worker.initialize()
    os.environ["TVM_BIND_THREADS"] = "0"
    os.environ["TVMCONV_CACHE_DIR"] = os.devnull
