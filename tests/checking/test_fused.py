"""The check of several layers in one kernel: right results pass it, and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from tests.schedules.cases.attention import KERNELS, Kernel
from tests.schedules.cases.gate import GATES
from tests.schedules.configured import FUSED
from tvmconv.checking.fused import FusedSample
from tvmconv.checking.operands import random_operands
from tvmconv.dispatch.registry import fused_row
from tvmconv.problem import FusedProblem

PROBLEMS = {
    **FUSED,
    **{name: KERNELS[name].problem for name in ("vit", "float32-vit", "tf32", "depth-128")},
    "many queries": Kernel(3, 300, 40).problem,
    **{name: FusedProblem(gate) for name, gate in GATES.items()},
}


def result_of(problem: FusedProblem, operands: dict[str, np.ndarray]) -> np.ndarray:
    """Return the result that float64 gives, rounded to its type."""
    result = random_operands(problem.workload)["output"]
    reference = fused_row(problem.workload).reference(problem, operands, np.random.default_rng(1), result.size)
    for sample in reference.samples:
        result.reshape(-1)[sample.indices] = sample.result
    return result


def computed(problem: FusedProblem) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return operands and their result."""
    operands = random_operands(problem.workload)
    del operands["output"]
    return operands, result_of(problem, operands)


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


EXACT = [name for name, each in PROBLEMS.items() if (each.workload.dtype, each.precision) == ("float32", "float32")]


@pytest.mark.parametrize("name", EXACT)
def test_tf32_is_not_float32(name: str) -> None:
    """Factors with 10 bits behind the point are seen where the problem promises those of float32."""
    problem = PROBLEMS[name]
    operands, _ = computed(problem)
    rounded = {key: (each.view("uint32") + 0x1000 & 0xFFFFE000).view("float32") for key, each in operands.items()}
    result = result_of(problem, rounded)
    if problem.workload.HAS_WORDS:
        check(msgspec.structs.replace(problem, precision="tf32"), operands, result)
    with pytest.raises(AssertionError):
        check(problem, operands, result)
