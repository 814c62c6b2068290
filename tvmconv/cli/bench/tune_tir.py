"""The command `tvmconv bench tune-tir`."""

from __future__ import annotations

import click

from tvmconv.checking.suites import load_suite, suite_names
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets.threads import usable_cpus

from ..console import print_json, print_table
from ..options import JSON, TARGET, argument, command, option


@command()
def tune_tir(
    name: str = argument(),
    seconds: int = option("The seconds that each tuner may take.", type=click.IntRange(min=10), default=90),
    target: str = TARGET,
    as_json: bool = JSON,
) -> None:
    """Tune the depthwise workload NAME of a suite by XGBTuner and by MetaSchedule's tune_tir, in the same time.

    Both use all cores to build. The best kernel of each is checked, and timed in turn with the other: by CUDA graphs on
    a GPU, on the same arrays, so caches are warm.
    """
    from tvmconv.bench.report import versions
    from tvmconv.bench.tuning.tune_tir import race
    from tvmconv.targets import device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    device_of(resolved)
    kind = resolved.kind.name
    every = [load_suite(suite, kind) for suite in suite_names()]
    workloads = {short: each for suite in every for short, each in suite.items() if each.is_depthwise}
    if name not in workloads:
        raise InvalidArgumentError("NAME", name, f"one of {', '.join(workloads)}")
    rows = race(workloads[name], resolved, seconds)
    if as_json:
        where = {"device": device_facts(kind), "versions": versions(kind), "cores": usable_cpus()}
        print_json({**where, "workload": str(workloads[name]), "seconds": seconds, "rows": rows})
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
