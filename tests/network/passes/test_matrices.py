"""Linear layers of tensors of several axes: their kernels, what these take in, and the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.shared.network_graph import Graph, check_network, normal
from tvmconv.network import build, import_model
from tvmconv.network.graph.convolutions import ASSUMED_SIDE
from tvmconv.network.passes.early.matrices import with_rows_in_matrices
from tvmconv.problem import ASSUMED_BATCH
from tvmconv.targets import resolve_target

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})

ROWS = (2, 5, 24)


def linear(g: Graph, x: str, inputs: int, outputs: int) -> str:
    """Return a layer as PyTorch exports it: its bias is the first operand of the addition."""
    return g.node("Add", g.random(outputs), g.node("MatMul", x, g.random(inputs, outputs, scale=inputs**-0.5)))


def gelu(g: Graph, x: str) -> str:
    erf = g.node("Erf", g.node("Div", x, g.constant(2**0.5)))
    return g.node("Mul", g.node("Mul", x, g.node("Add", erf, g.constant(1.0))), g.constant(0.5))


def gelu_by_tanh(g: Graph, x: str) -> str:
    """Return GELU by tanh as torch exports it for opsets that have no operator for it, from a model's own formula."""
    cube = g.node("Mul", g.node("Pow", x, g.constant(3.0)), g.constant(0.044715))
    tanh = g.node("Tanh", g.node("Mul", g.node("Add", x, cube), g.constant((2 / np.pi) ** 0.5)))
    return g.node("Mul", g.node("Mul", x, g.constant(0.5)), g.node("Add", tanh, g.constant(1.0)))


def norm(g: Graph, x: str) -> str:
    return g.node("LayerNormalization", x, g.random(24), g.random(24), axis=-1)


def block(g: Graph) -> str:
    return norm(g, g.node("Add", "x", linear(g, gelu(g, linear(g, norm(g, "x"), 24, 40)), 40, 24)))


def sums_behind(g: Graph) -> tuple[str, str]:
    y = g.node("Relu", linear(g, "x", 24, 16))
    return g.node("Softmax", y, axis=1), g.node("Transpose", g.node("Mul", y, g.random(1, 1, 16)), perm=[1, 0, 2])


def output_and_read(g: Graph) -> tuple[str, str]:
    y = linear(g, "x", 24, 16)
    return y, g.node("Sigmoid", y)


def output_alone(g: Graph) -> str:
    """The addition of the last bias is the output itself, and no variable of the block."""
    return linear(g, gelu_by_tanh(g, linear(g, "x", 24, 40)), 40, 16)


def output_without_bias(g: Graph) -> str:
    return g.node("MatMul", g.node("Relu", "x"), g.random(24, 16))


def along_rows(g: Graph) -> str:
    """An addition of a number for each row, and one that makes the tensor larger, are none of a layer's."""
    y = g.node("Add", linear(g, "x", 24, 16), g.random(5, 1))
    return g.node("Add", y, g.random(3, 1, 5, 16))


def reshaped(g: Graph) -> str:
    y = g.node("Reshape", linear(g, "x", 24, 16), g.constant([10, 16], "int64"))
    y = g.node("Reshape", g.node("Relu", linear(g, y, 16, 8)), g.constant([5, 2, 8], "int64"))
    return g.node("Reshape", linear(g, y, 8, 12), g.constant([4, 30], "int64"))


def one_channel(g: Graph) -> str:
    """The weight of a layer of one channel has the shape of a vector."""
    y = linear(g, g.node("Relu", linear(g, "x", 24, 1)), 1, 24)
    return g.node("Reshape", linear(g, g.node("Add", y, "x"), 24, 24), g.constant([10, 24], "int64"))


CASES: dict[str, tuple[Callable[[Graph], str | tuple[str, ...]], Sequence[str]]] = {
    "block": (
        block,
        ("conv2d 10x24x1x1 -> 40, 1x1 + shift+gelu", "conv2d 10x40x1x1 -> 24, 1x1 + shift+residual"),
    ),
    "sums-behind": (sums_behind, ("conv2d 10x24x1x1 -> 16, 1x1 + shift+relu",)),
    "output-and-read": (output_and_read, ("conv2d 10x24x1x1 -> 16, 1x1 + shift",)),
    "output-alone": (
        output_alone,
        ("conv2d 10x24x1x1 -> 40, 1x1 + shift+gelu_tanh", "conv2d 10x40x1x1 -> 16, 1x1 + shift"),
    ),
    "output-without-bias": (output_without_bias, ("conv2d 10x24x1x1 -> 16, 1x1",)),
    "along-rows": (along_rows, ("conv2d 10x24x1x1 -> 16, 1x1 + shift",)),
    "one-channel": (
        one_channel,
        (
            "conv2d 10x24x1x1 -> 1, 1x1 + shift+relu",
            "depthwise 10x1x1x1 -> 24, 1x1 + shift+residual",
            "conv2d 10x24x1x1 -> 24, 1x1 + shift",
        ),
    ),
    "reshaped": (
        reshaped,
        tuple(
            f"conv2d 10x{c}x1x1 -> {k}, 1x1 + shift{rest}"
            for c, k, rest in ((24, 16, ""), (16, 8, "+relu"), (8, 12, ""))
        ),
    ),
}


