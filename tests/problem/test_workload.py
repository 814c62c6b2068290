"""Workloads: their normal form, their derived sizes, and their refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmconv import ConvWorkload, Epilogue
from tvmconv.compute import from_logical, to_logical
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.layout import data_layout, weight_layout

X, W = (1, 4, 10, 12), (4, 2, 3, 3)


@pytest.mark.parametrize(
    ("padding", "stored"),
    [
        ("SAME", (1, 1, 1, 1)),
        ("same", (1, 1, 1, 1)),
        ("VALID", (0, 0, 0, 0)),
        (2, (2, 2, 2, 2)),
        (np.int64(2), (2, 2, 2, 2)),
        ((0, 1), (0, 1, 0, 1)),
        ([3, 0, 1, 2], (3, 0, 1, 2)),
    ],
    ids=str,
)
def test_padding_forms(padding: Any, stored: tuple[int, ...]) -> None:
    assert ConvWorkload.depthwise(X, W, padding=padding).padding == stored


@settings(deadline=None)
@given(*(st.integers(1, high) for high in (40, 7, 4, 3)))
def test_same_is_what_onnx_and_tensorflow_define(size: int, kernel: int, stride: int, dilation: int) -> None:
    """There are ceil(size / stride) outputs, and an odd element of padding is at the end."""
    workload = ConvWorkload.depthwise((1, 1, size, size), (1, 1, kernel, kernel), stride=stride, dilation=dilation)
    top, left, bottom, right = workload.padding
    assert workload.output_size == (-(-size // stride),) * 2
    assert (top, bottom) == (left, right)
    assert 0 <= bottom - top <= 1
    needed = (workload.output_size[0] - 1) * stride + workload.window[0]
    assert top + bottom == max(needed - size, 0)


def test_equal_computations_are_equal_workloads() -> None:
    forms = [
        ConvWorkload.depthwise(X, W, padding="SAME", activation="relu6"),
        ConvWorkload.depthwise(X, W, padding=1, activation=("clip", 0, 6)),
        ConvWorkload.depthwise(list(X), list(W), stride=(1, 1), padding=(1, 1), activation="relu6"),
    ]
    assert len(set(forms)) == 1
    assert forms[0].epilogue.activation == "relu6"


def test_json_round_trip() -> None:
    workload = ConvWorkload.depthwise(X, W, stride=(2, 1), scale=True, activation=("clip", None, 2), dtype="float16")
    again = ConvWorkload.from_json(workload.to_json())
    assert again == workload
    assert hash(again) == hash(workload)


def test_derived_sizes() -> None:
    workload = ConvWorkload.depthwise(X, W, stride=2, dilation=2, padding="VALID", shift=True)
    assert workload.output_shape == (1, 8, 3, 4)
    assert workload.read_by((1, 1)) == workload.window == (5, 5)
    assert workload.read_by(workload.output_size) == (9, 11)
    assert workload.operands == {
        "x": (X, "float32"),
        "w": (W, "float32"),
        "shift": ((8,), "float32"),
        "output": ((1, 8, 3, 4), "float32"),
    }
    assert workload.flops == 2 * 8 * 3 * 4 * 9
    assert workload.bytes_moved == 4 * (4 * 10 * 12 + 4 * 2 * 9 + 8 * 3 * 4)
    assert str(workload) == "depthwise 1x4x10x12 -> 8, 3x3 stride 2x2 dilation 2x2 + shift"


def test_blocks_of_channels() -> None:
    workload = ConvWorkload.conv2d((2, 16, 10, 12), (24, 16, 3, 3), residual=True)
    blocked = msgspec.structs.replace(workload, layout="NCHW16c", out_layout="NCHW8c")
    assert ConvWorkload.from_json(blocked.to_json()) == blocked
    assert (blocked.x_shape, blocked.output_shape) == (workload.x_shape, workload.output_shape)
    assert {name: shape for name, (shape, _) in blocked.operands.items()} == {
        "x": (2, 1, 10, 12, 16),
        "w": (24, 16, 3, 3),
        "residual": (2, 3, 10, 12, 8),
        "output": (2, 3, 10, 12, 8),
    }
    assert str(blocked) == "conv2d 2x16x10x12 -> 24, 3x3 padding 1,1,1,1 NCHW16c to NCHW8c + residual"
    assert (blocked.is_in_nchw, blocked.in_nchw()) == (False, workload)


def test_channels_last() -> None:
    workload = ConvWorkload.conv2d((2, 16, 10, 12), (24, 16, 3, 5), residual=True)
    last = ConvWorkload.conv2d((2, 10, 12, 16), (24, 3, 5, 16), residual=True, layout="NHWC")
    assert last == workload.in_nhwc()
    assert (last.layout, last.w_layout, last.out_layout) == ("NHWC", "KRSC", "NHWC")
    assert ConvWorkload.from_json(last.to_json()) == last
    assert {name: shape for name, (shape, _) in last.operands.items()} == {
        "x": (2, 10, 12, 16),
        "w": (24, 3, 5, 16),
        "residual": (2, 10, 12, 24),
        "output": (2, 10, 12, 24),
    }
    assert str(last) == "conv2d 2x16x10x12 -> 24, 3x5 padding 1,2,1,2 NHWC with KRSC to NHWC + residual"
    assert (last.is_in_nchw, last.in_nchw()) == (False, workload)
    with pytest.raises(InvalidArgumentError, match="^w_layout is 'CKRS'; expected KCRS or KRSC"):
        msgspec.structs.replace(workload, w_layout="CKRS")
    depthwise = ConvWorkload.depthwise((1, 4, 8, 8), (4, 1, 3, 3))
    with pytest.raises(InvalidArgumentError, match="^w_layout is 'KRSC'; expected KCRS$"):
        msgspec.structs.replace(depthwise, w_layout="KRSC")
    with pytest.raises(
        InvalidArgumentError, match="^layout is 'NHWC'; expected 'NCHW' for a convolution of each channel"
    ):
        ConvWorkload.conv2d((1, 8, 8, 4), (4, 3, 3, 1), groups=4, layout="NHWC")
    with pytest.raises(
        InvalidArgumentError, match=r"^x is \(8, 8, 4\); expected a shape of 4 dimensions, \(N, H, W, C\)"
    ):
        ConvWorkload.conv2d((8, 8, 4), (4, 3, 3, 4), layout="NHWC")
    with pytest.raises(InvalidArgumentError, match=r"^w is \(4, 4, 3, 3\); expected \(K, R, S, C / groups\) where x"):
        ConvWorkload.conv2d((1, 8, 8, 4), (4, 4, 3, 3), layout="NHWC")
    with pytest.raises(InvalidArgumentError, match="^layout is 'NCHW8c'; expected 'NCHW' or 'NHWC'$"):
        ConvWorkload.conv2d((2, 16, 10, 12), (24, 16, 3, 5), layout="NCHW8c")


def test_layouts_are_inverse() -> None:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((2, 16, 3, 5))
    for name in ("NCHW", "NHWC", "NCHW8c"):
        layout = data_layout(name)
        stored = from_logical(array, layout)
        assert stored.shape == layout.shape(array.shape)
        np.testing.assert_array_equal(to_logical(stored, layout), array)
        place = layout.memory_index(1, 11, 2, 3)
        assert stored[place] == array[1, 11, 2, 3]
        assert layout.logical(*place) == (1, 11, 2, 3)
    np.testing.assert_array_equal(from_logical(array, weight_layout("KRSC")), array.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("layout", ["NHCW", "NCHW1c", "NCHW0c", "NCHW8", "NCHW8cc", "NCHW5c", "NCHW8c ", ""])
def test_bad_layouts(layout: str) -> None:
    workload = ConvWorkload.conv2d((2, 16, 10, 12), (24, 16, 3, 3))
    for name in ("layout", "out_layout"):
        with pytest.raises(InvalidArgumentError, match=f"^{name} is .*expected 'NCHW', 'NHWC', or such as 'NCHW8c'"):
            msgspec.structs.replace(workload, **{name: layout})


def test_dense_and_grouped() -> None:
    dense = ConvWorkload.conv2d((2, 6, 10, 12), (8, 6, 3, 3), stride=2, padding=1, shift=True, activation="relu")
    assert (dense.groups, dense.is_depthwise, dense.w_shape) == (1, False, (8, 6, 3, 3))
    assert dense.output_shape == (2, 8, 5, 6)
    assert dense.flops == 2 * 2 * 8 * 5 * 6 * 6 * 9
    grouped = ConvWorkload.conv2d((2, 6, 10, 12), (8, 3, 3, 3), groups=2)
    assert (grouped.multiplier, grouped.w_shape) == (4, (8, 3, 3, 3))
    assert str(grouped) == "conv2d 2x6x10x12 -> 8, 3x3 groups 2 padding 1,1,1,1"
    assert ConvWorkload.conv2d(X, (8, 1, 3, 3), groups=4) == ConvWorkload.depthwise(X, W)


@pytest.mark.parametrize(
    ("w_shape", "groups"), [((8, 6, 3, 3), 2), ((8, 2, 3, 3), 0), ((8, 6, 3, 3), 1.0), ((8, 6, 3, 3), None)], ids=str
)
def test_weight_that_does_not_fit_the_groups(w_shape: tuple[int, ...], groups: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected \(K, C / groups, R, S\) where x .* has C"):
        ConvWorkload.conv2d((1, 6, 8, 8), w_shape, groups=groups)


def test_groups_divide_the_output_channels() -> None:
    with pytest.raises(InvalidArgumentError, match="groups is 3; expected a divisor of 6 input and 8 output channels"):
        ConvWorkload.conv2d((1, 6, 8, 8), (8, 2, 3, 3), groups=3)


@dataclass(frozen=True)
class Bad:
    id: str
    options: dict[str, Any]
    message: str


BAD = [
    Bad("rank-of-x", {"x_shape": (4, 10, 12)}, r"x is \(4, 10, 12\); expected a shape of 4 dimensions"),
    Bad("rank-of-w", {"w_shape": (4, 3, 3)}, r"w is \(4, 3, 3\); expected a shape of 4 dimensions, \(C, M, R, S\)"),
    Bad("channels", {"w_shape": (5, 1, 3, 3)}, r"w is \(5, 1, 3, 3\); expected 4 channels first"),
    Bad("zero-height", {"x_shape": (1, 4, 0, 12)}, "height is 0; expected an integer of 1 or more"),
    Bad("zero-batch", {"x_shape": (0, 4, 10, 12)}, "batch is 0"),
    Bad("zero-kernel", {"w_shape": (4, 1, 0, 3)}, "kernel is 0"),
    Bad("zero-multiplier", {"w_shape": (4, 0, 3, 3)}, "out_channels is 0"),
    Bad("zero-stride", {"stride": 0}, "stride is 0"),
    Bad("negative-dilation", {"dilation": (1, -1)}, "dilation is -1"),
    Bad("float-stride", {"stride": 1.5}, "stride is 1.5; expected an integer or a pair"),
    Bad("three-strides", {"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\)"),
    Bad("kernel-too-large", {"w_shape": (4, 1, 11, 3), "padding": 0}, "kernel is .* fits the padded input of 10x12"),
    Bad("unknown-padding", {"padding": "FULL"}, "padding is 'FULL'; expected 'SAME', 'VALID'"),
    Bad("three-paddings", {"padding": (1, 2, 3)}, r"padding is \(1, 2, 3\)"),
    Bad("negative-padding", {"padding": -1}, r"padding is \(-1, -1, -1, -1\); expected four integers of 0 or more"),
    Bad("unknown-activation", {"activation": "mish"}, "activation is 'mish'; expected None or one of 'relu', 'relu6'"),
    Bad("nan-clip", {"activation": ("clip", float("nan"), None)}, "low of activation 'clip' is nan; expected a number"),
    Bad("huge-clip", {"activation": ("clip", None, 1e300)}, "high of activation 'clip' is 1e\\+300"),
    Bad("text-clip", {"activation": ("clip", "a", 1)}, "low of activation 'clip' is 'a'; expected a number"),
    Bad("text-slope", {"activation": ("leaky_relu", "a")}, "negative_slope of activation 'leaky_relu' is 'a'"),
    Bad("many-values", {"activation": ("elu", 1, 2)}, r"expected \('elu', alpha\), with no more"),
    Bad("value-of-gelu", {"activation": ("gelu", 1)}, "activation is .*expected 'gelu', with no more"),
    Bad("clip-of-nothing", {"activation": "clip"}, "expected .*with low"),
    Bad("float-shape", {"x_shape": (1, 4.5, 10, 12)}, "x is .* expected a shape of 4 dimensions"),
    Bad("no-shape", {"x_shape": None}, "x is None; expected a shape of 4 dimensions"),
    Bad("huge-stride", {"stride": 2**31, "padding": 0}, "padded x is .* expected a tensor of at most"),
    Bad("huge-dilation", {"dilation": 50_000, "padding": 50_000}, "padded x is .* expected a tensor of at most"),
    Bad("crossed-clip", {"activation": ("clip", 2, 1)}, "low of activation 'clip' is 2.0; expected at most high"),
    Bad(
        "unknown-dtype", {"dtype": "float64"}, "dtype is 'float64'; expected float32, float16, bfloat16, int8 or uint8"
    ),
    Bad("too-many-elements", {"x_shape": (2**20, 4, 100, 100)}, "x is .* expected a tensor of at most 1073741824"),
    Bad("elements-past-64-bits", {"x_shape": (2**62, 4, 2**40, 12)}, "x is .* expected a tensor of at most 1073741824"),
    Bad("padding-past-64-bits", {"padding": 2**70}, "output is .* expected a tensor of at most"),
    Bad("too-much-padding", {"padding": 100_000}, "output is .* expected a tensor of at most 1073741824"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_bad_arguments(bad: Bad) -> None:
    with pytest.raises(InvalidArgumentError, match=bad.message):
        ConvWorkload.depthwise(**{"x_shape": X, "w_shape": W, **bad.options})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"batch": 1}', ConvWorkload.depthwise(X, W).to_json().replace("{", '{"colour": 1,', 1)],
    ids=["empty", "cut", "list", "fields-missing", "field-unknown"],
)
def test_bad_json(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="workload is .* expected a ConvWorkload in JSON"):
        ConvWorkload.from_json(text)


def test_bad_json_values() -> None:
    text = ConvWorkload.depthwise(X, W).to_json().replace('"batch":1', '"batch":0')
    with pytest.raises(InvalidArgumentError, match="batch is 0"):
        ConvWorkload.from_json(text)


@pytest.mark.parametrize(
    "field", [{"kernel": 3}, {"kernel": (3, 3, 3)}, {"padding": (1, 1)}, {"stride": [1, 1]}], ids=str
)
def test_the_constructor_takes_the_stored_form_only(field: dict[str, Any]) -> None:
    fields = msgspec.to_builtins(ConvWorkload.depthwise(X, W))
    stored = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(field))} is "):
        ConvWorkload(**{**stored, "epilogue": Epilogue(), **field})


def test_infinite_bounds_are_none() -> None:
    assert ConvWorkload.depthwise(X, W, activation=("clip", -np.inf, np.inf)).epilogue == Epilogue()


def test_activation_names() -> None:
    assert Epilogue().activation == "none"
    assert str(Epilogue(scale=True, low=0.0)) == "scale+relu"
    assert Epilogue(low=-1.0, high=1.0).activation == "clip(-1.0,1.0)"


OLD = '{"scale":false,"shift":true,"residual":false,"low":0.0,"high":null}'
"""An epilogue in the form that records had before activations were more than bounds."""


def test_old_epilogues_are_todays() -> None:
    old = msgspec.json.decode(OLD, type=Epilogue)
    assert old == Epilogue.of("relu", shift=True)
    assert hash(old) == hash(Epilogue.of("relu", shift=True))
    assert msgspec.json.encode(old).decode() == OLD


@pytest.mark.parametrize("activation", ["gelu", ("leaky_relu", 0.2), ("elu", 1)])
def test_functions_survive_json(activation: Any) -> None:
    workload = ConvWorkload.depthwise(X, W, shift=True, activation=activation)
    assert ConvWorkload.from_json(workload.to_json()) == workload
    assert workload != ConvWorkload.depthwise(X, W, shift=True)


@pytest.mark.parametrize(
    "function",
    ['{"name":"mish"}', '{"name":"clip"}', '{"name":"relu"}', '{"name":"elu"}', '{"name":"gelu","parameters":[1]}'],
)
def test_functions_that_are_none(function: str) -> None:
    text = ConvWorkload.depthwise(X, W, activation="gelu").to_json()
    assert '"function":{"name":"gelu","parameters":[]}' in text
    with pytest.raises(InvalidArgumentError):
        ConvWorkload.from_json(text.replace('{"name":"gelu","parameters":[]}', function))
