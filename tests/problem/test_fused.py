"""Problems of several layers in one kernel: their descriptions, and their JSON beside that of convolutions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.schedules.cases.attention import KERNELS
from tests.schedules.cases.gate import GATES
from tests.schedules.configured import FUSED
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.problem import FusedProblem, Problem, problem_of, workload_from
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.fused import Attention, Gate
from tvmconv.targets import resolve_target

CONVOLUTION = ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 3, 3))
SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
ATTENTION, GATE = KERNELS["bias"].attention, GATES["efficientnet"]
PROBLEMS = (problem_of(CONVOLUTION, 0.9), *FUSED.values(), problem_of(ATTENTION), problem_of(GATE).with_any_batch())


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_json_tells_the_kind(problem: Problem) -> None:
    found = Problem.from_json(problem.to_json())
    assert (type(found), found) == (type(problem), problem)
    assert workload_from(problem.workload.to_json()) == problem.workload
    assert "type" not in json.loads(Problem(CONVOLUTION).to_json())["workload"]


def test_a_word_is_of_attention_in_float32_alone() -> None:
    words = [problem_of(each, precision="tf32").precision for each in (KERNELS["tf32"].attention, ATTENTION, GATE)]
    assert words == ["tf32", "float32", "float32"]


@pytest.mark.parametrize("problem", FUSED.values(), ids=FUSED)
def test_every_kind(problem: FusedProblem) -> None:
    """It says what the bases of problems and of workloads ask for, and has the attributes of no convolution."""
    workload = problem.workload
    assert str(problem).startswith(workload.kind)
    assert json.loads(workload.to_json())["type"] == workload.kind
    assert list(problem.operands)[-1] == "output"
    assert workload.dtype in {dtype for _, dtype in problem.operands.values()}
    assert 0 < workload.terms <= workload.flops
    assert problem.as_convolution == problem
    assert (problem.is_dense, problem.is_depthwise, problem.is_gradient) == (False, False, False)
    assert problem.with_any_length() is None


def test_any_batch_is_that_of_all_layers() -> None:
    opened = problem_of(GATE).with_any_batch()
    assert opened.open_sizes == ("batch",)
    assert {opened.workload.first.batch, opened.workload.second.batch} == {1}
    assert opened.workload.second.out_channels == GATE.second.out_channels
    assert select(opened, SM_90).name == "cuda/gate"
    with pytest.raises(InvalidArgumentError, match="attention takes no batch that is left open"):
        select(problem_of(ATTENTION).with_any_batch(), SM_90)


def test_kinds_are_told_apart() -> None:
    assert str(problem_of(ATTENTION)) == "attention 2x21x16 by 140 keys -> 16 float16 + 1 biases"
    assert str(GATE).startswith("gate of conv2d 2x240x1x1 -> 10, 1x1")


def test_operations() -> None:
    assert KERNELS["vit"].attention.flops == 2 * 2 * 70 * 77 * (64 + 64)
    assert GATE.flops == 2 * 2 * 10 * (240 + 240)


def layer(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> ConvWorkload:
    return ConvWorkload.conv2d(x, w, padding=0, **options)


WRONG = {
    "second": lambda: Gate(GATE.first, layer((2, 11, 1, 1), (240, 11, 1, 1))),
    "dtype": lambda: Gate(GATE.first, layer((2, 10, 1, 1), (240, 10, 1, 1), dtype="float16")),
    "first": lambda: Gate(layer((2, 240, 3, 3), (10, 240, 1, 1)), GATE.second),
    "matrices": lambda: msgspec.structs.replace(ATTENTION, matrices=0),
    "v": lambda: msgspec.structs.replace(ATTENTION, v=ATTENTION.q),
    "direction": lambda: FusedProblem(GATE, direction="input_gradient"),
    "workload": lambda: workload_from('{"type": "pooling"}'),
}


@pytest.mark.parametrize("argument", WRONG)
def test_what_makes_no_sense_is_refused(argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match={"dtype": "second"}.get(argument, argument)):
        WRONG[argument]()


def test_attention_in_json_has_all_fields() -> None:
    assert isinstance(workload_from(ATTENTION.to_json()), Attention)
    with pytest.raises(InvalidArgumentError, match="unknown"):
        workload_from(ATTENTION.to_json().replace('"depth"', '"unknown"'))
