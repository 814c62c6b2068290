"""Fitted numbers of the models of GPUs and of CPUs: the factors of templates, the table of a file, and the p-norm."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]

R = TypeVar("R")


class Factors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The factors of a template's counts."""

    issued: Positive = 1.0
    """On a GPU the actual instructions for each counted one. On a CPU it multiplies the clocks of multiply-adds, of
    loads and of sums without a register."""
    waiting: Positive = 1.0
    """On a GPU the actual clocks of waiting for each counted one. On a CPU it multiplies the clocks of what is added to
    the sums: transforms, stores, transpositions and copies."""


UNFITTED = Factors()
"""The factors of a template that was not fitted."""


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The errors of a model for a template, on problems that it was not fitted to."""

    problems: int
    """The number of problems with at least four measured configurations."""
    regret: float
    """The geometric mean, over problems, of the chosen configuration's time divided by the shortest time."""
    worst: float
    """The largest such ratio."""
    times: float
    """The root mean square error of the logarithms of times."""


class Table(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True):
    """The rates that are fitted, by the names of machines; factors and errors, by the modules of templates."""

    machines: dict[str, R]
    templates: dict[str, Factors]
    errors: dict[str, Error]


def p_norm(power: float, *bounds: float) -> float:
    """Return the p-norm of bounds that are 0 or more: the largest of them, and a little of the lesser ones."""
    total: float = sum(each**power for each in bounds) ** (1 / power)
    return total
