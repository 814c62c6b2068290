"""Callbacks that accompany the tuning: one writes records, another shows progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from math import inf
from os import PathLike
from typing import TYPE_CHECKING, Any

from tvmconv.dispatch.record import Record, append
from tvmconv.dispatch.trial import MeasureInput, MeasureResult, Stage, Status
from tvmconv.problem.errors import names_of

from .flops import rate, scale_of
from .gone import NAMES
from .tidy import require_appendable

if TYPE_CHECKING:
    from .tuner.tuner import Callback, Tuner

QUIET_SECONDS = 5.0
"""The seconds between two lines of progress where there is no terminal."""

BAR_COLUMNS = 24

__getattr__ = names_of(__name__, NAMES)


def log_to_file(path: str | PathLike[str]) -> Callback:
    """Return a callback that appends each trial to a log, once when it begins and once when it ends.

    Raises `InvalidArgumentError` for a path in no folder, of a folder, or of a file that is no log.
    """
    require_appendable(path)

    def write(tuner: Tuner, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        append(path, map(Record.of, inputs, results))

    return write


class progress_bar:  # noqa: N801 (AutoTVM's name)
    """A callback that shows on stderr how a task's tuning goes: a bar on a terminal, elsewhere a line now and then.

    `n_trial` is the number that `tune` was given, and `si_prefix` the unit of FLOPS. `later` trials of other tasks
    follow, and all ends at the time `until` of `time.monotonic`: both only affect the time left that is shown. It ends
    with a line that stays, when its `with` block does, or else when nothing refers to it any more.
    """

    def __init__(
        self, n_trial: int, prefix: str = "", si_prefix: str = "G", *, later: int = 0, until: float = inf
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.n_trial = n_trial
        self.si_prefix = si_prefix
        self.prefix = prefix
        self.later = later
        self.until = until
        self._live: Any = None
        self._begun: tuple[float, int] | None = None
        self._last_line = -inf
        self._figures = ""
        scale_of(si_prefix)
        console = Console(stderr=True)
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)

    def __call__(self, tuner: Tuner, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, tuner.trials - (results[0].status is not Status.STARTED)
        begun, resumed = self._begun
        rate = (tuner.trials - resumed) / max(now - begun, 1e-9)
        self._figures = ", ".join(_figures(tuner, self.n_trial, self.si_prefix))
        if inputs[0].stage is Stage.CONFIRM:
            state = "measuring the best again"
        else:
            state = ", ".join([f"{rate:.3g} trials/s", *self._time_left(tuner.trials, rate, now)])
        self._show(tuner.trials, f"{self._figures}, {state}")

    def close(self) -> None:
        """End the display with a line that stays."""
        if self._live is not None:
            self._live.stop()
        if self._begun is not None:
            self._say(f"{self._figures}, {timedelta(seconds=round(time.monotonic() - self._begun[0]))}")
            self._begun = None

    def __enter__(self) -> progress_bar:
        self._show(0, f"up to {self.n_trial} trials")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _show(self, trials: int, text: str) -> None:
        if self._live is not None:
            self._live.start()
            self._live.update(self._drawn(trials, text), refresh=True)
        elif time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._last_line = time.monotonic()
            self._say(text)

    def _time_left(self, trials: int, rate: float, now: float) -> list[str]:
        left = [(self.n_trial - trials + self.later) / rate] if rate else []
        left += [self.until - now] if self.until < inf else []
        return [f"{timedelta(seconds=max(0, round(min(left))))} left"] if left else []

    def _say(self, text: str) -> None:
        print(f"{self.prefix}: {text}" if self.prefix else text, file=sys.stderr, flush=True)

    def _drawn(self, trials: int, text: str) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(max(1, self.n_trial), trials, width=BAR_COLUMNS), Text(text))
        return Group(Text(self.prefix), line)


def _figures(tuner: Tuner, n_trial: int, si_prefix: str) -> list[str]:
    figures = [f"{tuner.trials}/{n_trial} trials"]
    if tuner.best:
        cost = tuner.best[1].cost
        figures += [f"best {_micros(cost)}", f"{rate(tuner.task.flop, cost, si_prefix):.4g} {si_prefix.strip()}FLOPS"]
    figures += [f"default {_micros(tuner.default_cost)}"] if tuner.default_cost < inf else []
    figures += [f"{count} {status.value}" for status, count in tuner.failures.most_common()]
    return figures


def _micros(seconds: float) -> str:
    return f"{1e6 * seconds:.4g} µs"
