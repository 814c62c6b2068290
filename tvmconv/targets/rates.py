"""The rates of GPUs that the model of `tvmconv.schedules.cuda.model` counts with, and the factors of templates.

`rates.json` has them as `python benchmarks/fit.py RECORDS... -o tvmconv/targets/rates.json` has fitted them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated

import msgspec

from .devices import H100, Gpu

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted parameters of a GPU; clocks are those of a multiprocessor."""

    launch: Positive
    """The clocks of a call with a kernel that has nothing to do."""
    further: Positive
    """The clocks of each further kernel of a call."""
    block: Positive
    """The fixed clocks that each block costs its multiprocessor."""
    issue: Positive
    """The instructions that its warps begin in a clock."""
    access: Positive
    """The clocks of an access of a warp to 128 bytes of shared memory."""
    mma: Positive
    """The actual clocks of tensor cores for each clock computed from the data sheet."""
    l2: Positive
    """The bytes that a multiprocessor reads and writes in a clock by way of the L2 cache."""
    latency: Positive
    """The clocks of one wait of a thread for memory."""
    turn: Positive
    """The clocks from an instruction to the next one that waits for it."""
    power: Positive
    """The exponent p of the p-norm that combines bounds."""


class Factors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The factors of a template's counts."""

    issued: Positive = 1.0
    """The actual instructions for each counted instruction."""
    waiting: Positive = 1.0
    """The actual clocks of waiting for each counted clock."""


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The errors of the model for a template, on problems that it was not fitted to."""

    problems: int
    """The number of problems with at least four measured configurations."""
    regret: float
    """The geometric mean, over problems, of the chosen configuration's time divided by the shortest time."""
    worst: float
    """The largest such ratio."""
    times: float
    """The root mean square error of the logarithms of times."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rates that are fitted, by the models of GPUs; factors and errors, by the modules in `schedules/cuda`."""

    gpus: dict[str, Rates]
    templates: dict[str, Factors]
    errors: dict[str, Error]


UNFITTED = Factors()
"""The factors of a template that was not fitted."""


@cache
def table() -> Table:
    """Return the fitted table; raise `msgspec.ValidationError` where a number is missing or not positive."""
    return msgspec.json.decode(files(__package__).joinpath("rates.json").read_bytes(), type=Table)


def rates_of(gpu: Gpu) -> Rates:
    """Return the rates of a GPU: those of an H100 for one that was not measured."""
    known = table().gpus
    return known.get(gpu.model, known[H100.model])


@cache
def factors_of(module: str) -> Factors:
    """Return the factors of the template in a module, such as "tvmconv.schedules.cuda.gradients.input"."""
    return table().templates.get(module.rpartition("schedules.cuda.")[2], UNFITTED)
