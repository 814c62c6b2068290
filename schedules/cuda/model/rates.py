"""The rates of GPUs that the model counts with, and the factors of templates.

`rates.json` has them as `python benchmarks/fit.py RECORDS... -o schedules/cuda/model/rates.json` has fitted them. A GPU
that was not measured has the rates of the H200, scaled by the data sheet. `tvmconv calibrate` measures the GPU of a
machine, and keeps its rates in a file of the user, which come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from tvmconv.problem.errors import InvalidArgumentError, TvmconvError
from tvmconv.support import store
from tvmconv.targets.devices import H200, Gpu
from tvmconv.targets.sources import RATES

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


class Calibrated(msgspec.Struct, frozen=True):
    """The rates of a GPU that its user has calibrated."""

    device: str
    """The name that the driver gives the GPU."""
    rates: Rates


class Origin(Enum):
    """The origin of a GPU's rates."""

    CALIBRATED = "calibrated"
    MEASURED = "measured"
    DATA_SHEET = "data sheet"


@cache
def table() -> Table[Rates]:
    """Return the fitted table; raise `msgspec.ValidationError` where a number is missing or not positive."""
    return msgspec.json.decode(files(__package__).joinpath("rates.json").read_bytes(), type=Table[Rates])


def rates_of(gpu: Gpu) -> Rates:
    """Return the rates of a GPU: the user's, else the measured ones, else those that its data sheet tells."""
    return _row(gpu)[0]


def origin_of(gpu: Gpu) -> Origin:
    """Return the origin of the rates that `rates_of` returns."""
    return _row(gpu)[1]


@cache
def _row(gpu: Gpu) -> tuple[Rates, Origin]:
    if (own := calibrated().get(gpu.model)) is not None:
        return own.rates, Origin.CALIBRATED
    return shipped_rates(gpu), Origin.MEASURED if gpu.model in table().machines else Origin.DATA_SHEET


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


@cache
def calibrated() -> Mapping[str, Calibrated]:
    """Return the rates in the user's file, by the models of GPUs: none where there is no file.

    Raise `InvalidArgumentError`, with the file, the key and its value, where one is not as `tvmconv calibrate` writes.
    """
    path = store.user_file(RATES)
    return {} if path is None or not path.is_file() else _read(path)


def keep(gpu: Gpu, device: str, rates: Rates) -> Path:
    """Write the rates of a GPU, of a driver's name, to the user's file, beside those of others; return its path."""
    path = require_user_file(RATES)
    rows = {**calibrated(), gpu.model: Calibrated(device, rates)}
    store.write_whole(path, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
    forget()
    return path


def require_user_file(name: str) -> Path:
    """Return the path of a file of the user; raise `TvmconvError` where nothing is to be kept."""
    path = store.user_file(name)
    if path is None:
        raise TvmconvError(f"there is no folder to keep {name} in: TVMCONV_CACHE_DIR names one")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def forget() -> None:
    """Forget the user's file, so that it is read again."""
    calibrated.cache_clear()
    _row.cache_clear()


def _read(path: Path) -> dict[str, Calibrated]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(str(path), str(error), "JSON, as `tvmconv calibrate` writes it") from None
    rows = _object(path, "", content)
    return {model: _calibrated(path, model, _object(path, model, row)) for model, row in rows.items()}


def _calibrated(path: Path, model: str, row: dict[str, Any]) -> Calibrated:
    device, rates = row.get("device"), _object(path, f"{model}.rates", row.get("rates"))
    if not isinstance(device, str):
        raise InvalidArgumentError(f"{model}.device in {path}", device, "the name of a GPU")
    for name in Rates.__struct_fields__:
        value = rates.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise InvalidArgumentError(f"{model}.rates.{name} in {path}", value, "a positive number")
    if unknown := rates.keys() - {*Rates.__struct_fields__}:
        name = min(unknown)
        raise InvalidArgumentError(f"{model}.rates.{name} in {path}", rates[name], "no such rate")
    return Calibrated(device, msgspec.convert(rates, Rates))


def _object(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{key} in {path}" if key else str(path), value, "an object")
    return value
