"""The times of the kernels of one call, as `Network.profile` and `Operator.profile` return them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

BUILTIN = "vm.builtin."
"""The beginning of the names of the virtual machine's own functions, for memory and shapes."""

COLUMNS = 60
"""The most characters of a name in a printed table."""


class Timed(NamedTuple):
    """A call of a function in a run, and the seconds that it took."""

    function: str
    seconds: float


@dataclass(frozen=True)
class ProfileRow:
    """A kernel of a call, and the time that it takes."""

    name: str
    """The name of the layer that the kernel computes, as `Network.layers` has it; else the name of the function."""
    kernel: str
    """The template, such as "tvmconv cpu/direct", or "TVM"."""
    function: str
    """The name of the compiled function."""
    seconds: float
    """The median of the repeats."""
    share: float
    """The part of the sum of all rows, from 0 to 1."""


@dataclass(frozen=True)
class Profile:
    """The kernels of a call in the order in which they ran; `print` shows a table."""

    rows: tuple[ProfileRow, ...]

    @property
    def seconds(self) -> float:
        """The sum of the rows."""
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        names = [row.name if len(row.name) <= COLUMNS else f"{row.name[: COLUMNS - 1]}…" for row in self.rows]
        widths = [max(map(len, ["layer", *names])), max(map(len, ["kernel", *(row.kernel for row in self.rows)]))]
        lines = [f"{'layer':{widths[0]}}  {'kernel':{widths[1]}}  {'µs':>9}  {'share':>6}"]
        lines += [
            f"{name:{widths[0]}}  {row.kernel:{widths[1]}}  {1e6 * row.seconds:9.1f}  {row.share:6.1%}"
            for name, row in zip(names, self.rows, strict=True)
        ]
        lines.append(f"{len(self.rows)} kernels: {1e6 * self.seconds:.1f} µs")
        return "\n".join(lines)


class Recorder:
    """An instrument of TVM's virtual machine that notes the time of each function in which no other one is called."""

    def __init__(self, sync: Callable[[], None]) -> None:
        """Take the function that waits until the device has computed all that was launched."""
        self.timed: list[Timed] = []
        self._sync = sync
        self._begun: list[tuple[float, int]] = []

    def __call__(self, function: Any, name: str, before: bool, *rest: Any) -> int:
        """Note the time before and after a call; return 0, which lets the machine go on."""
        if name.startswith(BUILTIN):
            return 0
        self._sync()
        now = time.perf_counter()
        if before:
            self._begun.append((time.perf_counter(), len(self.timed)))
            return 0
        begun, count = self._begun.pop()
        if len(self.timed) == count:  # no other function was called in this one
            self.timed.append(Timed(name, now - begun))
        return 0


def profile_of(
    runs: Sequence[Sequence[Timed]], layers: Mapping[str, Iterable[tuple[str, str]]] | None = None
) -> Profile:
    """Return the profile of runs, which call the same functions in the same order.

    `layers` has the name and the kernel of each layer that a function computes, in the order of its calls.
    """
    waiting = {function: list(named) for function, named in (layers or {}).items()}
    calls = Counter(timed.function for timed in runs[0])
    seconds = [median(timed.seconds for timed in each) for each in zip(*runs, strict=True)]
    total = sum(seconds) or 1.0
    rows = []
    for timed, cost in zip(runs[0], seconds, strict=True):
        named = waiting.get(timed.function, [])
        # A call computes several layers where these are equal and computed once, or are products of one attention.
        launched = named[: max(1, len(named) // calls[timed.function])]
        calls[timed.function] -= 1
        del named[: len(launched)]
        name = ", ".join(name for name, _ in launched) or timed.function
        theirs = "tvmconv" if timed.function.startswith("tvmconv_") else "TVM"
        rows.append(ProfileRow(name, launched[0][1] if launched else theirs, timed.function, cost, cost / total))
    return Profile(tuple(rows))


def timed_calls(call: Callable[[], object], sync: Callable[[], None], name: str, repeat: int) -> list[list[Timed]]:
    """Return the timed functions of `repeat` runs of one call each, after a run that is not timed."""
    call()
    runs = []
    for _ in range(repeat):
        sync()
        begun = time.perf_counter()
        call()
        sync()
        runs.append([Timed(name, time.perf_counter() - begun)])
    return runs
