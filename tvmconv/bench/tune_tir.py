"""Our tuner beside MetaSchedule's `tune_tir`: `python -m tvmconv.bench.tune_tir NAME --seconds 90 --target cuda`."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from ..cli.console import print_json, print_table
from ..workload import ConvWorkload
from .depthwise import machine_facts
from .suites import load_suite, suite_names

TRIALS = 1_000_000
"""More than either does in the time given."""

BUILD_SECONDS = 120
"""What one of MetaSchedule's builds may take: its workers import TVM's tensor intrinsics for half a minute, which is
all that it gives them itself."""


@click.command()
@click.argument("name")
@click.option("--seconds", type=click.IntRange(min=10), default=90, show_default=True, help="What each may take.")
@click.option("--target", type=click.Choice(["llvm", "cuda"]), default="cuda", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(name: str, seconds: int, target: str, as_json: bool) -> None:
    """Tune the workload NAME of a suite twice in the same wall time, and time the best kernel of each in turn.

    Both use all cores to build. Both kernels are checked against the float64 reference first; they are timed by CUDA
    graphs on a GPU, on the same arrays, caches warm.
    """
    workload = {short: found for suite in suite_names() for short, found in load_suite(suite).items()}[name]
    with tempfile.TemporaryDirectory() as folder:
        theirs = _tune_tir(workload, target, seconds, folder)
        ours = _tune(workload, target, seconds, Path(folder, "log.jsonl"))
        kernels = {"tvmconv": ours.pop("kernel"), "tune_tir": _kernel(workload, target, folder)}
    costs = _costs(workload, target, {who: kernel for who, kernel in kernels.items() if kernel is not None})
    trials = {"tvmconv": ours, "tune_tir": theirs}
    rows = [{"tuner": who, "seconds": seconds, **trials[who], "us": costs.get(who)} for who in trials]
    if as_json:
        print_json(
            {
                **machine_facts(target),
                "cores": os.cpu_count(),
                "workload": str(workload),
                "seconds": seconds,
                "rows": rows,
            }
        )
        return
    print_table(list(rows[0]), [list(row.values()) for row in rows])


def _tune(workload: ConvWorkload, target: str, seconds: float, log: Path) -> dict[str, Any]:
    from .. import autotvm, lowering
    from ..dispatch import select

    end = time.monotonic() + seconds
    option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    tuner = autotvm.XGBTuner(autotvm.create(workload, target), seed=0)
    tuner.tune(TRIALS, option, callbacks=[autotvm.callback.log_to_file(log)], stop=lambda: time.monotonic() > end)
    option.close()
    with autotvm.apply_history_best(log):
        selection = select(workload, tuner.task.target)
    module = lowering.build_kernel(workload, selection, tuner.task.target)
    return {
        "trials": tuner.trials,
        "failed": tuner.failures.total(),
        "per_second": tuner.trials / seconds,
        "kernel": module,
    }


def _tune_tir(workload: ConvWorkload, target: str, seconds: float, folder: str) -> dict[str, Any]:
    """Runs it in a process of its own, which is ended when the time is over: it knows trials only."""
    process = multiprocessing.get_context("spawn").Process(target=_search, args=(workload, target, folder))
    process.start()
    process.join(seconds)
    for child in _children(process.pid):
        child.kill()
    process.join()
    records = Path(folder, "database_tuning_record.json")
    lines = records.read_text().splitlines() if records.exists() else []
    failed = sum("[1e+10]" in line or "[10000000000" in line for line in lines)
    return {"trials": len(lines), "failed": failed, "per_second": len(lines) / seconds}


def _children(pid: int | None) -> list[Any]:
    import psutil

    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _search(workload: ConvWorkload, target: str, folder: str) -> None:
    from tvm.s_tir import meta_schedule

    from ..targets import resolve_target

    meta_schedule.tune_tir(
        _module(workload),
        resolve_target(target),
        folder,
        TRIALS,
        builder=meta_schedule.builder.LocalBuilder(timeout_sec=BUILD_SECONDS),
        num_tuning_cores="logical",
    )


def _module(workload: ConvWorkload) -> Any:
    from tvm import te

    from .. import compute

    return te.create_prim_func(compute.depthwise(workload))


def _kernel(workload: ConvWorkload, target: str, folder: str) -> Any:
    """The best that MetaSchedule's database holds, compiled; None where no trial succeeded."""
    import tvm
    from tvm.s_tir import meta_schedule

    from ..lowering import KERNEL_NAME, build
    from ..targets import resolve_target

    files = [str(Path(folder, f"database_{kind}.json")) for kind in ("workload", "tuning_record")]
    if not all(map(os.path.exists, files)):
        return None
    database = meta_schedule.database.JSONDatabase(*files)
    resolved = resolve_target(target)
    mod = tvm.IRModule({"main": _module(workload)})
    record = database.query_tuning_record(mod, resolved, "main")
    if record is None:
        return None
    sch = tvm.s_tir.Schedule(mod)
    record.trace.apply_to_schedule(sch, remove_postproc=False)
    func = sch.mod["main"].with_attrs({"global_symbol": KERNEL_NAME, "tirx.is_scheduled": True})
    return build(tvm.IRModule({KERNEL_NAME: func}), resolved)


def _costs(workload: ConvWorkload, target: str, kernels: dict[str, Any]) -> dict[str, list[float]]:
    """Microseconds of each kernel: the least, the median and the most of interleaved rounds."""
    import numpy as np
    import tvm

    from ..autotvm.timing import kernel_costs
    from ..lowering import KERNEL_NAME
    from ..targets import device_of, resolve_target
    from ..testing import check_result, random_operands

    device = device_of(resolve_target(target))
    operands = random_operands(workload)
    samples: dict[str, list[float]] = {}
    for _ in range(5):
        for who, kernel in kernels.items():
            module = kernel.jit()
            arguments = [tvm.runtime.tensor(array, device) for array in operands.values()]
            module[KERNEL_NAME](*arguments)
            check_result(workload, operands, arguments[-1].numpy())
            costs = kernel_costs(module, arguments, device, number=20, repeat=3, min_repeat_ms=10)
            samples.setdefault(who, []).extend(costs)
    return {who: [round(1e6 * float(np.quantile(costs, q)), 2) for q in (0, 0.5, 1)] for who, costs in samples.items()}


if __name__ == "__main__":
    main()
