"""A race between tvmconv's tuner and MetaSchedule's `tune_tir`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvmconv import autotvm, lowering
from tvmconv.checking.operands import check_result, random_operands
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.support.process import Process
from tvmconv.targets import backend_of, device_of

from ..peers.tvm import best_kernel, search

TRIALS = 1_000_000
"""A number of trials that neither reaches in the time given."""


def race(workload: ConvWorkload, target: tvm.target.Target, seconds: int) -> list[dict[str, Any]]:
    """Tune the workload twice in the same wall time, time the best kernels in turn, and return a row for each tuner."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = _tune_tir(workload, target, seconds, folder)
        ours, kernel = _tune(workload, target, seconds, Path(folder, "log.jsonl"))
        kernels = {"tvmconv": kernel, "tune_tir": best_kernel(workload, target, folder)}
    costs = _costs(workload, target, {who: kernel for who, kernel in kernels.items() if kernel is not None})
    return [
        {
            "tuner": who,
            "seconds": seconds,
            "trials": trials,
            "failed": failed,
            "per_second": trials / seconds,
            "us": costs.get(who),
        }
        for who, (trials, failed) in {"tvmconv": ours, "tune_tir": theirs}.items()
    ]


def _tune(
    workload: ConvWorkload, target: tvm.target.Target, seconds: float, log: Path
) -> tuple[tuple[int, int], tvm.runtime.Executable]:
    """Return the numbers of trials and failures, and the best kernel."""
    end = time.monotonic() + seconds
    option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    tuner = autotvm.XGBTuner(autotvm.create(workload, target), seed=0)
    tuner.tune(TRIALS, option, callbacks=[autotvm.callback.log_to_file(log)], stop=lambda: time.monotonic() > end)
    option.close()
    with autotvm.apply_history_best(log):
        selection = select(Problem(workload), target)
    # No depthwise kernel has a workspace.
    kernel = lowering.build_kernel(Problem(workload), selection, target).executable
    return (tuner.trials, tuner.failures.total()), kernel


def _tune_tir(workload: ConvWorkload, target: tvm.target.Target, seconds: float, folder: str) -> tuple[int, int]:
    """Run MetaSchedule in a process until the time is over, and return its numbers of trials and failures."""
    with Process(search, workload, str(target), folder, TRIALS) as process:
        process.join(seconds)
    records = Path(folder, "database_tuning_record.json")
    lines = records.read_text().splitlines() if records.exists() else []
    return len(lines), sum("[1e+10]" in line or "[10000000000" in line for line in lines)


def _costs(
    workload: ConvWorkload, target: tvm.target.Target, kernels: dict[str, tvm.runtime.Executable]
) -> dict[str, list[float]]:
    """Return the microseconds of each kernel: the least, the median and the most of interleaved rounds."""
    device, operands = device_of(target), random_operands(workload)
    samples: dict[str, list[float]] = {who: [] for who in kernels}
    for _ in range(5):
        for who, kernel in kernels.items():
            module = kernel.jit()
            arguments = [tvm.runtime.tensor(array, device) for array in operands.values()]
            module[KERNEL_NAME](*arguments)
            check_result(workload, operands, arguments[-1].numpy())
            samples[who] += backend_of(target).costs(module, KERNEL_NAME, arguments, device, 20, 3, min_repeat_ms=10)
    return {who: [round(1e6 * float(np.quantile(costs, q)), 2) for q in (0, 0.5, 1)] for who, costs in samples.items()}
