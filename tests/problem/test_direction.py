"""The direction of a problem: a convolution, or one of its gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tvmconv import ConvWorkload
from tvmconv.problem import DIRECTIONS, Problem
from tvmconv.problem.errors import InvalidArgumentError

WORKLOAD = ConvWorkload.depthwise((2, 3, 12, 11), (3, 2, 3, 5), stride=2)


def test_operands() -> None:
    x, w, y = (2, 3, 12, 11), (3, 2, 3, 5), (2, 6, 6, 6)
    expected = ({"x": x, "w": w, "output": y}, {"dy": y, "w": w, "output": x}, {"dy": y, "x": x, "output": w})
    for direction, shapes in zip(DIRECTIONS, expected, strict=True):
        operands = Problem(WORKLOAD, direction=direction).operands
        assert list(operands.items()) == [(name, (shape, "float32")) for name, shape in shapes.items()]


def test_operands_in_nhwc() -> None:
    workload = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 5), dtype="float16").in_nhwc()
    assert Problem(workload, direction="weight_gradient").operands == {
        "dy": ((2, 12, 11, 3), "float16"),
        "x": ((2, 12, 11, 3), "float16"),
        "output": ((3, 1, 3, 5), "float16"),
    }


def test_terms() -> None:
    assert [Problem(WORKLOAD, direction=direction).terms for direction in DIRECTIONS] == [15, 30, 72]


def test_json_of_convolutions_has_no_direction() -> None:
    assert "direction" not in Problem(WORKLOAD).to_json()
    for direction in DIRECTIONS:
        problem = Problem(WORKLOAD, direction=direction)
        assert Problem.from_json(problem.to_json()) == problem


@pytest.mark.parametrize(
    ("workload", "options", "message"),
    [
        (WORKLOAD, {"direction": "backward"}, "direction is 'backward'; expected one of forward, input_gradient"),
        (WORKLOAD, {"direction": "input_gradient", "sparsity": 0.5}, "expected forward for a sparse weight"),
        (
            ConvWorkload.depthwise((2, 3, 12, 11), (3, 2, 3, 5), shift=True),
            {"direction": "weight_gradient"},
            "expected forward for .* an epilogue",
        ),
    ],
)
def test_bad_directions(workload: ConvWorkload, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Problem(workload, **options)
