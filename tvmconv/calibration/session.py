"""The calibration of a GPU or a CPU of this machine: its rates are measured in minutes, and kept in a user's file."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import msgspec
import tvm

from tvmconv.autotvm.measure.protocol import MeasureOption, never
from tvmconv.autotvm.task import ConvTask, create
from tvmconv.dispatch.record import Record, append
from tvmconv.dispatch.trial import MeasureInput, MeasureResult
from tvmconv.problem.errors import InvalidArgumentError, TvmconvError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.calibrated import require_user_file
from tvmconv.targets import DeviceFacts, backend_of

from .fit import (
    FEWEST,
    MODELS,
    Fit,
    Measured,
    chooses_by_counts,
    counted_as,
    counts_work,
    geometric,
    measured,
    model_of,
    regret,
)
from .problems import SMALL
from .steadiness import BUSY, Gauge, Reading, disturbance
from .trials import key_of, keys_in, records_in, trials

KERNELS = 200
"""The number of kernels that are measured."""

LEAST = 60
"""The least number of kernels that rates are fitted to."""

CONFIGS = 6
"""The number of configurations of a problem."""

BETWEEN = 40
"""The most trials from one measurement of the reference kernel to the next."""

LAST_SECONDS = 15.0
"""The time that the last measurement of the reference kernel and the fit may take."""

REFERENCE = ConvWorkload.depthwise((32, 256, 28, 28), (256, 1, 7, 7))
"""The workload of the kernel that tells how steady the machine is."""


@dataclass(frozen=True)
class Regret:
    """The regret of the choices of a template: their times divided by the shortest ones, in the geometric mean."""

    template: str
    problems: int
    """The number of measured problems."""
    before: float
    after: float


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration."""

    device: str
    """The name that the driver gives the GPU, or that of the CPU."""
    model: str
    """The model of the row of devices that the rates are kept for."""
    kernels: int
    """The number of kernels that were measured."""
    before: msgspec.Struct
    """The rates before."""
    after: msgspec.Struct
    """The fitted rates."""
    regrets: tuple[Regret, ...]
    """The regrets of the templates that choose by the model."""
    kept: str | None
    """The path of the file with the rates; None where those before choose better, which stay."""
    trials: str
    """The path of the log of the kernels."""


