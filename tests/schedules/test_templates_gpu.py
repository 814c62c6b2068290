"""Every template for CUDA on a real GPU: the rows of the tests of every template, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from tests.schedules.cases.integers import INTEGERS
from tests.schedules.cases.teams import TEAMS
from tests.schedules.cases.tensor import ALL_CASES
from tests.schedules.configured import CASES, EXAMPLES, Row, by_row, is_on_gpu
from tvmconv.checking.fused import FusedSample
from tvmconv.checking.operands import random_operands
from tvmconv.dispatch import select
from tvmconv.dispatch.registry import TEMPLATES, algorithm_of
from tvmconv.lowering import KERNEL_NAME, build_kernel
from tvmconv.problem import FORWARD, FusedProblem
from tvmconv.problem.dtypes import FLOATS, NARROW
from tvmconv.targets import resolve_target, tensor_instructions
from tvmconv.testing import conformance
from tvmconv.testing.configs import legal_configs
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import Trial

TARGET = resolve_target("cuda")

PRODUCTS_OF_TF32 = ("cuda/tensor", "cuda/linear", "cuda/winograd")
"""The templates whose products of float32 numbers say nothing of NaN and infinities."""

TENSOR = [
    Row(f"cuda/tensor-{prefix}{name}", "cuda/tensor", *case)
    for prefix, cases in (("", ALL_CASES), ("teams-", TEAMS), ("integers-", INTEGERS))
    for name, case in cases.items()
]
ROWS = [*(row for row in (*EXAMPLES, *CASES) if is_on_gpu(row.name)), *TENSOR]


def check_fused(row: Row, problem: FusedProblem) -> None:
    operands = random_operands(problem.workload)
    kernel = build_kernel(problem, select(problem, TARGET, row.config), TARGET)
    tensors = [tvm.runtime.tensor(array, tvm.cuda()) for array in operands.values()]
    kernel.executable[KERNEL_NAME](*tensors)
    result = tensors[-1].numpy()
    FusedSample(problem, operands, np.random.default_rng(0), result.size).check(result)


def check(row: Row, nonfinite: bool = False) -> None:
    """Check a kernel's result, into an output filled with NaN; x may have NaN and infinities among its elements."""
    if (why := TEMPLATES[row.name].obstacle(row.problem, TARGET)) is not None:
        pytest.skip(f"{row.name} {why}")
    if getattr(row.config, "wgmma", False) and "wgmma" not in tensor_instructions(TARGET):
        pytest.skip("this GPU has no wgmma")
    if isinstance(row.problem, FusedProblem):
        check_fused(row, row.problem)
        return
    conformance.check(How(str(TARGET)), Trial.of(row.problem, algorithm_of(row.name), row.config, 1, nonfinite))


@by_row(ROWS)
def test_every_template_computes(row: Row) -> None:
    check(row)


@by_row([row for row in ROWS if not getattr(row.config, "wgmma", False)])
def test_every_template_computes_by_default(row: Row) -> None:
    """NaN and infinities are where the reference has them, where the template promises that."""
    promised = NARROW if row.name in PRODUCTS_OF_TF32 else FLOATS
    plain = row.problem.sparsity is None and row.problem.direction == FORWARD
    nonfinite = plain and row.problem.workload.dtype in promised
    check(replace(row, config=None), nonfinite)


@by_row([row for row in ROWS if row not in TENSOR])
def test_every_template_computes_in_a_random_configuration(row: Row) -> None:
    template = TEMPLATES[row.name]
    if template.obstacle(row.problem, TARGET) is None:
        row = replace(row, config=next(legal_configs(template.space(row.problem, TARGET), row.id)))
    check(row)
