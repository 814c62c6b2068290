"""The choice of kernels for sizes that are known only when they run: one for each range of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.open_sizes import least_planes
from tvmconv.schedules.template import Selection
from tvmconv.targets import backend_of

from .registry import default_config
from .selection import select

if TYPE_CHECKING:
    import tvm

ASSUMED_BATCHES = (1, 8, 64)
"""The batches that kernels for a GPU are chosen for where the batch alone is open: one image, a few, and many.

The fastest kernel depends on the number of blocks. Each kernel is separate code, so they are few.
"""

ASSUMED_SIDES = (35, 100, 300)
"""The heights and widths that kernels are chosen for where planes are open, in percent of those in the workload.

Each has some eight times the pixels of the one before, as the batches have. By estimates, 14 layers of a U-Net and a
ResNet at 23 sizes take 1.02 times as long in the mean as kernels for the size, and at worst 1.22 times; with one kernel
1.07 and 1.72 times.
"""

LEAST_GAIN = 1.1
"""The ratio of estimates from which a kernel is worth its code, and a copy of the weight in its layout."""


class Range(NamedTuple):
    """A range of sizes, and the kernel for them."""

    least: int
    """The least product of the output's open sizes: a batch, or pixels of all images. The range ends where the next one
    begins."""
    problem: Problem
    """The problem with sizes of the range, which the kernel is chosen for."""
    selection: Selection


Choose = Callable[[Problem, "tvm.target.Target"], Selection]
"""A function that chooses the kernel for a problem at its sizes."""


def select_ranges(problem: Problem, target: tvm.target.Target) -> tuple[Range, ...]:
    """Return the kernels for a problem, by ascending sizes; a single one for known sizes, and on a CPU.

    On a CPU a network would have each weight once more in the layout of each kernel. A range begins where the estimate
    of its kernel is below that of the kernel before. A kernel that is not worth its code has no range: the one before
    serves.
    """
    if not backend_of(target).kernels_by_batch:
        return (Range(1, problem, select(problem, target)),)
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
    if not problem.open_sizes:
        yield Range(1, problem, choose(problem, target))
        return
    (slow, first), *others = _assumed(problem)
    last = Range(1, first, choose(first, target))
    yield last
    for step, assumed in others:
        selection = choose(assumed, target)
        if _pays(selection, last.selection, assumed, target):
            last = Range(_first_faster(selection, last, problem, (slow, step), target), assumed, selection)
            slow = step
            yield last


def at_assumed_sizes(problem: Problem) -> list[Problem]:
    """Return the problem with each of the assumed sizes that a workload may have."""
    return [assumed for _, assumed in _assumed(problem)]


def _assumed(problem: Problem) -> list[tuple[int, Problem]]:
    """Return the problem with each of the assumed sizes that a workload may have, with the step given to `_at`."""
    problems = []
    for step in ASSUMED_SIDES if problem.has_open_planes else ASSUMED_BATCHES:
        try:
            problems.append((step, _at(problem, step)))
        except InvalidArgumentError:  # tensors of too many elements
            break
    return problems


def _at(problem: Problem, step: int) -> Problem:
    """Return the problem with its open height and width at `step` percent of the workload's, or with batch `step`."""
    workload = problem.workload
    sizes = {"batch": step}
    if problem.has_open_planes:
        least = {name: size for name, size in least_planes(workload).items() if name in problem.open_sizes}
        sizes = {name: max(size, getattr(workload, name) * step // 100) for name, size in least.items()}
    return msgspec.structs.replace(problem, workload=msgspec.structs.replace(workload, **sizes))


def _open_outputs(problem: Problem) -> int:
    """Return the product of the output's sizes that are open."""
    sizes = zip(("batch", "height", "width"), (problem.workload.batch, *problem.workload.output_size), strict=True)
    return prod(size for name, size in sizes if name in problem.open_sizes)


def _cycles(selection: Selection, problem: Problem, target: tvm.target.Target) -> float:
    return selection.template.estimate(problem, selection.config, target)


def _pays(selection: Selection, previous: Selection, problem: Problem, target: tvm.target.Target) -> bool:
    """Return whether a kernel is worth its code for a problem: if it was measured, or should be much faster."""
    if (selection.name, selection.config) == (previous.name, previous.config):
        return False
    is_default = selection.config == default_config(selection.template, problem, str(target))
    gain = _cycles(previous, problem, target) / _cycles(selection, problem, target)
    return not is_default or gain > LEAST_GAIN


def _first_faster(
    selection: Selection, previous: Range, problem: Problem, steps: tuple[int, int], target: tvm.target.Target
) -> int:
    """Return the least `Range.least` for which a kernel should be faster than the one before, between two steps."""
    slow, fast = steps
    while fast - slow > 1:
        middle = (slow + fast) // 2
        between = _at(problem, middle)
        if _cycles(selection, between, target) < _cycles(previous.selection, between, target):
            fast = middle
        else:
            slow = middle
    return _open_outputs(_at(problem, fast))
