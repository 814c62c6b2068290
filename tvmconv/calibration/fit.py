"""The fit of the model of a GPU or a CPU to records: of its rates, and of two factors for each template.

Configurations of one problem are compared with one another: an error of the logarithm of a time counts most relative to
its problem's mean error, and for configurations near the fastest one. All templates weigh the same. Errors far beyond
`OUTLIER`, of either sign, weigh little.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from os import PathLike
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares

from tvmconv.dispatch import template_named
from tvmconv.dispatch.record import load_from_file
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules import cpu, cuda
from tvmconv.schedules.calibrated import UserRates
from tvmconv.schedules.cpu.model import rates as cpu_rates
from tvmconv.schedules.cuda.model import rates as gpu_rates
from tvmconv.schedules.cuda.template import GpuTemplate
from tvmconv.schedules.estimated import EstimatedTemplate
from tvmconv.schedules.fitted import Factors, Table
from tvmconv.targets import cpu_of, gpu_of, resolve_target
from tvmconv.targets.devices import Cpu, Gpu, gpu_named

WITHIN, RATE_WEIGHT, FACTOR_WEIGHT = 2.0, 0.02, 0.05
"""`WITHIN` multiplies a configuration's error relative to its problem's mean error. The other two multiply the
logarithms by which rates and factors differ from the start, so that those which records do not determine stay there."""

START = gpu_rates.Rates(
    launch=2500, further=1800, block=30, issue=4, access=1, mma=1, l2=48, latency=400, turn=4, power=2
)
"""The rates that a fit of a GPU begins with, near the data sheet's of an H100."""

CPU_START = cpu_rates.Rates(
    call=2000,
    loop=4000,
    multiply=1,
    load=0.5,
    broadcast=0.5,
    split=0.3,
    spill=2,
    allocate=250,
    issue=0.7,
    store=1.5,
    transpose=4,
    pair=0.1,
    copy=1.5,
    move=0.5,
    pack=1,
    second=1 / 32,
    last=1 / 12,
    memory=1 / 4,
    power=2,
)
"""The rates that a fit of a CPU begins with."""


@dataclass(frozen=True)
class Model:
    """A model of machines of one kind."""

    counts: type[Any]
    """The class `Counts` of the model."""
    clocks: Callable[[Any, Any, Any, Any], Any]
    start: Any
    """The rates that a fit begins with."""
    modules: Mapping[str, str]
    """The modules of templates, by their algorithms."""
    factors_of_others: Mapping[str, str]
    """The modules of templates that have the factors of another one."""
    row_of: Callable[[Any], Any]
    """The function that returns the row of the device table for a target."""
    table: Callable[[], Table[Any]]
    """The function that returns the package's fitted table."""
    shipped_rates: Callable[[Any], Any]
    """The function that returns the rates that the package has for a row of the device table."""
    rates_of: Callable[[Any], Any]
    """The function that returns the rates that count for such a row: those of the user come first."""
    user: UserRates[Any]
    """The rates of the user."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of counts."""
        return tuple(field.name for field in fields(self.counts))

    @property
    def rates(self) -> tuple[str, ...]:
        """The names of rates."""
        names: tuple[str, ...] = type(self.start).__struct_fields__
        return names


ON_GPU = Model(
    cuda.model.Counts,
    cuda.model.clocks,
    START,
    cuda.MODULES,
    {},
    gpu_of,
    gpu_rates.table,
    gpu_rates.shipped_rates,
    gpu_rates.rates_of,
    gpu_rates.USER,
)
ON_CPU = Model(
    cpu.model.Counts,
    cpu.model.clocks,
    CPU_START,
    cpu.MODULES,
    cpu_rates.FACTORS_OF_OTHERS,
    cpu_of,
    cpu_rates.table,
    cpu_rates.shipped_rates,
    cpu_rates.rates_of,
    cpu_rates.USER,
)

MODELS = {"cuda": ON_GPU, "cpu": ON_CPU}
"""The models, by the first word of templates' names."""

