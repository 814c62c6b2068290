"""Fit the model of a GPU to records: its rates, and two factors for each template.

    python benchmarks/fit.py RECORDS... -o tvmconv/targets/rates.json

Records are those of `benchmarks/collect.py`, or any tuning logs. Configurations of one problem are compared with one
another: the fit is by the errors of the logarithms of times, and more by those relative to a problem's mean error, most
of fast configurations. Templates have the same weight, but for kernels that take much longer than the model tells,
which have little. All records have to be for GPUs of one row of `tvmconv/targets/devices.py`.

The table tells the regret of each template: the time of a chosen configuration divided by the shortest measured time,
in the geometric mean and at worst. "random" is that of a random choice, "before" of the choice by the estimates of the
package, which may have been fitted to the same records, and "held out" of the choice by the fitted model, on problems
that it was not fitted to. The last column is the root mean square error of the logarithms of its times.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from math import inf
from multiprocessing import get_context
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares
from script import options_of

from tvmconv.dispatch import template_named
from tvmconv.dispatch.record import load_from_file
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda import MODULES
from tvmconv.schedules.cuda.model import Counts, clocks
from tvmconv.schedules.cuda.template import GpuTemplate
from tvmconv.support.store import write_whole
from tvmconv.targets import gpu_of, resolve_target
from tvmconv.targets.devices import Gpu
from tvmconv.targets.rates import Error, Factors, Rates, Table, table

CLOCK = 1.755e9
"""The clocks of a second that estimates count with."""

COUNTS = tuple(field.name for field in fields(Counts))
RATES = Rates.__struct_fields__

WITHIN, RATE_WEIGHT, FACTOR_WEIGHT = 2.0, 0.02, 0.05
"""`WITHIN` multiplies a configuration's error relative to its problem's mean error. The other two multiply the
logarithms by which rates and factors differ from the start, so that those which records do not determine stay there."""

START = Rates(launch=2500, further=1800, block=30, issue=4, access=1, mma=1, l2=48, latency=400, turn=4, power=2)
"""The rates that a fit begins with, near the data sheet's of an H100."""

OUTLIER = 0.03
"""The weighted error beyond which the loss grows linearly, not with the square."""

FEWEST = 4
"""The fewest configurations of a problem whose regret is told."""

MOST = 64
"""The most configurations of a problem in the fit."""


@dataclass(frozen=True)
class Measured:
    """The measured configurations of a problem."""

    template: str
    """The name of the template, such as "cuda/attention"."""
    gpu: Gpu
    """The row of the device table for the target; an H200 uses the H100's."""
    problem: str
    counts: Any
    """An array (configurations, counts)."""
    seconds: Any
    """An array (configurations)."""
    before: Any
    """The package's current estimates, used only to rank configurations."""


def measured(paths: Iterable[str]) -> list[Measured]:
    """Return the problems in files of records with several configurations of templates that count their work."""
    found: dict[tuple[str, str, Problem], dict[str, float]] = defaultdict(dict)
    for path in paths:
        for record in load_from_file(path).records:
            if record.costs and isinstance(record.problem, Problem) and counts_work(record.template):
                of_problem = found[record.template, record.target, record.problem]
                knobs = json.dumps(record.knobs)
                of_problem[knobs] = min(*record.costs, of_problem.get(knobs, inf))
    problems = (_measured(*key, configs) for key, configs in found.items())
    return [each for each in problems if len(each.seconds) > 1]


def counts_work(name: str) -> bool:
    """Return whether a template is one of CUDA that counts its work."""
    folder, _, algorithm = name.partition("/")
    return folder == "cuda" and algorithm in MODULES and type(template_named(name)).counts is not GpuTemplate.counts


def _measured(name: str, given: str, problem: Problem, configs: dict[str, float]) -> Measured:
    template, target = template_named(name), resolve_target(json.loads(given))
    assert isinstance(template, GpuTemplate)
    counts, seconds, before = [], [], []
    for knobs, cost in configs.items():
        config = msgspec.convert(json.loads(knobs), template.Config)
        if template.is_legal(problem, config, target):
            work = template.counts(problem, config, target)
            counts.append([float(getattr(work, count)) for count in COUNTS])
            before.append(template.estimate(problem, config, target))
            seconds.append(cost)
    return Measured(name, gpu_of(target), str(problem), np.array(counts), np.array(seconds), np.array(before))


