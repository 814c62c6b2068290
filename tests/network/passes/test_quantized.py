"""Quantized networks of ONNX: what becomes integers, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvmconv
from tests.shared.quantized_graph import Quantized, X, floats_between, in_integers, onnxruntimes
from tests.shared.sparing import every
from tvmconv.integrations.quantizing import quantize
from tvmconv.network import import_model
from tvmconv.problem.errors import UnsupportedModelError

pytest.importorskip("onnxruntime")

IN = np.random.default_rng(5).standard_normal(X).astype("float32")
DENSE = (16, 8, 3, 3)
PLAIN = "conv2d 1x8x9x11 -> 16, 3x3 padding 1,1,1,1 uint8 zero point 3"


def conv(g: Quantized, x: str = "", bias: bool = True, **weight: object) -> str:
    """Add a convolution of x quantized, without a quantization behind it."""
    x = x or g.rounded("x")
    scales = np.linspace(0.005, 0.02, 16)
    w = g.weight(*DENSE, **({"scale": scales, "zero_point": np.zeros(16)} | weight))
    return g.node("Conv", x, w, *([g.bias(16, 0.05 * scales)] if bias else []), pads=[1, 1, 1, 1])


def sigmoid_times(g: Quantized, y: str) -> str:
    return g.node("Mul", y, g.node("Sigmoid", y))


@dataclass(frozen=True)
class Case:
    """A graph around a convolution, and its expected workload."""

    id: str
    body: Callable[[Quantized], str]
    workload: str
    """In words, behind those of x."""


CASES = (
    Case("bias", lambda g: g.rounded(conv(g), 0.3), "to uint8 + scale+shift+zero_point(3)"),
    Case("no-bias", lambda g: g.rounded(conv(g, bias=False), 0.3, 0), "to uint8 + scale"),
    Case("int8", lambda g: g.rounded(conv(g), 0.3, -5, "int8"), "to int8 + scale+shift+zero_point(-5)"),
    Case("relu", lambda g: g.rounded(g.node("Relu", conv(g)), 0.3), "to uint8 + scale+shift+relu+zero_point(3)"),
    Case("relu-of-the-type", lambda g: g.rounded(g.node("Relu", conv(g)), 0.3, 0), "to uint8 + scale+shift"),
    Case(
        "relu6",
        lambda g: g.rounded(g.clip(conv(g), 0, 6), 0.25, 0),
        "to uint8 + scale+shift+clip(None,24.0)",
    ),
    Case(
        "leaky-relu",
        lambda g: g.rounded(g.node("LeakyRelu", conv(g), alpha=0.25), 0.3),
        "to uint8 + scale+shift+leaky_relu(0.25)+zero_point(3)",
    ),
    Case("no-quantization-behind", lambda g: g.node("Relu", conv(g)), "to float32 + scale+shift+relu"),
    Case(
        "hardswish",
        lambda g: g.rounded(g.node("HardSwish", conv(g)), 0.25),
        "to uint8 + scale+shift+hardswish+factor(4)+zero_point(3)",
    ),
    Case(
        "silu-in-steps",
        lambda g: g.rounded(sigmoid_times(g, conv(g)), 0.25),
        "to uint8 + scale+shift+silu+factor(4)+zero_point(3)",
    ),
    Case(
        "unsigned-weight",
        lambda g: g.rounded(conv(g, dtype="uint8", zero_point=np.full(16, 128)), 0.3),
        "to uint8 + scale+shift+zero_point(3)",
    ),
    Case(
        "factors",
        lambda g: g.rounded(g.node("Mul", conv(g), g.random(16, 1, 1)), 0.3),
        "to uint8 + scale+shift+zero_point(3)",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_convolution_in_integers(case: Case) -> None:
    graph = Quantized(X)
    model = graph.model(case.body(graph))
    (found,) = import_model(model).convolutions()
    assert found.description == f"{PLAIN} {case.workload}"
    network = tvmconv.build(model)
    assert in_integers(network) == [True]
    expected = onnxruntimes(model, IN)
    step = 0.3 if "int" in case.workload else 1e-5 * np.abs(expected).max()
    assert np.abs(network(IN) - expected).max() <= 1.001 * step


RESIDUALS: tuple[tuple[Callable[[Quantized, str], str], float, str, str], ...] = (
    (lambda g, y: y, 0.3, "uint8", "uint8 + scale+shift+residual+zero_point(3)"),
    (lambda g, y: y, 0.2, "uint8", "uint8 + scale+shift+residual+factor(0.6667)+zero_point(3)"),
    (
        lambda g, y: g.clip(y, 0, 3),
        0.25,
        "uint8",
        "uint8 + scale+shift+residual+clip(0.0,12.0)+factor(0.8333)+zero_point(3)",
    ),
    (lambda g, y: y, 0.2, "int8", "float32 + scale+shift+residual"),
    (sigmoid_times, 0.2, "uint8", "float32 + scale+shift+residual+silu"),
)


@pytest.mark.parametrize(("behind", "scale", "dtype", "words"), RESIDUALS, ids=[row[-1] for row in RESIDUALS])
def test_residual(behind: Callable[[Quantized, str], str], scale: float, dtype: str, words: str) -> None:
    """What is added is read as integers where it has the output's type, and else as numbers."""
    graph = Quantized(X)
    other = graph.rounded(graph.conv("x", DENSE, pads=[1, 1, 1, 1]), scale, 7, dtype)
    model = graph.model(graph.rounded(behind(graph, graph.node("Add", conv(graph), other)), 0.3))
    *_, found = import_model(model).convolutions()
    assert found.description == f"{PLAIN} to {words}"
    # The float convolution may round to another step.
    assert np.abs(tvmconv.build(model)(IN) - onnxruntimes(model, IN)).max() <= 0.3 + 0.2 + 1e-3