def outputs(model: object) -> list[str]:
    assert isinstance(model, (str, tuple))
    return [model] if isinstance(model, str) else list(model)


@pytest.mark.parametrize("name", CASES)
def test_layers_and_what_is_behind_them_are_one_kernel(name: str) -> None:
    body, kernels = CASES[name]
    graph, reference = Graph(ROWS), Graph(ROWS, "float64")
    network = build(graph.model(*outputs(body(graph))))
    assert [layer.convolution.description for layer in network.layers] == list(kernels)
    check_network(network, reference.model(*outputs(body(reference))), normal(*ROWS), 1e-5)


def halves(g: Graph) -> str:
    return linear(g, g.node("Reshape", "x", g.constant([-1, 48], "int64")), 48, 16)


def patches(g: Graph) -> str:
    """Return a layer of the pixels of an image, of which there are none in one of 1x1."""
    y = g.node("Transpose", g.conv("x", (24, 3, 4, 4), strides=[4, 4]), perm=[0, 2, 3, 1])
    return linear(g, gelu(g, y), 24, 16)


@dataclass(frozen=True)
class Open:
    """A network of open sizes, the rows that its kernels are chosen for, and sizes to call it with."""

    id: str
    body: Callable[[Graph], str]
    shape: tuple[int | str, ...]
    rows: int
    calls: tuple[tuple[int, ...], ...]


OPEN = (
    Open("batch", block, ("N", 5, 24), 5 * ASSUMED_BATCH, ((1, 5, 24), (3, 5, 24), (40, 5, 24))),
    Open("length", block, ("N", "L", 24), ASSUMED_BATCH * ASSUMED_SIDE, ((1, 1, 24), (3, 7, 24), (1, 40, 24))),
    Open("images", patches, ("N", 3, "H", "W"), (ASSUMED_SIDE // 4) ** 2, ((1, 3, 4, 4), (2, 3, 23, 16))),
    Open("half-of-a-batch", halves, ("N", 24), 1, ((2, 24), (14, 24))),
)


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.id)
def test_any_number_of_rows(case: Open) -> None:
    graph, reference = Graph(case.shape), Graph(case.shape, "float64")
    network = build(graph.model(case.body(graph)))
    layers = [layer.convolution for layer in network.layers if layer.convolution.layout == "NC"]
    assert {(each.workload.batch, each.open_sizes) for each in layers if each.workload} == {(case.rows, ("batch",))}
    model = reference.model(case.body(reference))
    for shape in case.calls:
        check_network(network, model, normal(*shape), 1e-5)


def test_a_matrix_that_becomes_a_number() -> None:
    graph = Graph((1, 8))
    number = graph.node("Reshape", graph.node("MatMul", "x", graph.random(8, 1)), graph.constant([], "int64"))
    model = graph.model(graph.node("Exp", number))
    check_network(build(model), model, normal(1, 8), 1e-5)


def images_in_nhwc(g: Graph, activation: Callable[[Graph, str], str] = gelu) -> str:
    """Return a block whose layers read images with the channels last, between others with the channels second."""
    y = g.node("Conv", "x", g.random(24, 1, 3, 3), group=24, pads=[1, 1, 1, 1])
    y = norm(g, g.node("Transpose", y, perm=[0, 2, 3, 1]))
    y = g.node("Transpose", linear(g, activation(g, linear(g, y, 24, 40)), 40, 24), perm=[0, 3, 1, 2])
    y = g.node("Add", "x", g.node("Mul", g.random(24, 1, 1), y))
    return g.node("Conv", g.node("Relu", y), g.random(16, 24, 1, 1))


def images_at_the_end(g: Graph) -> str:
    """The output is the sum with a residual, in NCHW, of what a layer makes in NHWC."""
    y = linear(g, g.node("Transpose", "x", perm=[0, 2, 3, 1]), 24, 24)
    return g.node("Add", g.node("Transpose", y, perm=[0, 3, 1, 2]), "x")


def test_images_on_a_gpu_are_added_by_the_layer_that_makes_them() -> None:
    graph = Graph((2, 24, 6, 5))
    network = build(graph.model(images_in_nhwc(graph, gelu_by_tanh)), SM_90)
    kernels = [layer.convolution.description for layer in network.layers]
    assert kernels[1:3] == [
        "conv2d 60x24x1x1 -> 40, 1x1 + shift+gelu_tanh",
        "conv2d 60x40x1x1 -> 24, 1x1 + scale+shift+residual+relu",
    ]


@pytest.mark.parametrize("body", [images_in_nhwc, images_at_the_end])
def test_images_that_are_added_keep_their_numbers(body: Callable[[Graph], str]) -> None:
    graph, reference = Graph((2, 24, 6, 5)), Graph((2, 24, 6, 5), "float64")
    mod = with_rows_in_matrices(import_model(graph.model(body(graph))).mod, SM_90)
    machine = relax.VirtualMachine(relax.build(relax.transform.LegalizeOps()(mod), "llvm"), tvm.cpu())
    model = reference.model(body(reference))
    check_network(lambda x: machine["main"](tvm.runtime.tensor(x)).numpy(), model, normal(2, 24, 6, 5), 1e-5)
