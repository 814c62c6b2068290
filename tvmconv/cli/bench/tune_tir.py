"""The command `tvmconv bench tune-tir`."""

from __future__ import annotations

import click

from tvmconv.checking.suites import load_suite, suite_names
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets.threads import usable_cpus

from ..console import print_json, print_table
from ..options import json_option, target_option


@click.command("tune-tir")
@click.argument("name")
@click.option("--seconds", type=click.IntRange(min=10), default=90, help="The seconds that each tuner may take.")
@target_option
@json_option
def tune_tir(name: str, seconds: int, target: str, as_json: bool) -> None:
    """Tune the depthwise workload NAME of a suite by XGBTuner and by MetaSchedule's tune_tir, in the same time.

    Both use all cores to build. The best kernel of each is checked, and timed in turn with the other: by CUDA graphs on
    a GPU, on the same arrays, so caches are warm.
    """
    from tvmconv.bench.report import versions
    from tvmconv.bench.tune_tir import race
    from tvmconv.targets import device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    device_of(resolved)
    kind = resolved.kind.name
    workloads = {
        short: workload
        for suite in suite_names()
        for short, workload in load_suite(suite, kind).items()
        if workload.is_depthwise
    }
    if name not in workloads:
        raise InvalidArgumentError("NAME", name, f"one of {', '.join(workloads)}")
    rows = race(workloads[name], target, seconds)
    if as_json:
        where = {"device": device_facts(kind), "versions": versions(kind), "cores": usable_cpus()}
        print_json({**where, "workload": str(workloads[name]), "seconds": seconds, "rows": rows})
        return
    print_table(list(rows[0]), [list(row.values()) for row in rows])
