"""Contexts that apply tuning logs, under AutoTVM's names; `tvmconv.dispatch.history` does the work."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import Token
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmconv.dispatch.history import History, applied, best_record
from tvmconv.dispatch.record import Log, load_from_file, skipped_text
from tvmconv.problem.errors import InvalidArgumentError

from .templates import query

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ApplyHistoryBest", "DispatchContext", "FallbackContext", "apply_history_best", "best_record"]


class DispatchContext(ABC):
    """A context that sets which logs are applied in its `with` block."""

    def __init__(self) -> None:
        self._tokens: list[Token[tuple[History, ...]]] = []

    @abstractmethod
    def _within(self, outer: tuple[History, ...]) -> tuple[History, ...]:
        """Return the logs to apply in the block, where `outer` are applied around it."""

    def __enter__(self) -> Self:
        self._tokens.append(applied.set(self._within(applied.get())))
        return self

    def __exit__(self, *error: object) -> None:
        applied.reset(self._tokens.pop())

    def query(self, target: Any, workload: Any) -> Any:
        """Return the configuration that a task's `workload` gets in the block on a target."""
        with self:
            return query(target, workload)


class ApplyHistoryBest(DispatchContext):
    """Uses the best records of logs for whatever is compiled and built in the block, before any other logs.

    They have to come from the device that is there, and from this version of TVM and of the template; those that do not
    are left out with a warning. Where a CUDA kernel is built on a machine without a GPU, records of any GPU of the
    target's architecture are used. Raises `InvalidArgumentError` for a path without a log.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> option = autotvm.measure_option("local", "local")
    >>> log = autotvm.callback.log_to_file("best.jsonl")
    >>> autotvm.GridSearchTuner(task).tune(n_trial=2, measure_option=option, callbacks=[log])
    >>> option.close()
    >>> with autotvm.apply_history_best("best.jsonl"):
    ...     tvmconv.compile(task.workload, "llvm").selection.reason.startswith("tuned")
    True
    """

    def __init__(self, records: str | PathLike[str] | Sequence[str | PathLike[str]]) -> None:
        super().__init__()
        if not isinstance(records, str | PathLike | Sequence):
            raise InvalidArgumentError("records", records, "a tuning log, or a list of them")
        paths = [records] if isinstance(records, str | PathLike) else list(records)
        if not paths:
            raise InvalidArgumentError("records", records, "a tuning log, or a list of at least one")
        for path in paths:
            if not isinstance(path, str | PathLike):
                raise InvalidArgumentError("records", f"a list of {type(path).__name__}", "paths of tuning logs")
            if not Path(path).is_file():
                raise InvalidArgumentError("records", str(path), "a tuning log that exists")
        states = [(str(path), (stat := Path(path).stat()).st_mtime_ns, stat.st_size) for path in paths]
        self.history = _history(*states)
        if self.history.skipped:
            warnings.warn(f"{self.history.source}: {skipped_text(self.history.skipped)}", stacklevel=2)

    def _within(self, outer: tuple[History, ...]) -> tuple[History, ...]:
        return self.history, *outer


apply_history_best = ApplyHistoryBest


class FallbackContext(DispatchContext):
    """A context without logs except those that tvmconv ships: templates get their default configurations.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> with autotvm.FallbackContext():
    ...     tvmconv.compile(tvmconv.ConvWorkload.depthwise((1, 8, 14, 14), (8, 1, 3, 3)), "llvm").selection.reason
    'default configuration'
    """

    def _within(self, outer: tuple[History, ...]) -> tuple[History, ...]:
        return ()


@lru_cache(maxsize=16)
def _history(*states: tuple[str, int, int]) -> History:
    """Return the records of logs, cached by path, time and size, so that kernels compiled with them are found again."""
    whole = Log()
    for path, _, _ in states:
        log = load_from_file(path)
        whole.records += log.records
        whole.skipped += log.skipped
    return History(whole, ", ".join(path for path, _, _ in states))