def calibrate(
    option: MeasureOption,
    gauge: Gauge,
    target: tvm.target.Target,
    seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Measure kernels of the machine of a target, fit its rates to them, and keep these.

    Trials that the log of an earlier call has are not measured again, unless that call ended with rates. Raise
    `TvmconvError` where the machine was disturbed, which keeps no trials, and where time was too short, which keeps
    them.
    """
    end = now() + seconds - LAST_SECONDS
    model, reference = MODELS[backend_of(target).templates], create(REFERENCE, target)
    row = model.row_of(target)
    device = option.device(reference)
    log = require_user_file(f"calibration-{re.sub(r'[^a-z0-9]+', '-', device.name.lower())}.part.jsonl")
    require_records_of(log, device)
    if gauge.use >= BUSY:
        raise TvmconvError(f"{device} is busy: other programs use it {gauge.use}% of the time. Nothing was measured")
    readings = _measure(option, gauge, reference, log, lambda: now() > end)
    if (why := disturbance(readings, gauge)) is not None:
        log.unlink()
        raise TvmconvError(f"{device} is busy or throttled: {why}. Nothing is kept: try again when it is idle")
    problems = measured([log])
    kernels = sum(len(each.seconds) for each in problems)
    if kernels < LEAST:
        raise TvmconvError(
            f"{kernels} kernels were measured in time, of at least {LEAST}: the same command again measures the rest"
        )
    before, after = model.rates_of(row), fitted(problems, model.shipped_rates(row))
    regrets = regrets_of(problems, after)
    better = not regrets or _mean(regrets, "after") <= _mean(regrets, "before")
    kept = str(model.user.keep(row.model, device.name, after)) if better else None
    ended = log.replace(log.with_name(log.name.replace(".part", "")))
    return Calibration(device.name, row.model, kernels, before, after, regrets, kept, str(ended))


def require_records_of(log: Path, device: DeviceFacts) -> None:
    """Raise `InvalidArgumentError` for a log with a record of another device."""
    for record in records_in(log):
        if record.device.name != device.name:
            raise InvalidArgumentError(f"device.name in {log}", record.device.name, f"{device.name!r} in each record")


def fitted(problems: Sequence[Measured], start: msgspec.Struct) -> msgspec.Struct:
    """Return the rates that fit problems of a machine best, from those to begin with; factors are the package's."""
    fit = _fit(problems, start)
    rates: msgspec.Struct = fit.rows(fit.fitted(problems))[0]
    return rates


def regrets_of(problems: Sequence[Measured], after: msgspec.Struct) -> tuple[Regret, ...]:
    """Return the regrets of templates that choose by the model: with the present rates, and with those after."""
    fit, ratios = _fit(problems, after), defaultdict[str, list[tuple[float, float]]](list)
    for each in problems:
        if chooses_by_counts(each.template) and len(each.seconds) >= FEWEST:
            ratios[each.template].append((regret(each, each.before), regret(each, fit.logarithms(fit.start, [each]))))
    return tuple(
        Regret(name, len(pairs), *map(geometric, zip(*pairs, strict=True))) for name, pairs in sorted(ratios.items())
    )


def _fit(problems: Sequence[Measured], start: msgspec.Struct) -> Fit:
    return Fit(problems, start, model_of(problems[0].template).table().templates)


def _measure(
    option: MeasureOption, gauge: Gauge, reference: ConvTask, log: Path, stop: Callable[[], bool]
) -> list[Reading]:
    """Measure trials into a log, until it has enough or it is time to stop.

    Return the readings of the reference kernel between them, and those that the log had, without their clocks.
    """
    probe = MeasureInput(reference.target, reference, reference.space.default)
    algorithms = _algorithms(backend_of(probe.target).templates)
    done, wanted = keys_in(log) - {key_of(probe)}, trials(algorithms, KERNELS, CONFIGS, 0, probe.target, SMALL, 0)
    others = islice((trial for trial in wanted if key_of(trial) not in done), max(0, KERNELS - len(done)))
    readings = [Reading(min(record.costs), 0) for record in records_in(log) if is_of(record, probe)]

    def measure(some: Iterable[MeasureInput], stop: Callable[[], bool]) -> int:
        """Measure the reference kernel, and some trials; return the number of these."""
        count = 0
        for trial, result in option.measure(chain([probe], some), lambda trial: None, stop):
            append(log, [Record.of(trial, result)])
            if trial is probe:
                readings.append(_reading(result, gauge))
            else:
                count += 1
        return count

    for _ in option.measure([probe], lambda trial: None):
        pass  # the first call may find a machine that has slept
    while not stop() and measure(islice(others, BETWEEN), stop):
        pass
    measure((), never)
    return readings


def _algorithms(folder: str) -> list[str]:
    """Return the algorithms whose templates, in a folder of `schedules/`, count their work and have factors."""
    model, names = MODELS[folder], {name: f"{folder}/{name}" for name in MODELS[folder].modules}
    return [name for name, of in names.items() if counted_as(of) in model.table().templates and counts_work(of)]


def is_of(record: Record, trial: MeasureInput) -> bool:
    """Return whether a record is of a trial."""
    same = (record.template, record.problem) == (trial.task.name, trial.task.problem)
    return same and record.knobs == trial.task.knobs(trial.config)


def _reading(result: MeasureResult, gauge: Gauge) -> Reading:
    if result.reason is not None:
        raise TvmconvError(f"the reference kernel failed: {result.reason}")
    return Reading(min(result.costs), gauge.mhz)


def _mean(regrets: Sequence[Regret], when: str) -> float:
    """Return the geometric mean of regrets over problems, "before" or "after"."""
    return geometric([getattr(each, when) for each in regrets for _ in range(each.problems)])
