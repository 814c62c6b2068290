"""A race between tvmconv's tuner and MetaSchedule's `tune_tir`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.support.process import Process

TRIALS = 1_000_000
"""A number of trials that neither reaches in the time given."""

BUILD_SECONDS = 120
"""The seconds that one of MetaSchedule's builds may take.

Its workers import TVM's tensor intrinsics for half a minute, which is all the time that it gives them by default.
"""


def race(workload: ConvWorkload, target: str, seconds: int) -> list[dict[str, Any]]:
    """Tune the workload twice in the same wall time, time the best kernels in turn, and return a row for each tuner."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = _tune_tir(workload, target, seconds, folder)
        ours = _tune(workload, target, seconds, Path(folder, "log.jsonl"))
        kernels = {"tvmconv": ours.pop("kernel"), "tune_tir": best_kernel(workload, target, folder)}
    costs = _costs(workload, target, {who: kernel for who, kernel in kernels.items() if kernel is not None})
    trials = {"tvmconv": ours, "tune_tir": theirs}
    return [{"tuner": who, "seconds": seconds, **trials[who], "us": costs.get(who)} for who in trials]


def _tune(workload: ConvWorkload, target: str, seconds: float, log: Path) -> dict[str, Any]:
    from tvmconv import autotvm, lowering
    from tvmconv.dispatch import select

    end = time.monotonic() + seconds
    option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    tuner = autotvm.XGBTuner(autotvm.create(workload, target), seed=0)
    tuner.tune(TRIALS, option, callbacks=[autotvm.callback.log_to_file(log)], stop=lambda: time.monotonic() > end)
    option.close()
    with autotvm.apply_history_best(log):
        selection = select(Problem(workload), tuner.task.target)
    module = lowering.build_kernel(
        Problem(workload), selection, tuner.task.target
    ).executable  # no depthwise kernel has a workspace
    return {
        "trials": tuner.trials,
        "failed": tuner.failures.total(),
        "per_second": tuner.trials / seconds,
        "kernel": module,
    }


def _tune_tir(workload: ConvWorkload, target: str, seconds: float, folder: str) -> dict[str, Any]:
    """Run MetaSchedule in a process of its own, which is ended when the time is over: it counts trials only."""
    with Process(search, workload, target, folder, TRIALS) as process:
        process.join(seconds)
    records = Path(folder, "database_tuning_record.json")
    lines = records.read_text().splitlines() if records.exists() else []
    failed = sum("[1e+10]" in line or "[10000000000" in line for line in lines)
    return {"trials": len(lines), "failed": failed, "per_second": len(lines) / seconds}


def search(workload: ConvWorkload, target: str, folder: str, trials: int) -> None:
    """Run MetaSchedule on the TE definition of a workload, with its database in the folder."""
    from tvm.s_tir import meta_schedule

    from tvmconv.targets import resolve_target

    with redirect_stdout(sys.stderr):  # where its progress belongs
        meta_schedule.tune_tir(
            _module(workload),
            resolve_target(target),
            folder,
            trials,
            builder=meta_schedule.builder.LocalBuilder(timeout_sec=BUILD_SECONDS),
            num_tuning_cores="logical",
        )


def _module(workload: ConvWorkload) -> Any:
    from tvm import te

    from tvmconv import compute

    define = compute.depthwise if workload.is_depthwise else compute.direct
    return te.create_prim_func(define(workload))


def best_kernel(workload: ConvWorkload, target: str, folder: str) -> Any:
    """Compile the best kernel in MetaSchedule's database; return None where no trial succeeded."""
    import tvm
    from tvm.s_tir import meta_schedule

    from tvmconv.lowering import KERNEL_NAME, build
    from tvmconv.targets import resolve_target

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
    """Return the microseconds of each kernel: the least, the median and the most of interleaved rounds."""
    import numpy as np
    import tvm

    from tvmconv.checking.operands import check_result, random_operands
    from tvmconv.lowering import KERNEL_NAME
    from tvmconv.targets import backend_of, device_of, resolve_target

    resolved = resolve_target(target)
    device = device_of(resolved)
    operands = random_operands(workload)
    samples: dict[str, list[float]] = {}
    for _ in range(5):
        for who, kernel in kernels.items():
            module = kernel.jit()
            arguments = [tvm.runtime.tensor(array, device) for array in operands.values()]
            module[KERNEL_NAME](*arguments)
            check_result(workload, operands, arguments[-1].numpy())
            costs = backend_of(resolved).costs(
                module, KERNEL_NAME, arguments, device, number=20, repeat=3, min_repeat_ms=10
            )
            samples.setdefault(who, []).extend(costs)
    return {who: [round(1e6 * float(np.quantile(costs, q)), 2) for q in (0, 0.5, 1)] for who, costs in samples.items()}
