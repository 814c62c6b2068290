"""Workloads of integers, their references, and the check of results for them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.checking.closeness import assert_rounded
from tvmconv.compute import conv2d_reference
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED, STORAGE_TYPES
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.testing import Sample, check_result, random_operands

X, W = (2, 6, 7, 8), (4, 6, 3, 3)


def test_types_of_operands() -> None:
    sums = ConvWorkload.conv2d(X, W, dtype="uint8")
    assert {name: dtype for name, (_, dtype) in sums.operands.items()} == {"x": "uint8", "w": "int8", "output": "int32"}
    options: dict[str, Any] = {"scale": True, "shift": True, "residual": True}
    other = ConvWorkload.conv2d(X, W, dtype="int8", out_dtype="uint8", **options)
    assert [dtype for _, dtype in other.operands.values()] == ["int8", "int8", "float32", "float32", "uint8", "uint8"]
    assert (other.itemsize, other.sum_bytes, other.output_storage.itemsize) == (1, 4, 1)
    assert sums.bytes_moved == 2 * 6 * 7 * 8 + 4 * 6 * 9 + 4 * 2 * 4 * 7 * 8


def test_one_workload_has_one_form() -> None:
    plain = ConvWorkload.conv2d(X, W, dtype="int8")
    assert plain == ConvWorkload.conv2d(X, W, dtype="int8", out_dtype="int32", x_zero_point=0, out_zero_point=0)
    number: Any = np.uint8(3)
    numbers = ConvWorkload.conv2d(X, W, dtype="uint8", out_dtype="uint8", x_zero_point=number, out_zero_point=number)
    assert numbers == ConvWorkload.conv2d(X, W, dtype="uint8", out_dtype="uint8", x_zero_point=3, out_zero_point=3)
    assert ConvWorkload.from_json(numbers.to_json()) == numbers
    assert str(numbers).endswith("uint8 zero point 3 to uint8 + zero_point(3)")
    assert ConvWorkload.conv2d(X, W, out_dtype="float32") == ConvWorkload.conv2d(X, W)


OLD = (
    '{"batch":1,"in_channels":4,"height":5,"width":5,"out_channels":8,"kernel":[1,1],"stride":[1,1],'
    '"padding":[0,0,0,0],"dilation":[1,1],"groups":1,"layout":"NCHW","w_layout":"KCRS","out_layout":"NCHW",'
    '"dtype":"float16","epilogue":{"scale":false,"shift":true,"residual":false,"low":0.0,"high":null}}'
)
"""A workload in the form that records had before there were any of integers."""


def test_old_workloads_are_todays() -> None:
    old = ConvWorkload.from_json(OLD)
    assert old == ConvWorkload.conv2d((1, 4, 5, 5), (8, 4, 1, 1), dtype="float16", shift=True, activation="relu")
    assert old.to_json() == OLD


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_dtype": "int64"}, "out_dtype is 'int64'; expected float32, .* or int32"),
        ({"out_dtype": ["int8"]}, r"out_dtype is \['int8'\]; expected float32, .* or int32"),
        ({"dtype": "float32", "out_dtype": "int8"}, "out_dtype is 'int8'; expected float32, as x is, or x in int8 or"),
        ({"dtype": "int32"}, "dtype is 'int32'; expected float32, float16, bfloat16, int8 or uint8"),
        ({"x_zero_point": 128}, "x_zero_point is 128; expected an integer from -128 to 127, for numbers in int8"),
        ({"x_zero_point": 0.5}, "x_zero_point is 0.5; expected an integer"),
        ({"dtype": "float16", "x_zero_point": 1}, "x_zero_point is 1; expected 0, for numbers in float16"),
        ({"out_dtype": "uint8", "out_zero_point": -1}, "out_zero_point is -1; expected an integer from 0 to 255"),
        ({"out_dtype": "float32", "out_zero_point": 1}, "out_zero_point is 1; expected 0, for numbers in float32"),
        ({"dtype": "float32", "out_zero_point": 1}, "out_zero_point is 1; expected 0, for numbers in float32"),
        ({"scale": True}, "out_dtype is 'int32'; expected float32, .* or uint8, for the epilogue scale"),
        ({"activation": "relu"}, "out_dtype is 'int32'; .*for the epilogue relu"),
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ConvWorkload.conv2d(X, W, **{"dtype": "int8", **options})


@pytest.mark.parametrize(
    ("dtype", "zero_point", "most"),
    [("int8", 0, 131071), ("uint8", 0, 65793), ("int8", -128, 65793), ("uint8", 128, 65793), ("int8", 2, 129055)],
)
def test_sums_fit_into_int32(dtype: str, zero_point: int, most: int) -> None:
    """As many terms as are taken stay below 2^31, each of the largest product; one more may not."""

    def workload(terms: int) -> ConvWorkload:
        return ConvWorkload.conv2d((1, terms, 1, 1), (4, terms, 1, 1), dtype=dtype, x_zero_point=zero_point)

    low, high = STORAGE_TYPES[dtype].bounds or (0, 0)
    largest = 128 * max(-low, high, high - zero_point, zero_point - low)
    assert workload(most).terms * largest < 2**31 <= (most + 1) * largest
    with pytest.raises(InvalidArgumentError, match=f"w is '{most + 1} terms'; expected at most {most} terms of a sum"):
        workload(most + 1)


def test_any_precision_is_the_same() -> None:
    workload = ConvWorkload.conv2d(X, W, dtype="int8")
    problems = {Problem(workload, precision=word) for word in ("strict", "float32", "tf32")}
    assert len(problems) == 1
    assert next(iter(problems)).in_other_words == []


def test_records_of_the_sums_serve() -> None:
    """Records of plain sums serve: the time hardly depends on the steps behind them, or on the zero point."""
    options: dict[str, Any] = {"out_dtype": "int8", "scale": True, "x_zero_point": 7, "out_zero_point": 2}
    workload = ConvWorkload.conv2d(X, W, dtype="uint8", **options)
    assert workload.without_epilogue() == ConvWorkload.conv2d(X, W, dtype="uint8")
    assert ConvWorkload.conv2d(X, W, shift=True).without_epilogue() == ConvWorkload.conv2d(X, W)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_reference(dtype: str) -> None:
    """It is the sum in integers of 64 bits, of numbers that padding adds nothing to."""
    zero_point = 3 if dtype == "uint8" else -100
    workload = ConvWorkload.conv2d(X, W, dtype=dtype, x_zero_point=zero_point, stride=(2, 1), padding=(1, 0, 2, 1))
    operands = random_operands(workload)
    x, w = operands["x"].astype(np.int64) - zero_point, operands["w"].astype(np.int64)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2]
    expected = np.einsum("nchwrs,kcrs->nkhw", windows, w)
    np.testing.assert_array_equal(conv2d_reference(workload, operands["x"], operands["w"]), expected)
    check_result(workload, operands, expected.astype(np.int32))


def test_random_operands() -> None:
    """Integers are of the whole type, and outputs spread over theirs."""
    workload = ConvWorkload.conv2d((4, 64, 16, 16), (32, 64, 3, 3), dtype="uint8", out_dtype="int8", scale=True)
    operands = random_operands(workload)
    assert (operands["x"].min(), operands["x"].max()) == (0, 255)
    assert (operands["w"].min(), operands["w"].max()) == (-128, 127)
    assert (operands["output"] == 127).all()
    y = conv2d_reference(workload, **{name: operands[name] for name in ("x", "w", "scale")})
    assert 0.2 < (np.abs(y) < 100).mean() < 0.95


def nearest(y: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(np.rint(y), -128, 127))


def test_results_near_the_middle_may_be_either() -> None:
    """Elsewhere, and past the bounds, there is one right result."""
    reference = np.array([2.5, 2.4999, 2.49, 1e6, -1e6])
    for right in ([2, 2, 2, 127, -128], [3, 3, 2, 127, -128]):
        assert_rounded(np.array(right), reference, 1e-3, nearest)
    for wrong in ([4, 2, 2, 127, -128], [2, 2, 3, 127, -128], [2, 2, 2, 126, -128], [2, 2, 2, 127, -127]):
        with pytest.raises(AssertionError, match="1 of 5 elements are wrong"):
            assert_rounded(np.array(wrong), reference, 1e-3, nearest)
    with pytest.raises(AssertionError, match="2 of 5 elements are wrong"):
        assert_rounded(np.array([3, 3, 2, 127, -128]), reference, 0.0, nearest)
    with pytest.raises(AssertionError, match="shape"):
        assert_rounded(np.zeros(4), reference, 0.0, nearest)


@pytest.mark.parametrize("out_dtype", STORAGE_TYPES)
def test_sample(out_dtype: str) -> None:
    """A sample of the outputs has its own padding, of the zero point, and finds what is wrong in it."""
    options: dict[str, Any] = {} if out_dtype == "int32" else {"scale": True, "shift": True, "activation": "relu"}
    workload = ConvWorkload.conv2d(
        (2, 8, 40, 40), (32, 8, 3, 3), dtype="uint8", out_dtype=out_dtype, x_zero_point=200, **options
    )
    operands = random_operands(workload)
    inputs = {name: array for name, array in operands.items() if name != "output"}
    y, row = conv2d_reference(workload, **inputs), STORAGE_TYPES[out_dtype]
    right = (y if row.bounds is None else np.clip(np.rint(y), *row.bounds)).astype(row.numpy)
    sample = Sample(Problem(workload), operands, np.random.default_rng(0), 4096)
    sample.check(right)
    spoiled = right.copy()
    spoiled[0, 5, 0, 0] = 101 if right[0, 5, 0, 0] < 50 else 0
    with pytest.raises(AssertionError, match="elements are wrong"):
        sample.check(spoiled)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_calls_on_a_cpu(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    operands = random_operands(ConvWorkload.conv2d(X, W, dtype=dtype))
    x, w = operands["x"], operands["w"]
    y = tvmconv.conv2d(x, w, out_dtype="float32")
    np.testing.assert_array_equal(y, conv2d_reference(ConvWorkload.conv2d(X, W, dtype=dtype), x, w))
    np.testing.assert_array_equal(tvmconv.conv2d(torch.from_numpy(x), torch.from_numpy(w), out_dtype="float32"), y)
    with pytest.raises(InvalidArgumentError, match="w is 'float32'; expected the dtype int8"):
        tvmconv.conv2d(x, w.astype("float32"))
    with pytest.raises(InvalidArgumentError, match="x is 'int8'; .*float32, float16 or bfloat16"):
        tvmconv.sparse_conv2d(w.astype("float32"))(x.astype("int8"))


def test_zero_point_of_an_epilogue() -> None:
    assert Epilogue(zero_point=0) == Epilogue()
    assert msgspec.json.encode(Epilogue()) == b'{"scale":false,"shift":false,"residual":false,"low":null,"high":null}'
    assert Epilogue(zero_point=3).without_activation() == Epilogue(zero_point=3)
    assert str(Epilogue.of("relu", scale=True, zero_point=3)) == "scale+relu+zero_point(3)"


def test_factor_of_an_epilogue() -> None:
    assert Epilogue(factor=1.0) == Epilogue()
    assert Epilogue(factor=0.5).without_activation() == Epilogue(factor=0.5)
    assert str(Epilogue(scale=True, factor=1 / 3, zero_point=3)) == "scale+factor(0.3333)+zero_point(3)"
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="factor is .*; expected a finite number above 0"):
            Epilogue(factor=wrong)
    workload = ConvWorkload.conv2d(X, W, dtype="int8", out_dtype="float32", scale=True)
    with pytest.raises(InvalidArgumentError, match="factor is 0.5; expected 1, for an output that is not in int8"):
        msgspec.structs.replace(workload, epilogue=Epilogue(scale=True, factor=0.5))


def test_factor_comes_behind_the_activation() -> None:
    """With the factor anywhere else the rounded result is another one."""
    workload = ConvWorkload.conv2d(X, W, dtype="uint8", out_dtype="uint8", scale=True, activation="silu")
    operands = random_operands(workload)
    wanted = msgspec.structs.replace(workload, epilogue=msgspec.structs.replace(workload.epilogue, factor=20.0))
    inputs = {name: array for name, array in operands.items() if name != "output"}
    check_result(wanted, operands, tvmconv.compile(wanted)(**inputs))
    operands["scale"] *= np.float32(20)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_result(workload, operands, tvmconv.compile(wanted)(**inputs))


def test_templates_of_floats_are_not_asked() -> None:
    """Only the templates that sum integers exactly say that they take them, and each has an example that is tried."""
    from tvmconv.dispatch.registry import TEMPLATES

    takers = {name for name, template in TEMPLATES.items() if not {*QUANTIZED}.isdisjoint(template.LAYOUTS.dtypes)}
    assert takers >= {"cpu/amx", "cpu/depthwise", "cpu/depthwise_dot", "cpu/dot", "cuda/matvec", "cuda/tensor"}
    for name, template in TEMPLATES.items():
        assert any(each.workload.dtype in QUANTIZED for each in template.examples) == (name in takers), name