OUTLIER = 0.03
"""The weighted error beyond which the loss grows linearly, not with the square."""

FEWEST = 4
"""The fewest configurations of a problem whose regret is told."""

MAX_CONFIGURATIONS = 64
"""The most configurations of a problem in the fit."""


@dataclass(frozen=True)
class Measured:
    """The measured configurations of a problem."""

    template: str
    """The name of the template, such as "cuda/attention"."""
    machine: Gpu | Cpu
    """The row of the device table: of a GPU by the name of the device that measured, else by the target."""
    problem: str
    counts: Any
    """An array (configurations, counts)."""
    seconds: Any
    """An array (configurations)."""
    before: Any
    """The package's current estimates, used only to rank configurations."""


def measured(paths: Iterable[str | PathLike[str]]) -> list[Measured]:
    """Return the problems in files of records with several configurations of templates that count their work."""
    found: dict[tuple[str, str, str, Problem], dict[str, float]] = defaultdict(dict)
    for path in paths:
        for record in load_from_file(path).records:
            if record.costs and isinstance(record.problem, Problem) and counts_work(record.template):
                of_problem = found[record.template, record.target, record.device.name, record.problem]
                knobs = json.dumps(record.knobs)
                of_problem[knobs] = min(*record.costs, of_problem.get(knobs, inf))
    problems = (_measured(*key, configs) for key, configs in found.items())
    return [each for each in problems if len(each.seconds) > 1]


def counts_work(name: str) -> bool:
    """Return whether a template is one that counts its work."""
    folder, _, algorithm = name.partition("/")
    if folder not in MODELS or algorithm not in MODELS[folder].modules:
        return False
    return _template_class(name).counts is not EstimatedTemplate.counts


def chooses_by_counts(name: str) -> bool:
    """Return whether a template is one whose configurations the model chooses, by its counts."""
    return counts_work(name) and _template_class(name).estimate is EstimatedTemplate.estimate


def _template_class(name: str) -> type[EstimatedTemplate[Any]]:
    template = template_named(name)
    assert isinstance(template, EstimatedTemplate)
    return type(template)


def model_of(name: str) -> Model:
    """Return the model of the machines of a template."""
    return MODELS[name.partition("/")[0]]


def module_of(name: str) -> str:
    """Return the module of a template, such as "gradients.input" for "cuda/input_gradient"."""
    return model_of(name).modules[name.partition("/")[2]]


def counted_as(name: str) -> str:
    """Return the module of the factors of a template: of the template, or of one that shares its loops."""
    module = module_of(name)
    return model_of(name).factors_of_others.get(module, module)


def _measured(name: str, given: str, device: str, problem: Problem, configs: dict[str, float]) -> Measured:
    template, target = template_named(name), resolve_target(json.loads(given))
    assert isinstance(template, EstimatedTemplate)
    names, counts, seconds, before = model_of(name).names, [], [], []
    space = template.constraints(problem, target).values()
    for knobs, cost in configs.items():
        config = msgspec.convert(json.loads(knobs), template.Config)
        if all(holds(config) for holds in space):
            work = template.counts(problem, config, target)
            counts.append([float(getattr(work, count)) for count in names])
            before.append(template.estimate(problem, config, target))
            seconds.append(cost)
    machine = gpu_named(device) or gpu_of(target) if isinstance(template, GpuTemplate) else cpu_of(target)
    return Measured(name, machine, str(problem), np.array(counts), np.array(seconds), np.array(before))


