"""The rates of CPUs that the model counts with, and the factors of templates.

`rates.json` has them as `python benchmarks/fit.py RECORDS... -o schedules/cpu/model/rates.json` has fitted them. A CPU
that was not measured has those of the one that its row in `tvmconv/targets/devices.py` names. `tvmconv calibrate`
measures the CPU of a machine, and keeps its rates in a file of the user, which come first.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from tvmconv.targets.devices import Cpu
from tvmconv.targets.sources import CPU_RATES

from ...calibrated import Origin, UserRates
from ...fitted import UNFITTED, Factors, Positive, Table

FACTORS_OF_OTHERS = {"direct.im2win": "direct"}
"""The modules of templates that have the factors of another one, whose loops they share."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted parameters of a CPU; clocks are those of a core."""

    call: Positive
    """The clocks of a call with nothing to do."""
    loop: Positive
    """The clocks of each parallel loop."""
    multiply: Positive
    """The actual clocks of multiply-adds for each clock computed from the number of units."""
    load: Positive
    """The clocks of a vector that is loaded."""
    broadcast: Positive
    """The clocks of an element that is loaded into all lanes."""
    split: Positive
    """The further clocks of a vector that may lie in two lines of a cache."""
    spill: Positive
    """The clocks of a multiply-add whose sum has no register."""
    allocate: Positive
    """The clocks to take memory for the sums of a tile, and to keep them there too."""
    issue: Positive
    """The clocks of another vector instruction (`Counts.issued`)."""
    store: Positive
    """The clocks to finish and store a vector."""
    transpose: Positive
    """The clocks to transpose a vector of results, in Winograd's convolution with its store."""
    pair: Positive
    """The clocks of each pair of vectors in a tile that waits (`Counts.paired`)."""
    copy: Positive
    """The clocks to copy a vector."""
    move: Positive
    """The clocks to move an element."""
    pack: Positive
    """The clocks to lay out an element of a weight."""
    second: Positive
    """The clocks of a byte from the second cache."""
    last: Positive
    """The clocks of a byte from the last cache."""
    memory: Positive
    """The clocks of a byte from memory."""
    power: Positive
    """The exponent p of the p-norm that combines bounds."""


USER = UserRates(CPU_RATES, Rates)
"""The rates of CPUs that the user has calibrated."""


@cache
def table() -> Table[Rates]:
    """Return the fitted table; raise `msgspec.ValidationError` where a number is missing or not positive."""
    return msgspec.json.decode(files(__package__).joinpath("rates.json").read_bytes(), type=Table[Rates])


def rates_of(cpu: Cpu) -> Rates:
    """Return the rates of a CPU: the user's, else those that the package has."""
    user_row = USER.rows().get(cpu.model)
    return shipped_rates(cpu) if user_row is None else user_row.rates


def shipped_rates(cpu: Cpu) -> Rates:
    """Return the rates that the package has for a CPU: the measured ones, else those of the CPU that its row names."""
    return table().machines[cpu.row]


def origin_of(cpu: Cpu) -> Origin:
    """Return the origin of the rates that `rates_of` returns; those of another CPU count as of the data sheet."""
    if cpu.model in USER.rows():
        return Origin.CALIBRATED
    return Origin.MEASURED if cpu.row == cpu.model else Origin.DATA_SHEET


@cache
def factors_of(module: str) -> Factors:
    """Return the factors of the template in a module, such as "tvmconv.schedules.cpu.dot.depthwise_dot"."""
    name = module.rpartition("schedules.cpu.")[2]
    return table().templates.get(FACTORS_OF_OTHERS.get(name, name), UNFITTED)
