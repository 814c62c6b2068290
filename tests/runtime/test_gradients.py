"""The gradients of depthwise convolutions on the CPU, on arrays, against the float64 reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.cases.gradients import CASES, GRADIENTS, check, geometry
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import gradients, operators
from tvmconv.support.cache import Cache
from tvmconv.testing import random_operands

by_gradient = pytest.mark.parametrize("of", GRADIENTS)


def compute(of: str, workload: ConvWorkload) -> None:
    """Compute a gradient on NumPy arrays and check it."""
    arrays = random_operands(workload, direction=of)
    first, second, _ = arrays.values()
    function = getattr(gradients, of)
    check(of, workload, arrays, function(first, second, geometry(workload)))


@pytest.mark.parametrize(("name", "of"), sparing(product(CASES, GRADIENTS), lambda index: index % 8 in (0, 3)))
def test_cases(name: str, of: str) -> None:
    compute(of, CASES[name])


@st.composite
def workloads(draw: st.DrawFn) -> ConvWorkload:
    def sizes(most: int, least: int = 1) -> tuple[int, int]:
        return draw(st.integers(least, most)), draw(st.integers(least, most))

    kernel, dilation, before, after = sizes(6), sizes(4), sizes(5, 0), sizes(5, 0)
    reach = [
        max(1, (size - 1) * spread + 1 - first - last)
        for size, spread, first, last in zip(kernel, dilation, before, after, strict=True)
    ]
    batch, channels, (more_y, more_x) = draw(st.integers(1, 3)), draw(st.integers(1, 5)), sizes(20, 0)
    return ConvWorkload.depthwise(
        (batch, channels, reach[0] + more_y, reach[1] + more_x),
        (channels, draw(st.integers(1, 3)), *kernel),
        stride=sizes(4),
        padding=(*before, *after),
        dilation=dilation,
    )


@by_gradient
@settings(max_examples=6, deadline=None, derandomize=True)
@given(workload=workloads())
def test_any_workload(workload: ConvWorkload, of: str) -> None:
    compute(of, workload)


@by_gradient
def test_one_kernel_computes_every_batch(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Cache[Any, Any] = Cache(9)
    monkeypatch.setattr(operators, "_operators", kernels)
    monkeypatch.setattr(gradients, "_calls", gradients.Calls())
    workload = ConvWorkload.depthwise((1, 3, 12, 11), (3, 1, 3, 3), stride=2)
    for batch in (2, 1, 5, 2):
        compute(of, msgspec.structs.replace(workload, batch=batch))
    assert len(kernels) == 1


def test_a_stride_of_one_takes_the_kernels_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Cache[Any, Any] = Cache(9)
    monkeypatch.setattr(operators, "_operators", kernels)
    monkeypatch.setattr(gradients, "_calls", gradients.Calls())
    plain = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 4), dilation=2, padding=(4, 1, 0, 6))
    compute("input_gradient", plain)
    assert not any(problem.is_gradient for problem, *_ in kernels)
    for other in ({"padding": (5, 0, 0, 0)}, {"stride": (1, 2)}, {"out_channels": 6}):
        compute("input_gradient", msgspec.structs.replace(plain, **other))
    assert sum(problem.is_gradient for problem, *_ in kernels) == 3


def test_a_wrong_gradient_is_caught() -> None:
    workload = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3))
    shifted = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3), padding=(2, 1, 0, 1))
    for of in GRADIENTS:
        arrays = random_operands(workload, direction=of)
        first, second, _ = arrays.values()
        function = getattr(gradients, of)
        with pytest.raises(AssertionError, match="elements are wrong"):
            check(of, workload, arrays, function(first, second, geometry(shifted)))


@by_gradient
def test_bad_arrays_are_refused(of: str) -> None:
    workload = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3))
    first, second, _ = random_operands(workload, direction=of).values()
    function, known = getattr(gradients, of), geometry(workload)
    other = "w" if of == "input_gradient" else "x"
    for arrays, message in (
        ((first[:1], second), "dy is .*expected the shape"),
        ((first, second[:1]), f"{other} is .*expected the shape"),
        ((first, second.astype("float16")), f"{other} is 'float16'; expected the dtype float32"),
        ((first.astype("float64"), second), "dy is 'float64'; expected an array of float32, float16 or bfloat16"),
        ((first.astype("int8"), second), "dy is 'int8'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            function(*arrays, known)


@by_gradient
def test_results_are_the_same_again(of: str) -> None:
    workload = ConvWorkload.depthwise((8, 16, 30, 30), (16, 1, 3, 3), stride=2)
    first, second, _ = random_operands(workload, direction=of).values()
    function = getattr(gradients, of)
    results = [function(first, second, geometry(workload)) for _ in range(3)]
    assert all(np.array_equal(results[0], result) for result in results)