class Fit:
    """A fit for one machine. Its parameters are the logarithms of the rates, then of the factors."""

    def __init__(
        self, problems: Sequence[Measured], start: Any = None, factors: Mapping[str, Factors] | None = None
    ) -> None:
        """Take the rates to begin with, else the model's, and factors by modules if these are not to be fitted.

        Raise `InvalidArgumentError` for problems of machines of several rows, and for none at all.
        """
        if not problems:
            raise InvalidArgumentError("records", [], "several configurations of a problem of a template that counts")
        self.machine, *others = dict.fromkeys(each.machine for each in problems)
        if others:
            raise InvalidArgumentError("records", others[0].model, f"those of one row, as the {self.machine.model} has")
        self.model = model_of(problems[0].template)
        start = self.model.start if start is None else start
        self.modules = sorted({counted_as(each.template) for each in problems})
        self._factors = None
        if factors is not None:
            self._factors = np.array([[factors[name].issued, factors[name].waiting] for name in self.modules]).T
        free = 2 * len(self.modules) if factors is None else 0
        self.start = np.log([*(getattr(start, name) for name in self.model.rates), *np.ones(free)])

    def logarithms(self, parameters: Any, problems: Sequence[Measured]) -> Any:
        """Return the logarithms of the seconds of configurations of problems, one after the other."""
        number = [self.modules.index(counted_as(each.template)) for each in problems]
        template = np.repeat(number, [len(each.seconds) for each in problems])
        columns = np.concatenate([each.counts for each in problems]).T
        rates, factors = self._split(np.exp(parameters))
        counts = self.model.counts(**dict(zip(self.model.names, columns, strict=True)))
        estimated = self.model.clocks(
            counts, self.machine, type(self.model.start)(*rates), Factors(*factors[:, template])
        )
        return np.log(estimated / self.machine.clock)

    def _split(self, values: Any) -> tuple[Any, Any]:
        """Return the rates, and the factors as an array (2, templates)."""
        count = len(self.model.rates)
        rates, factors = values[:count], values[count:].reshape(2, -1)
        return rates, factors if self._factors is None else self._factors

    def fitted(self, problems: Sequence[Measured]) -> Any:
        """Return the parameters that are fitted to problems."""
        some = [_evenly_chosen(each, MAX_CONFIGURATIONS) for each in problems]
        sizes = np.array([len(each.seconds) for each in some])
        of_template = Counter(each.template for each in some)
        number = np.repeat(np.arange(len(some)), sizes)
        weight = np.repeat([(of_template[each.template] * len(each.seconds)) ** -0.5 for each in some], sizes)
        seconds = np.concatenate([each.seconds for each in some])
        fastest = np.repeat([each.seconds.min() for each in some], sizes)
        near = np.clip(fastest / seconds, 0.2, 1)
        weights = np.full(len(self.start), FACTOR_WEIGHT)
        weights[: len(self.model.rates)] = RATE_WEIGHT

        def errors(parameters: Any) -> Any:
            error = self.logarithms(parameters, some) - np.log(seconds)
            mean = np.bincount(number, error * near) / np.bincount(number, near)
            within = WITHIN * near * (error - mean[number])
            return np.concatenate([weight * error, weight * within, weights * (parameters - self.start)])

        with np.errstate(over="ignore", invalid="ignore"):  # a step that is too long, which is taken back
            return least_squares(errors, self.start, loss="soft_l1", f_scale=OUTLIER, max_nfev=100, x_scale="jac").x

    def rows(self, parameters: Any) -> tuple[Any, dict[str, Factors]]:
        """Return the parameters as rates and as factors by module, rounded to three digits."""
        rates, factors = self._split(np.exp(parameters))
        pairs = [Factors(*map(_rounded, pair)) for pair in factors.T]
        return type(self.model.start)(*map(_rounded, rates)), dict(zip(self.modules, pairs, strict=True))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _evenly_chosen(each: Measured, count: int) -> Measured:
    if len(each.seconds) <= count:
        return each
    some = np.random.default_rng(0).choice(len(each.seconds), count, replace=False)
    return replace(each, counts=each.counts[some], seconds=each.seconds[some], before=each.before[some])


def regret(each: Measured, clocks_of: Any) -> float:
    """Return the time of the configuration with the least clocks, as a multiple of the shortest time."""
    return float(each.seconds[np.argmin(clocks_of)] / each.seconds.min())


def geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