def test_linear_layer() -> None:
    graph = Quantized((4, 24))
    scales, zeros = np.linspace(0.01, 0.02, 10), np.zeros(10)
    w = graph.weight(10, 24, scale=scales, zero_point=zeros)
    y = graph.node("Gemm", graph.rounded("x"), w, graph.bias(10, 0.05 * scales), transB=1)
    model = graph.model(graph.rounded(y, 0.3))
    network = tvmconv.build(model)
    assert in_integers(network) == [True]
    x = np.random.default_rng(5).standard_normal((4, 24)).astype("float32")
    assert np.abs(network(x) - onnxruntimes(model, x)).max() <= 0.3001


def test_bias_is_exact() -> None:
    """With scales that are powers of two all steps are exact, and so is the result; ties go to the even integer."""
    graph = Quantized(X)
    w = graph.weight(*DENSE, scale=np.exp2([-7, -8] * 8), zero_point=np.zeros(16))
    bias = graph.bias(16, np.exp2([-11, -12] * 8))
    y = graph.node("Conv", graph.rounded("x", 2**-4), w, bias)
    model = graph.model(graph.rounded(y, 2**-3))
    np.testing.assert_array_equal(tvmconv.build(model)(IN), onnxruntimes(model, IN))


REASONS = (
    ("its input is not quantized", lambda g: conv(g, "x")),
    ("its weight is not quantized", lambda g: g.conv(g.rounded("x"), DENSE)),
    ("its weight less its zero point is no int8", lambda g: conv(g, dtype="uint8", zero_point=np.full(16, 7))),
    ("its input is of int16", lambda g: conv(g, g.rounded("x", 0.05, 3, "int16"))),
    (
        "its weight has scales of others than its output channels",
        lambda g: g.node(
            "Conv", g.rounded("x"), g.weight(*DENSE, scale=np.linspace(1, 2, 8), zero_point=np.zeros(8), axis=1)
        ),
    ),
)


@pytest.mark.parametrize(("reason", "body"), REASONS, ids=[reason for reason, _ in REASONS])
def test_reason_for_float(reason: str, body: Callable[[Quantized], str]) -> None:
    graph = Quantized(X, opset=21)
    model = graph.model(graph.rounded(body(graph), 0.3))
    network = tvmconv.build(model)
    (layer,) = network.layers
    assert layer.reason.endswith(f"in float32: {reason}")
    assert np.abs(network(IN) - onnxruntimes(model, IN)).max() <= 0.3001


def pooled(g: Quantized, operator: str, **attributes: object) -> str:
    return g.rounded(g.node(operator, g.rounded("x"), **attributes), 0.02, 9)


