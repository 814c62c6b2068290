"""Fit the model of a GPU or a CPU to records: its rates, and two factors for each template.

    python benchmarks/fit.py RECORDS... -o schedules/cuda/model/rates.json
    python benchmarks/fit.py RECORDS... -o schedules/cpu/model/rates.json

Records are those of `benchmarks/collect.py`, or any tuning logs. All have to be of machines of one row of
`tvmconv/targets/devices.py`. Of a machine with records of a few templates alone, `--like NAME` fits the rates,
beginning with those of another one, and keeps the factors. `tvmconv/calibration/fit.py` says what is fitted.

The table tells the regret of each template: the time of a chosen configuration divided by the shortest measured time,
in the geometric mean and at worst. "random" is that of a random choice, "before" of the choice by the estimates of the
package, which may have been fitted to the same records, and "held out" of the choice by the fitted model, on problems
that it was not fitted to. The last column is the root mean square error of the logarithms of its times. The problems
with the largest regrets, held out, follow.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec
import numpy as np
from script import options_of

from tvmconv.calibration.fit import FEWEST, Fit, Measured, geometric, measured, model_of, module_of, regret
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.fitted import Error, Table
from tvmconv.support.store import write_whole

WORST = 20
"""The number of problems that are listed with their regrets."""


def held_out(fit: Fit, problems: Sequence[Measured], folds: int) -> list[Any]:
    """Return the logarithms of seconds of each problem, fitted to those of the other folds."""
    names = sorted({each.problem for each in problems})
    if len(names) < 2:
        raise InvalidArgumentError("records", names, "those of two problems or more, of which one is held out")
    np.random.default_rng(0).shuffle(names)
    fold = {name: number % folds for number, name in enumerate(names)}
    used = range(min(folds, len(names)))
    others = [[each for each in problems if fold[each.problem] != number] for number in used]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        fitted = list(pool.map(fit.fitted, others))
    return [fit.logarithms(fitted[fold[each.problem]], [each]) for each in problems]


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
            found[module_of(name)] = Error(
                len(of_template), round(geometric(now), 3), round(max(now), 2), round(times, 2)
            )
    return found


def print_worst(problems: Sequence[Measured], after: Sequence[Any]) -> None:
    """Print the problems with the largest regrets, and the shortest time of each in microseconds."""
    several = [pair for pair in zip(problems, after, strict=True) if len(pair[0].seconds) >= FEWEST]
    for each, logarithms in sorted(several, key=lambda pair: -regret(*pair))[:WORST]:
        print(f"{regret(each, logarithms):.2f} of {each.seconds.min() * 1e6:.1f} us: {each.template}, {each.problem}")


def fit_like(name: str, problems: Sequence[Measured]) -> Fit:
    """Return the fit that begins with the rates of another machine, and keeps the package's factors of templates."""
    table = model_of(problems[0].template).table()
    if name not in table.machines:
        raise InvalidArgumentError("like", name, f"one of {', '.join(table.machines)}")
    return Fit(problems, table.machines[name], table.templates)


def table_of(fit: Fit, parameters: Any, errors: dict[str, Error]) -> Table[Any]:
    """Return the table of the package with the rows of parameters, and with errors."""
    (rates, factors), before = fit.rows(parameters), fit.model.table()
    return Table(before.machines | {fit.machine.row: rates}, before.templates | factors, before.errors | errors)


def main() -> None:
    options = options_of(__doc__, records=(), folds=10, like="").parse_args()
    problems = measured(options.records)
    fit = fit_like(options.like, problems) if options.like else Fit(problems)
    after = held_out(fit, problems, options.folds)
    errors = report(problems, after)
    fitted = table_of(fit, fit.fitted(problems), {} if options.like else errors)
    print_worst(problems, after)
    if options.output:
        write_whole(options.output, f"{json.dumps(msgspec.to_builtins(fitted), indent=1)}\n".encode())


if __name__ == "__main__":
    main()
