"""Problems of several layers in one kernel: their descriptions, and their JSON beside that of convolutions."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.schedules.cases.attention import KERNELS
from tests.schedules.cases.gate import GATES
from tvmconv import ConvWorkload
from tvmconv.problem import FusedProblem, Problem, problem_of, workload_from
from tvmconv.problem.attention import Attention
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.gate import Gate

CONVOLUTION = ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 3, 3))
ATTENTION, GATE = KERNELS["bias"].attention, GATES["efficientnet"]


PROBLEMS = (
    problem_of(CONVOLUTION, 0.9),
    problem_of(ATTENTION),
    problem_of(KERNELS["tf32"].attention, precision="tf32"),
    problem_of(GATE),
    FusedProblem(GATE, open_sizes=("batch",)),
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_json_tells_the_kind(problem: Problem) -> None:
    found = Problem.from_json(problem.to_json())
    assert (type(found), found) == (type(problem), problem)
    assert workload_from(problem.workload.to_json()) == problem.workload
    assert "type" not in json.loads(Problem(CONVOLUTION).to_json())["workload"]


def test_a_word_is_of_attention_in_float32_alone() -> None:
    words = [problem_of(each, precision="tf32").precision for each in (KERNELS["tf32"].attention, ATTENTION, GATE)]
    assert words == ["tf32", "float32", "float32"]


def test_kinds_are_told_apart() -> None:
    assert not problem_of(GATE).is_dense
    assert not problem_of(GATE).is_depthwise
    assert str(problem_of(ATTENTION)) == "attention 2x21x16 by 140 keys -> 16 float16 + 1 biases"
    assert str(GATE).startswith("gate of conv2d 2x240x1x1 -> 10, 1x1")


def test_operations() -> None:
    assert KERNELS["vit"].attention.flops == 2 * 2 * 70 * 77 * (64 + 64)
    assert GATE.flops == 2 * 2 * 10 * (240 + 240)


def layer(x: tuple[int, ...], w: tuple[int, ...], **options: bool) -> ConvWorkload:
    return ConvWorkload.conv2d(x, w, padding=0, **options)


WRONG = {
    "second": lambda: Gate(GATE.first, layer((2, 11, 1, 1), (240, 11, 1, 1))),
    "first": lambda: Gate(layer((2, 240, 3, 3), (10, 240, 1, 1)), GATE.second),
    "matrices": lambda: msgspec.structs.replace(ATTENTION, matrices=0),
    "v": lambda: msgspec.structs.replace(ATTENTION, v=ATTENTION.q),
    "direction": lambda: FusedProblem(GATE, direction="input_gradient"),
    "workload": lambda: workload_from('{"type": "pooling"}'),
}


@pytest.mark.parametrize("argument", WRONG)
def test_what_makes_no_sense_is_refused(argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=argument):
        WRONG[argument]()


def test_attention_in_json_has_all_fields() -> None:
    assert isinstance(workload_from(ATTENTION.to_json()), Attention)
    with pytest.raises(InvalidArgumentError, match="unknown"):
        workload_from(ATTENTION.to_json().replace('"depth"', '"unknown"'))
