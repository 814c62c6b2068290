"""The check of attention and gates: right results pass it, and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedules.cases.attention import KERNELS, Kernel
from tests.schedules.cases.gate import GATES
from tvmconv.checking.fused import FusedSample
from tvmconv.checking.operands import random_operands
from tvmconv.compute.reference import attention_reference, gate_reference
from tvmconv.problem import FusedProblem, problem_of
from tvmconv.problem.attention import Attention

PROBLEMS = {
    **{name: KERNELS[name].problem for name in ("vit", "float32-vit", "tf32", "depth-128")},
    "many queries": Kernel(3, 300, 40).problem,
    **{name: FusedProblem(gate) for name, gate in GATES.items()},
}


def computed(problem: FusedProblem) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return operands, and the result that float64 gives, rounded to its type."""
    workload, operands = problem.workload, random_operands(problem.workload)
    result = operands.pop("output")
    if isinstance(workload, Attention):
        queries, columns = np.arange(workload.queries), np.arange(workload.width)
        for matrix in range(workload.matrices):
            rows = attention_reference(workload, operands, matrix, queries).result
            result[workload.output.at(matrix, queries[:, None], columns)] = rows
    else:
        result[:] = gate_reference(workload, operands)[1]
    return operands, result


def check(problem: FusedProblem, operands: dict[str, np.ndarray], result: np.ndarray) -> None:
    FusedSample(problem, operands, np.random.default_rng(1), 500).check(result)


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_exact_passes(name: str) -> None:
    check(PROBLEMS[name], *computed(PROBLEMS[name]))


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "all": lambda y: y * 1.1,
    "type": lambda y: y.astype("float64"),
    "an element that is not written": lambda y: np.where(np.arange(y.size).reshape(y.shape) == y.size // 2, np.nan, y),
    "rows": lambda y: np.roll(y.reshape(-1), y.size // 2).reshape(y.shape),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_wrong_is_seen(name: str, wrong: str) -> None:
    operands, result = computed(PROBLEMS[name])
    broken = WRONG[wrong](result)
    if wrong != "type":
        broken = broken.astype(result.dtype)
    with pytest.raises(AssertionError):
        check(PROBLEMS[name], operands, broken)


@pytest.mark.parametrize("name", ["float32-vit", "efficientnet"])
def test_tf32_is_not_float32(name: str) -> None:
    """Factors with 10 bits behind the point are seen where the problem promises those of float32."""
    operands, _ = computed(PROBLEMS[name])
    rounded = {key: (each.view("uint32") + 0x1000 & 0xFFFFE000).view("float32") for key, each in operands.items()}
    workload = PROBLEMS[name].workload
    if isinstance(workload, Attention):
        result = np.empty(workload.output.elements, "float32")
        for matrix in range(workload.matrices):
            queries = np.arange(workload.queries)
            at = workload.output.at(matrix, queries[:, None], np.arange(workload.width))
            result[at] = attention_reference(workload, rounded, matrix, queries).result
        check(problem_of(workload, precision="tf32"), operands, result)
    else:
        result = gate_reference(workload, rounded)[1].astype("float32")
    with pytest.raises(AssertionError):
        check(PROBLEMS[name], operands, result)
