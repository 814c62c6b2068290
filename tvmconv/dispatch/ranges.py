"""The choice of kernels for a batch that is known only when they run: one for each range of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import InvalidArgumentError
from ..problem import Problem
from ..targets import backend_of
from .registry import default_config
from .selection import Selection, select

if TYPE_CHECKING:
    import tvm

ASSUMED_BATCHES = (1, 8, 64)
"""The batches that kernels for a GPU are chosen for where the batch is open: one image, a few, and many.

What is fast there depends on the number of blocks. Each is code of its own, so they are few.
"""

LEAST_GAIN = 1.1
"""The ratio of estimates from which a kernel is worth its code, and a copy of the weight in its layout."""


class Range(NamedTuple):
    """A range of batches, and the kernel for them."""

    least: int
    """The least batch; the range ends where the next one begins."""
    problem: Problem
    """The problem with a batch of the range, which the kernel is chosen for."""
    selection: Selection


Choose = Callable[[Problem, "tvm.target.Target"], Selection]
"""A function that chooses the kernel for a problem at its batch."""


def select_ranges(problem: Problem, target: tvm.target.Target) -> tuple[Range, ...]:
    """Return the kernels for a problem, by ascending batches; a single one for a known batch, and on a CPU.

    A range begins where the estimate of its kernel is below that of the one before. A kernel that is not worth its code
    has no range: the one before serves.
    """
    return tuple(_ranges(problem, target, select))


def range_with(batch: int, problem: Problem, target: tvm.target.Target, algorithm: str = "auto") -> Range:
    """Return the range of `select_ranges` that a batch is in; kernels of larger batches are not looked for."""
    ranges = _ranges(problem, target, partial(select, algorithm=algorithm))
    found = next(ranges)
    while batch > found.problem.workload.batch:  # else the next range, if there is one, begins later
        following = next(ranges, None)
        if following is None or following.least > batch:
            break
        found = following
    return found


def _ranges(problem: Problem, target: tvm.target.Target, choose: Choose) -> Iterator[Range]:
    if "batch" not in problem.open_sizes or not backend_of(target).on_gpu:
        yield Range(1, problem, choose(problem, target))
        return
    first, *others = at_assumed_batches(problem)
    last = Range(1, first, choose(first, target))
    yield last
    for assumed in others:
        selection = choose(assumed, target)
        if _pays(selection, last.selection, assumed, target):
            last = Range(_first_faster(selection, last, assumed, target), assumed, selection)
            yield last


def at_assumed_batches(problem: Problem) -> list[Problem]:
    """Return the problem with each of the assumed batches that a workload may have."""
    problems = []
    for batch in ASSUMED_BATCHES:
        try:
            problems.append(_at(problem, batch))
        except InvalidArgumentError:  # tensors of too many elements
            break
    return problems


def _at(problem: Problem, batch: int) -> Problem:
    return msgspec.structs.replace(problem, workload=msgspec.structs.replace(problem.workload, batch=batch))


def _cycles(selection: Selection, problem: Problem, target: tvm.target.Target) -> float:
    return selection.template.estimate(problem, selection.config, target)


def _pays(selection: Selection, before: Selection, problem: Problem, target: tvm.target.Target) -> bool:
    """Return whether a kernel is worth its code for a problem: if it was measured, or should be much faster."""
    if (selection.name, selection.config) == (before.name, before.config):
        return False
    is_default = selection.config == default_config(selection.template, problem, str(target))
    gain = _cycles(before, problem, target) / _cycles(selection, problem, target)
    return not is_default or gain > LEAST_GAIN


def _first_faster(selection: Selection, before: Range, problem: Problem, target: tvm.target.Target) -> int:
    """Return the first batch for which a kernel should be faster than the one before, at most that of the problem."""
    slow, fast = before.problem.workload.batch, problem.workload.batch
    while fast - slow > 1:
        between = _at(problem, (slow + fast) // 2)
        if _cycles(selection, between, target) < _cycles(before.selection, between, target):
            fast = between.workload.batch
        else:
            slow = between.workload.batch
    return fast
