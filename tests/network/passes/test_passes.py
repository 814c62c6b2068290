"""The passes of networks: the convolutions that get a kernel of tvmconv, the operators it takes in, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.shared.network_graph import Graph, check_network, normal, operators
from tests.shared.passes import use_kernels
from tests.shared.sparing import every
from tvmconv.network import build, import_model
from tvmconv.network.sites.batch_norm import simplify_batch_norms
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.targets import resolve_target

DEPTHWISE = (8, 1, 3, 3)


@dataclass(frozen=True)
class Case:
    """A graph around a convolution, and its expected workloads."""

    id: str
    body: Callable[[Graph], str | tuple[str, ...]]
    kernel: str
    """The workload it has to become, in words; several in graph order, separated by "; "."""
    left: tuple[str, ...] = ()
    """The operators of Relax that have to stay."""
    opset: int = 17
    x_shape: tuple[int, ...] = field(default=(2, 8, 9, 11))

    def model(self, dtype: str) -> onnx.ModelProto:
        graph = Graph(self.x_shape, dtype, self.opset)
        outputs = self.body(graph)
        return graph.model(*([outputs] if isinstance(outputs, str) else outputs))


def conv(g: Graph, bias: bool = False) -> str:
    return g.conv("x", DEPTHWISE, bias, group=8, pads=[1, 1, 1, 1])


def read_twice(g: Graph) -> tuple[str, str]:
    y = conv(g, bias=True)
    return g.node("Relu", y), g.node("Sigmoid", y)


def norm_read_twice(g: Graph) -> tuple[str, str]:
    y = g.batch_norm(conv(g), 8)
    return g.node("Relu", y), g.node("Sigmoid", y)


def output_and_read(g: Graph) -> tuple[str, str]:
    y = conv(g)
    return y, g.node("Relu", y)


def silu(g: Graph, y: str) -> str:
    return g.node("Mul", g.node("Sigmoid", y), y)


def silu_read_twice(g: Graph, y: str) -> tuple[str, str]:
    gate = g.node("Sigmoid", y)
    return g.node("Mul", gate, y), gate


def nearly_gelu(g: Graph, y: str) -> str:
    half = g.node("Mul", y, g.constant(0.7068))
    return g.node("Mul", y, g.node("Add", g.node("Erf", half), g.constant(1.0)))


def added_to_itself(g: Graph) -> str:
    y = conv(g)
    return g.node("Add", y, y)


SOFTSIGN = ("relax.abs", "relax.add", "relax.divide")
PLAIN = "depthwise 2x8x9x11 -> 8, 3x3 padding 1,1,1,1"
CASES = (
    Case("alone", conv, PLAIN),
    Case("bias", lambda g: conv(g, bias=True), f"{PLAIN} + shift"),
    Case("batch-norm", lambda g: g.batch_norm(conv(g), 8, epsilon=0.1), f"{PLAIN} + scale+shift"),
    Case("two-batch-norms", lambda g: g.batch_norm(g.batch_norm(conv(g), 8), 8), f"{PLAIN} + scale+shift"),
    Case(
        "bias-batch-norm-relu",
        lambda g: g.node("Relu", g.batch_norm(conv(g, bias=True), 8)),
        f"{PLAIN} + scale+shift+relu",
    ),
    Case("relu6-by-attributes", lambda g: g.clip(conv(g), 0, 6), f"{PLAIN} + relu6", opset=9),
    Case("relu6-by-inputs", lambda g: g.clip(conv(g), 0, 6), f"{PLAIN} + relu6"),
    Case("clip-below", lambda g: g.clip(conv(g), -0.5, None), f"{PLAIN} + clip(-0.5,None)"),
    Case("clip-above", lambda g: g.clip(conv(g), None, 0.5), f"{PLAIN} + clip(None,0.5)"),
    Case(
        "clips-behind-clips",
        lambda g: g.node("Relu", g.clip(g.clip(conv(g), -1, 2), -2, 0.5)),
        f"{PLAIN} + clip(0.0,0.5)",
    ),
    Case("clips-that-leave-one-value", lambda g: g.clip(g.clip(conv(g), 1, 2), -1, 0.5), f"{PLAIN} + clip(0.5,0.5)"),
    Case("scalar-added", lambda g: g.node("Add", g.constant(0.25), conv(g)), f"{PLAIN} + shift"),
    Case("channels-added", lambda g: g.node("Add", conv(g), g.random(8, 1, 1)), f"{PLAIN} + shift"),
    Case("scalar-factor", lambda g: g.node("Mul", g.constant(0.25), conv(g, bias=True)), f"{PLAIN} + scale+shift"),
    Case(
        "factors-and-bias",
        lambda g: g.node(
            "Mul", g.node("Add", g.node("Mul", conv(g), g.random(8, 1, 1)), g.constant(2.0)), g.constant(3.0)
        ),
        f"{PLAIN} + scale+shift",
    ),
    Case("rows-added", lambda g: g.node("Add", conv(g), g.random(9, 1)), PLAIN, left=("relax.add",)),
    Case(
        "as-many-columns-as-channels-added",
        lambda g: g.node("Add", conv(g), g.random(8)),
        "depthwise 2x8x9x8 -> 8, 3x3 padding 1,1,1,1",
        left=("relax.add",),
        x_shape=(2, 8, 9, 8),
    ),
    Case("residual", lambda g: g.node("Relu", g.node("Add", conv(g), "x")), f"{PLAIN} + residual+relu"),
    Case(
        "residual-between-bias-and-bias",
        lambda g: g.node("Add", g.node("Add", "x", conv(g, bias=True)), g.random(8, 1, 1)),
        f"{PLAIN} + shift+residual",
    ),
    Case(
        "batch-norm-behind-residual",
        lambda g: g.batch_norm(g.node("Add", conv(g), "x"), 8),
        f"{PLAIN} + residual",
        left=("relax.nn.batch_norm",),
    ),
    Case(
        "factor-behind-residual",
        lambda g: g.node("Mul", g.node("Add", conv(g), "x"), g.constant(0.5)),
        f"{PLAIN} + residual",
        left=("relax.multiply",),
    ),
    Case("two-residuals", lambda g: g.node("Sum", conv(g), "x", "x"), f"{PLAIN} + residual", left=("relax.add",)),
    Case("added-to-itself", added_to_itself, PLAIN, left=("relax.add",)),
    Case(
        "residual-that-is-broadcast",
        lambda g: g.node("Add", conv(g), g.node("ReduceProd", "x", axes=[2])),
        PLAIN,
        left=("relax.prod", "relax.add"),
    ),
    Case(
        "residual-behind-relu",
        lambda g: g.node("Add", g.node("Relu", conv(g)), "x"),
        f"{PLAIN} + relu",
        left=("relax.add",),
    ),
    Case(
        "convolutions-added",
        lambda g: g.node("Relu", g.node("Sum", g.batch_norm(conv(g), 8), conv(g, bias=True))),
        f"{PLAIN} + scale+shift+residual+relu; {PLAIN} + shift",
    ),
    Case(
        "dense",
        lambda g: g.node("Relu", g.batch_norm(g.conv("x", (5, 8, 3, 3), strides=[2, 1]), 5)),
        "conv2d 2x8x9x11 -> 5, 3x3 stride 2x1 + scale+shift+relu",
    ),
    Case(
        "grouped",
        lambda g: g.conv(g.conv("x", (12, 2, 3, 3), group=4), (6, 6, 1, 1), True, group=2),
        "conv2d 2x8x9x11 -> 12, 3x3 groups 4; conv2d 2x12x7x9 -> 6, 1x1 groups 2 + shift",
    ),
    Case(
        "1d",
        lambda g: g.node("Relu", g.batch_norm(g.conv("x", (6, 8, 3), pads=[2, 1], strides=[2], dilations=[3]), 6)),
        "conv2d 2x8x1x30 -> 6, 1x3 stride 1x2 dilation 1x3 padding 0,2,0,1 + scale+shift+relu",
        left=("relax.reshape", "relax.reshape"),
        x_shape=(2, 8, 30),
    ),
    Case(
        "1d-depthwise-padded-before-residual",
        lambda g: g.node(
            "Add", "x", g.conv(g.node("Pad", "x", g.constant([0, 0, 1, 0, 0, 1], "int64")), (8, 1, 3), True, group=8)
        ),
        "depthwise 2x8x1x30 -> 8, 1x3 padding 0,1,0,1 + shift+residual",
        left=("relax.reshape", "relax.reshape", "relax.reshape"),
        x_shape=(2, 8, 30),
    ),
    Case(
        "linear",
        lambda g: g.node("Relu", g.node("Gemm", g.node("Flatten", "x"), g.random(8, 6, scale=0.3), g.random(6))),
        "conv2d 2x8x1x1 -> 6, 1x1 + shift+relu",
        left=("relax.reshape", "relax.reshape", "relax.reshape"),
        x_shape=(2, 8, 1, 1),
    ),
    Case(
        "linear-transposed-residual",
        lambda g: g.node("Add", "x", g.node("Gemm", "x", g.random(8, 8, scale=0.3), transB=1)),
        "conv2d 3x8x1x1 -> 8, 1x1 + residual",
        left=("relax.reshape", "relax.reshape", "relax.reshape"),
        x_shape=(3, 8),
    ),
    Case(
        "products-of-other-ranks",
        lambda g: g.conv(g.node("MatMul", "x", g.random(11, 9, scale=0.3)), DEPTHWISE, group=8),
        "depthwise 2x8x9x9 -> 8, 3x3",
        left=("relax.matmul",),
    ),
    Case(
        "computed-weight",
        lambda g: g.node("Conv", "x", g.node("Relu", g.node("ReduceMean", "x", axes=[0], keepdims=1))),
        "conv2d 2x8x9x11 -> 1, 9x11",
        left=("relax.mean", "relax.nn.relu"),
    ),
    Case(
        "batch-norm-behind-relu",
        lambda g: g.batch_norm(g.node("Relu", conv(g)), 8),
        f"{PLAIN} + relu",
        left=("relax.nn.batch_norm",),
    ),
    Case("other-activation", lambda g: g.node("Softsign", conv(g)), PLAIN, left=SOFTSIGN),
    Case(
        "scaled-before-activation",
        lambda g: g.node("Tanh", g.node("Mul", conv(g), g.constant(0.5))),
        f"{PLAIN} + scale+tanh",
    ),
    Case("silu-of-residual", lambda g: silu(g, g.node("Add", conv(g), "x")), f"{PLAIN} + residual+silu"),
    Case("silu-read-twice", lambda g: silu_read_twice(g, conv(g)), PLAIN, left=("relax.sigmoid", "relax.multiply")),
    Case(
        "nearly-gelu",
        lambda g: nearly_gelu(g, conv(g)),
        PLAIN,
        left=("relax.multiply", "relax.erf", "relax.add", "relax.multiply"),
    ),
    Case(
        "steep-hardsigmoid-is-a-clip",
        lambda g: g.node("HardSigmoid", conv(g), alpha=0.2, beta=0.5),
        f"{PLAIN} + scale+shift+clip(0.0,1.0)",
    ),
    Case("read-twice", read_twice, f"{PLAIN} + shift", left=("relax.nn.relu", "relax.sigmoid")),
    Case("norm-read-twice", norm_read_twice, f"{PLAIN} + scale+shift", left=("relax.nn.relu", "relax.sigmoid")),
    Case("output-and-read", output_and_read, PLAIN, left=("relax.nn.relu",)),
    Case(
        "same-upper",
        lambda g: g.conv("x", DEPTHWISE, group=8, auto_pad="SAME_UPPER", strides=[2, 2]),
        "depthwise 2x8x10x12 -> 8, 3x3 stride 2x2 padding 0,0,1,1",
        x_shape=(2, 8, 10, 12),
    ),
    Case(
        "padded-before",
        lambda g: g.conv(g.node("Pad", "x", g.constant([0, 0, 2, 0, 0, 0, 1, 3], "int64")), DEPTHWISE, group=8),
        "depthwise 2x8x9x11 -> 8, 3x3 padding 2,0,1,3",
    ),
    Case(
        "padded-by-ones",
        lambda g: g.conv(
            g.node("Pad", "x", g.constant([0, 0, 1, 1, 0, 0, 1, 1], "int64"), g.constant(1.0)), DEPTHWISE, group=8
        ),
        "depthwise 2x8x11x13 -> 8, 3x3",
        left=("relax.nn.pad",),
    ),
    Case(
        "multiplier-dilation",
        lambda g: g.conv("x", (16, 1, 3, 2), True, group=8, dilations=[2, 3], pads=[2, 1, 0, 3]),
        "depthwise 2x8x9x11 -> 16, 3x2 dilation 2x3 padding 2,1,0,3 + shift",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_kernel_takes_in(case: Case) -> None:
    imported = import_model(case.model("float32"))
    kernels = case.kernel.split("; ")
    assert [found.description for found in imported.convolutions()] == kernels
    mod, _ = use_kernels(imported.mod, resolve_target("llvm"))
    assert sorted(operators(mod)) == sorted(["relax.call_tir"] * len(kernels) + [*case.left])


@pytest.mark.parametrize("case", every(2, CASES), ids=lambda case: case.id)
def test_numbers(case: Case) -> None:
    """They have the errors of a few dozen roundings of numbers not much larger than the result."""
    check_network(build(case.model("float32")), case.model("float64"), normal(*case.x_shape))


@pytest.mark.parametrize("narrow", NARROW)
def test_narrow_types(narrow: str) -> None:
    def model(dtype: str) -> onnx.ModelProto:
        graph = Graph((1, 8, 9, 11), dtype)
        return graph.model(graph.node("Relu", graph.batch_norm(conv(graph, bias=True), 8)))

    imported = import_model(model(narrow))
    assert [str(found.workload) for found in imported.convolutions()] == [
        f"depthwise 1x8x9x11 -> 8, 3x3 padding 1,1,1,1 {narrow} + scale+shift+relu"
    ]
    x = np.random.default_rng(3).standard_normal((1, 8, 9, 11)).astype(narrow)
    (expected,) = ReferenceEvaluator(model("float64")).run(None, {"x": x.astype("float64")})
    y = build(imported)(x)
    assert y.dtype == narrow
    np.testing.assert_allclose(y.astype("float64"), expected, rtol=2 * STORAGE_TYPES[narrow].unit, atol=1e-5)


def test_batch_norm_with_parameters_from_outside_stays() -> None:
    graph = Graph((2, 8, 9, 11))
    mean = graph.node("ReduceMean", "x", axes=[0, 2, 3], keepdims=0)
    ones = graph.constant(np.ones(8))
    y = graph.node("BatchNormalization", conv(graph), ones, ones, mean, ones)
    imported = import_model(graph.model(y))
    assert [str(found.workload) for found in imported.convolutions()] == [PLAIN]
    assert "relax.nn.batch_norm" in operators(simplify_batch_norms(imported.mod))