STAYING = (
    ("max", lambda g: g.rounded(g.node("MaxPool", g.rounded("x"), kernel_shape=[3, 3], pads=[1, 1, 1, 1]))),
    ("average", lambda g: pooled(g, "AveragePool", kernel_shape=[3, 2], strides=[2, 2])),
    (
        "padded-average",
        lambda g: pooled(g, "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    ),
    ("global", lambda g: pooled(g, "GlobalAveragePool")),
    ("sum", lambda g: g.rounded(g.node("Add", g.rounded("x"), g.rounded("x", 0.03, 9)), 0.07, 128)),
    ("concat", lambda g: g.rounded(g.node("Concat", g.rounded("x"), g.rounded("x", 0.03, 9), axis=1), 0.07, 128)),
    ("transposed", lambda g: g.rounded(g.node("Transpose", g.rounded("x"), perm=[0, 2, 3, 1]))),
    ("silu", lambda g: silu(g, g.rounded("x"))),
    ("leaky-relu", lambda g: g.rounded(g.node("LeakyRelu", g.rounded("x"), alpha=0.1), 0.02, 30)),
)


def silu(g: Quantized, y: str) -> str:
    return g.rounded(g.node("Mul", y, g.rounded(g.node("Sigmoid", y), 1 / 256, 0)), 0.03, 9)


@pytest.mark.parametrize(("name", "body"), STAYING, ids=[name for name, _ in STAYING])
def test_between_convolutions(name: str, body: Callable[[Quantized], str]) -> None:
    """Integers stay integers in memory; averages may be in halves, which sums of float32 round either way."""
    graph = Quantized(X)
    model = graph.model(body(graph))
    assert floats_between(model) == []
    ours, expected = tvmconv.build(model)(IN), onnxruntimes(model, IN)
    steps = np.abs(ours - expected) / np.unique(np.abs(np.diff(np.unique(expected)))).min()
    assert steps.max() <= 1.001
    assert (steps > 0.5).mean() <= 0.02


@pytest.mark.parametrize("form", every(2, ["qoperator", "qdq"]))  # the other tests have "qdq"
def test_network_that_onnxruntime_quantizes(form: str, tmp_path: Path) -> None:
    """Residual, depthwise, pools, concatenation, squeeze and excitation: all in integers, and within a step."""
    path, quantized = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    graph = Quantized((1, 3, 24, 20), opset=17)
    y = graph.node("Relu", graph.conv("x", (16, 3, 3, 3), True, strides=[2, 2], pads=[1, 1, 1, 1]))
    y = graph.node("MaxPool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    z = graph.clip(graph.conv(y, (16, 1, 3, 3), True, group=16, pads=[1, 1, 1, 1]), 0, 6)
    z = graph.node("Add", graph.conv(z, (16, 16, 1, 1), True), y)
    y = graph.node("Concat", y, z, axis=1)
    y = graph.conv(y, (32, 32, 3, 3), True)
    y = graph.node("Mul", y, graph.node("Sigmoid", y))
    gate = graph.conv(graph.node("GlobalAveragePool", y), (32, 32, 1, 1), True)
    y = graph.node("Mul", y, graph.node("Sigmoid", gate))
    y = graph.node("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = graph.node("LeakyRelu", graph.conv(y, (16, 32, 1, 1), True), alpha=0.1)
    y = graph.node("Flatten", graph.node("GlobalAveragePool", y))
    y = graph.node("Gemm", y, graph.random(10, 16), graph.random(10), transB=1)
    onnx.save(graph.model(y), path)
    generator = np.random.default_rng(1)
    samples = [{"x": generator.standard_normal((1, 3, 24, 20)).astype("float32")} for _ in range(3)]
    noise = quantize(path, quantized, samples, form)
    assert len(noise) == 8
    assert all(each.ratio > 15 for each in noise)
    network = tvmconv.build(tvmconv.import_model(quantized))
    assert in_integers(network) == [True] * 7
    assert floats_between(quantized) == []
    for sample in samples:
        ours, expected = network(sample["x"]), onnxruntimes(quantized, sample["x"])
        # A tie that is broken the other way is a step of a layer's output.
        assert np.abs(ours - expected).max() <= 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("problem", "body"),
    [
        ("its scale is 0, and has to be", lambda g: g.rounded("x", 0.0)),
        ("its scale is -1, and has to be", lambda g: g.rounded("x", -1.0)),
        ("its scale is nan, and has to be", lambda g: g.rounded("x", np.nan)),
        ("its scale is inf, and has to be", lambda g: g.rounded("x", np.inf)),
        ("it has 3 numbers as its scale, for 8 slices", lambda g: g.rounded("x", [1.0, 2.0, 3.0], [0, 0, 0])),
        ("its zero point is 300, and int8 goes from -128 to 127", lambda g: wrong_zero_point(g)),
        ("its zero point is 3, and has to be 0 for int32", lambda g: biased(g)),
        ("its axis is 7, and its input has 4", lambda g: g.quantize("x", np.ones(8), np.zeros(8), axis=7)),
        ("its scale is blocked", lambda g: g.quantize("x", np.ones((1, 8, 9, 1)), np.zeros((1, 8, 9, 1)))),
    ],
)
def test_bad_parameters(problem: str, body: Callable[[Quantized], str]) -> None:
    graph = Quantized(X, opset=13)
    model = graph.model(body(graph))
    with pytest.raises(UnsupportedModelError, match=problem) as caught:
        import_model(model)
    assert "izeLinear (node '" in str(caught.value)


def wrong_zero_point(g: Quantized) -> str:
    x = g.constant(np.ones(X), "int8")
    return g.node("Add", "x", g.node("DequantizeLinear", x, g.constant(1.0), g.constant(300, "int32")))


def biased(g: Quantized) -> str:
    x = g.constant(np.ones(X), "int32")
    return g.node("Add", "x", g.node("DequantizeLinear", x, g.constant(1.0), g.constant(3, "int32")))


def test_node_of_an_operator_on_integers_is_named() -> None:
    graph = Quantized(X)
    x = graph.quantize("x")
    one, zero = graph.constant(0.05), graph.constant(3, "uint8")
    w, wrong, none = graph.constant(np.ones(DENSE), "int8"), graph.constant(0.0), graph.constant(0, "int8")
    y = graph.node("QLinearConv", x, one, zero, w, wrong, none, one, zero)
    with pytest.raises(UnsupportedModelError, match=r"DequantizeLinear in QLinearConv \(node 'qlinearconv\d+'\)"):
        import_model(graph.model(y))
