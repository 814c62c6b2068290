"""A peer that is TVM's own search for schedules."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tvmconv.problem.workload import ConvWorkload

from .peer import Call, Operands, Peer
from .tvm import kernel_calls

if TYPE_CHECKING:
    import tvm

TRIALS = 64


class MetaSchedule(Peer):
    """The best of 64 trials of `tune_tir`, which take minutes."""

    name = "metaschedule"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        missing = [package for package in ("cloudpickle", "psutil", "xgboost") if find_spec(package) is None]
        return f"{', '.join(missing)} not installed" if missing else None

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from ..tune_tir import best_kernel, search

        with tempfile.TemporaryDirectory() as folder:
            search(workload, str(target), folder, TRIALS)
            kernel = best_kernel(workload, str(target), folder)
        if kernel is None:
            raise RuntimeError(f"none of {TRIALS} trials worked")
        return kernel_calls(kernel, workload, sets)