class Fit:
    """The parameters of the model, logarithms of rates and factors, and the times that they tell."""

    def __init__(self, problems: Sequence[Measured]) -> None:
        """Raise `InvalidArgumentError` for problems of GPUs of several rows, and for none at all."""
        if not problems:
            raise InvalidArgumentError("records", [], "several configurations of a problem of a template that counts")
        self.gpu, *others = dict.fromkeys(each.gpu for each in problems)
        if others:
            raise InvalidArgumentError("records", others[0].model, f"those of one row, as the {self.gpu.model} has")
        self.templates = sorted({each.template for each in problems})
        self.start = np.log([*(getattr(START, name) for name in RATES), *np.ones(2 * len(self.templates))])

    def logarithms(self, parameters: Any, problems: Sequence[Measured]) -> Any:
        """Return the logarithms of the seconds of configurations of problems, one after the other."""
        number = [self.templates.index(each.template) for each in problems]
        template = np.repeat(number, [len(each.seconds) for each in problems])
        columns = np.concatenate([each.counts for each in problems]).T
        values = np.exp(parameters)
        rates, factors = Rates(*values[: len(RATES)]), values[len(RATES) :].reshape(2, -1)
        counts = Counts(**dict(zip(COUNTS, columns, strict=True)))
        return np.log(clocks(counts, self.gpu, rates, Factors(*factors[:, template])) / CLOCK)

    def fitted(self, problems: Sequence[Measured]) -> Any:
        """Return the parameters that are fitted to problems."""
        some = [_at_most(each, MOST) for each in problems]
        sizes = np.array([len(each.seconds) for each in some])
        of_template = Counter(each.template for each in some)
        number = np.repeat(np.arange(len(some)), sizes)
        weight = np.repeat([(of_template[each.template] * len(each.seconds)) ** -0.5 for each in some], sizes)
        seconds = np.concatenate([each.seconds for each in some])
        fastest = np.repeat([each.seconds.min() for each in some], sizes)
        near = np.clip(fastest / seconds, 0.2, 1)
        own = np.full(len(self.start), FACTOR_WEIGHT)
        own[: len(RATES)] = RATE_WEIGHT

        def errors(parameters: Any) -> Any:
            error = self.logarithms(parameters, some) - np.log(seconds)
            mean = np.bincount(number, error * near) / np.bincount(number, near)
            within = WITHIN * near * (error - mean[number])
            return np.concatenate([weight * error, weight * within, own * (parameters - self.start)])

        return least_squares(errors, self.start, loss="soft_l1", f_scale=OUTLIER, max_nfev=100, x_scale="jac").x

    def table(self, parameters: Any, errors: dict[str, Error]) -> Table:
        """Return the rows of parameters, in three digits, beside those of other GPUs and templates."""
        values = np.array([float(f"{value:.3g}") for value in np.exp(parameters)])
        modules = [MODULES[name.partition("/")[2]] for name in self.templates]
        factors = [Factors(*pair) for pair in values[len(RATES) :].reshape(2, -1).T.tolist()]
        rates, before = Rates(*values[: len(RATES)].tolist()), table()
        templates = before.templates | dict(zip(modules, factors, strict=True))
        return Table(before.gpus | {self.gpu.model: rates}, templates, before.errors | errors)


def _at_most(each: Measured, count: int) -> Measured:
    if len(each.seconds) <= count:
        return each
    some = np.random.default_rng(0).choice(len(each.seconds), count, replace=False)
    return Measured(each.template, each.gpu, each.problem, each.counts[some], each.seconds[some], each.before[some])


def held_out(problems: Sequence[Measured], folds: int) -> list[Any]:
    """Return the logarithms of seconds of each problem, fitted to those of the other folds."""
    fit, names = Fit(problems), sorted({each.problem for each in problems})
    if len(names) < 2:
        raise InvalidArgumentError("records", names, "those of two problems or more, of which one is held out")
    np.random.default_rng(0).shuffle(names)
    fold = {name: number % folds for number, name in enumerate(names)}
    used = range(min(folds, len(names)))
    others = [[each for each in problems if fold[each.problem] != number] for number in used]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        fitted = list(pool.map(fit.fitted, others))
    return [fit.logarithms(fitted[fold[each.problem]], [each]) for each in problems]


def regret(each: Measured, clocks_of: Any) -> float:
    """Return the time of the configuration with the least clocks, as a multiple of the shortest time."""
    return float(each.seconds[np.argmin(clocks_of)] / each.seconds.min())


def geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def report(problems: Sequence[Measured], after: Sequence[Any]) -> dict[str, Error]:
    """Print the regrets of each template and of all, and return the errors by the modules of templates."""
    rows: dict[str, list[tuple[float, float, float, Any]]] = defaultdict(list)
    for each, logarithms in zip(problems, after, strict=True):
        if len(each.seconds) >= FEWEST:
            random = geometric(each.seconds / each.seconds.min())
            error = logarithms - np.log(each.seconds)
            rows[each.template].append((random, regret(each, each.before), regret(each, logarithms), error))
    found = {}
    print(f"{'template':32} problems  random  before          held out        errors of times")
    everything = [row for of_template in rows.values() for row in of_template]
    for name, of_template in [*sorted(rows.items()), ("all", everything)]:
        if not of_template:
            continue
        random, before, now = zip(*(row[:3] for row in of_template), strict=True)
        times = float(np.sqrt(np.mean(np.concatenate([row[3] for row in of_template]) ** 2)))
        print(
            f"{name:32} {len(of_template):8} {geometric(random):7.3f}  {geometric(before):.3f}, {max(before):6.2f}  "
            f"{geometric(now):.3f}, {max(now):6.2f}  {times:.2f}"
        )
        if name != "all":
            module = MODULES[name.partition("/")[2]]
            found[module] = Error(len(of_template), round(geometric(now), 3), round(max(now), 2), round(times, 2))
    return found


def main() -> None:
    options = options_of(__doc__, records=(), folds=10).parse_args()
    problems = measured(options.records)
    fit = Fit(problems)
    fitted = fit.table(fit.fitted(problems), report(problems, held_out(problems, options.folds)))
    if options.output:
        write_whole(options.output, f"{json.dumps(msgspec.to_builtins(fitted), indent=1)}\n".encode())


if __name__ == "__main__":
    main()
