"""The rates of GPUs that the model counts with, and the factors of templates.

`rates.json` has them as `python benchmarks/fit.py RECORDS... -o schedules/cuda/model/rates.json` has fitted them. A GPU
that was not measured has the rates of the H200, scaled by the data sheet. `tvmconv calibrate` measures the GPU of a
machine, and keeps its rates in a file of the user, which come first.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from tvmconv.targets.devices import H200, Gpu
from tvmconv.targets.sources import RATES

from ...calibrated import Origin, UserRates
from ...fitted import UNFITTED, Factors, Positive, Table


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


USER = UserRates(RATES, Rates)
"""The rates of GPUs that the user has calibrated."""


@cache
def table() -> Table[Rates]:
    """Return the fitted table; raise `msgspec.ValidationError` where a number is missing or not positive."""
    return msgspec.json.decode(files(__package__).joinpath("rates.json").read_bytes(), type=Table[Rates])


def rates_of(gpu: Gpu) -> Rates:
    """Return the rates of a GPU: the user's, else the measured ones, else those that its data sheet tells."""
    user_row = USER.rows().get(gpu.model)
    return shipped_rates(gpu) if user_row is None else user_row.rates


def origin_of(gpu: Gpu) -> Origin:
    """Return the origin of the rates that `rates_of` returns."""
    if gpu.model in USER.rows():
        return Origin.CALIBRATED
    return Origin.MEASURED if gpu.model in table().machines else Origin.DATA_SHEET


@cache
def shipped_rates(gpu: Gpu) -> Rates:
    """Return the rates that the package has for a GPU: the measured ones, else those that its data sheet tells."""
    measured = table().machines
    return measured[gpu.model] if gpu.model in measured else scaled(measured[H200.model], H200, gpu)


def scaled(rates: Rates, measured: Gpu, gpu: Gpu) -> Rates:
    """Return rates that were measured on one GPU as another's data sheet changes them.

    Launches and waits for memory take times that the clock of multiprocessors does not change: of a faster clock, they
    take more clocks. All other rates are those of a multiprocessor, clock for clock, and stay: each GPU in the table of
    devices has four schedulers of warps (`issue`, `block`, `turn`) and 32 banks of shared memory (`access`), and `mma`
    is relative to the data sheet already. So does `l2`: the white paper of the A100 tells 5120 bytes a clock, 47 for
    each multiprocessor, as many as the H200 was measured to have, and data sheets of others tell nothing.
    """
    clocks = gpu.clock / measured.clock
    times = {name: getattr(rates, name) * clocks for name in ("launch", "further", "latency")}
    return msgspec.structs.replace(rates, **times)


@cache
def factors_of(module: str) -> Factors:
    """Return the factors of the template in a module, such as "tvmconv.schedules.cuda.gradients.input"."""
    return table().templates.get(module.rpartition("schedules.cuda.")[2], UNFITTED)
