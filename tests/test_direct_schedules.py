"""The direct schedules against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import build, lower
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, Case, check_result, random_configs, random_operands

CPU = resolve_target("llvm")
NARROW = resolve_target({"kind": "llvm", "mcpu": "haswell"})
by_id = pytest.mark.parametrize("case", CONV2D, ids=lambda case: case.id)


def run(workload: ConvWorkload, target: tvm.target.Target = CPU, config: Any = None) -> None:
    func = lower(workload, select(workload, target, config), target, "kernel")
    executable = build(tvm.IRModule({"kernel": func}), target)
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    executable["kernel"](*tensors)
    check_result(workload, operands, tensors[-1].numpy())


@by_id
def test_default_configuration(case: Case) -> None:
    run(case.workload)


@by_id
def test_random_legal_configuration(case: Case) -> None:
    for config in random_configs(case.workload, CPU, 2):
        run(case.workload, CPU, config)
