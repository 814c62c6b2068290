"""Concatenations and slices of channels in NHWC on a GPU: kernels store and read them in larger tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import pytest
import tvm

from tests.open_sizes.batches import network_of_twins
from tests.shared.network_graph import Graph, check_network, normal
from tests.shared.passes import use_kernels
from tests.shared.sparing import sparing
from tvmconv import dispatch
from tvmconv.network import Model, import_model
from tvmconv.network.graph.graph import blocks_of, operator_name
from tvmconv.network.graph.layers import Layer
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target

GPU = resolve_target({"kind": "cuda", "arch": "sm_90a"})

X_SHAPE = (2, 16, 9, 10)


@dataclass(frozen=True)
class Case:
    """A graph between two convolutions, with the numbers of its kernels that store in a concat buffer, and of moves."""

    id: str
    body: Callable[[Graph, str], str]
    in_place: int
    left: int = 0

    def model(self, dtype: str) -> onnx.ModelProto:
        graph = Graph(X_SHAPE, dtype)
        y = self.body(graph, graph.node("Relu", conv(graph, "x")))
        return graph.model(graph.node("GlobalAveragePool", y))


def conv(g: Graph, x: str, out: int = 16, inputs: int = 16, size: int = 1) -> str:
    return g.conv(x, (out, inputs, size, size), True, pads=[size // 2] * 4)


def depthwise(g: Graph, x: str, channels: int = 16) -> str:
    return g.conv(x, (channels, 1, 3, 3), True, group=channels, pads=[1] * 4)


def joined(g: Graph, *parts: str, axis: int = 1) -> str:
    return g.node("Concat", *parts, axis=axis)


def fire(g: Graph, x: str) -> str:
    y = joined(g, conv(g, x), g.node("Relu", conv(g, x, 24, size=3)))
    return conv(g, y, 16, 40)


def nested(g: Graph, x: str) -> str:
    inner = joined(g, conv(g, x, 8), conv(g, x, 20))
    return conv(g, joined(g, conv(g, x, 12), inner, conv(g, x, size=3)), 16, 56)


def residual(g: Graph, x: str) -> str:
    return conv(g, joined(g, conv(g, x), g.node("Add", conv(g, x), x)), 16, 32)


def part(g: Graph, x: str, begin: int, end: int) -> str:
    starts, ends, axes = (g.constant([number], "int64") for number in (begin, end, 1))
    return g.node("Slice", x, starts, ends, axes)


def unit(g: Graph, x: str, begin: int = 8, end: int = 16, kept: int = 8) -> str:
    """Compute with the last channels of a tensor, which nothing else reads, and join the first with the result."""
    y = conv(g, x)
    z = conv(g, depthwise(g, part(g, y, begin, end), end - begin), 16 - kept, end - begin)
    return conv(g, joined(g, part(g, y, 0, kept), z))


def read_later(g: Graph, x: str) -> str:
    """Read channels of a tensor after others have been stored over them."""
    y = conv(g, x)
    z = conv(g, depthwise(g, part(g, y, 8, 16), 8), 8, 8)
    late = depthwise(g, part(g, y, 8, 16), 8)
    return joined(g, conv(g, joined(g, part(g, y, 0, 8), z)), late)


def read_by_another(g: Graph, x: str) -> str:
    """Compute with channels of a tensor by element, which TVM may do as late as others read the result."""
    y = conv(g, x)
    by_element = g.node("Sigmoid", part(g, y, 8, 16))
    z = conv(g, depthwise(g, part(g, y, 8, 16), 8), 8, 8)
    return g.node("Add", conv(g, joined(g, part(g, y, 0, 8), z), 8), by_element)


def read_whole(g: Graph, x: str) -> str:
    y = conv(g, x)
    z = conv(g, depthwise(g, part(g, y, 8, 16), 8), 8, 8)
    return g.node("Add", conv(g, joined(g, part(g, y, 0, 8), z)), y)


def upsampled(g: Graph, x: str, size: int = 2, step: int = 2, outputs: int = 8) -> str:
    """Make larger planes with a transposed convolution, which is one of pixels where its windows do not overlap."""
    w = g.random(16, outputs, size, size, scale=0.25)
    return g.node("ConvTranspose", x, w, g.random(outputs), strides=[step, step])


def level(g: Graph, x: str, skipped: str = "MaxPool", is_last: bool = False) -> str:
    """Join what is pooled with what a level below makes of it, as a U-Net does."""
    y = g.node("Relu", conv(g, x))
    below = g.node("Relu", conv(g, g.node(skipped, y, kernel_shape=[1, 2], strides=[1, 2]), size=3))
    above = g.node("ConvTranspose", below, g.random(16, 24, 1, 2, scale=0.25), g.random(24), strides=[1, 2])
    return conv(g, joined(g, *((above, y) if is_last else (y, above))), 16, 40)


def pooled_later(g: Graph, x: str) -> str:
    """Pool a tensor after another one has been stored behind it."""
    y = g.node("Relu", conv(g, x))
    z = conv(g, joined(g, y, conv(g, x)), 16, 32)
    return joined(g, z, g.node("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4))


def pooled_by_another(g: Graph, x: str) -> str:
    y = g.node("Relu", conv(g, x))
    return conv(g, joined(g, y, conv(g, g.node("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4))), 16, 32)


def twice(g: Graph, x: str) -> str:
    y = conv(g, x)
    return conv(g, joined(g, y, y), 16, 32)


def read_twice(g: Graph, x: str) -> str:
    y = conv(g, x)
    return g.node("Add", conv(g, joined(g, y, conv(g, x)), 16, 32), y)


CASES = (
    Case("fire", fire, 1),
    Case("nested", nested, 3),
    Case("residual", residual, 1),
    Case("unit", unit, 1),
    Case("unit-of-twelve", lambda g, x: unit(g, x, 4, 16, 4), 1),
    Case("overlapping", lambda g, x: unit(g, x, 4, 12, 8), 1),
    Case("upsampled", lambda g, x: conv(g, upsampled(g, x), 16, 8), 0),
    Case("upsampled-by-three", lambda g, x: conv(g, joined(g, *(upsampled(g, x, 3, 3, k) for k in (12, 4)))), 1),
    Case("upsampled-and-cut", lambda g, x: conv(g, upsampled(g, x, 3), 16, 8), 0, 1),
    Case("level", level, 1, 1),
    Case("level-in-the-mean", lambda g, x: level(g, x, "AveragePool"), 1, 1),
    Case("pooled", pooled_by_another, 1, 1),
    Case("level-behind", lambda g, x: level(g, x, is_last=True), 0, 1),
    Case("pooled-later", pooled_later, 0, 2),
    Case("from-the-middle", lambda g, x: conv(g, joined(g, part(g, conv(g, x), 8, 16), conv(g, x, 8))), 0, 2),
    Case("slice-of-no-stores", lambda g, x: unit(g, x, 6, 16, 6), 0, 3),
    Case("read-later", read_later, 0, 3),
    Case("read-by-another", read_by_another, 0, 3),
    Case("read-whole", read_whole, 0, 2),
    Case("read-twice", read_twice, 0, 1),
    Case("the-same-twice", twice, 0, 1),
    Case("pooled-part", lambda g, x: conv(g, joined(g, conv(g, x), g.node("Sigmoid", x)), 16, 32), 0, 1),
    Case("depthwise-part", lambda g, x: conv(g, joined(g, conv(g, x), depthwise(g, x)), 16, 32), 0, 1),
)

MOVES = ("relax.concat", "relax.strided_slice")


pytestmark = pytest.mark.usefixtures("nhwc_is_faster")


@cache
def with_kernels(case: Case) -> tuple[Model, tvm.IRModule, tuple[Layer, ...]]:
    """Return a case's model, its module with kernels, and their layers, which several tests look at."""
    source = import_model(case.model("float32"))
    return source, *use_kernels(source.mod, GPU)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_moves(case: Case) -> None:
    _, mod, _ = with_kernels(case)
    names = Counter(operator_name(value) for block in blocks_of(mod) for value in block.values.values())
    assert (names["relax.call_tir_inplace"], sum(names[each] for each in MOVES)) == (case.in_place, case.left)


# Where no kernel stores in a concat buffer there is less to get wrong.
@pytest.mark.parametrize("case", sparing(CASES, lambda index: CASES[index].in_place > 0), ids=lambda case: case.id)
def test_numbers_of_serial_twins(case: Case) -> None:
    check_numbers(case)


def check_numbers(case: Case) -> list[str]:
    """Check what serial twins of a network's kernels compute, and return the names of these."""
    source, mod, layers = with_kernels(case)
    network = network_of_twins(source, mod, layers)
    for _ in range(2):
        check_network(network, case.model("float64"), normal(*X_SHAPE), 1e-5)
    return [layer.kernel for layer in layers]


def skipping(g: Graph, x: str) -> str:
    """Join what goes through two layers with what goes around them, as U-Net does, and add to another."""
    x = conv(g, x, 32)
    y = g.node("Relu", conv(g, x, 32, 32, size=3))
    y = g.node("Relu", g.node("Add", conv(g, y, 32, 32, size=3), x))
    return conv(g, joined(g, y, conv(g, x, 8, 32, size=3)), 16, 40, size=3)


def test_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of outputs are stored in larger tensors, too, behind the addition of a residual."""

    def chosen(problem: Problem, target: tvm.target.Target, *others: Any) -> dispatch.Selection:
        takes = "winograd" in dispatch.algorithms_for(problem, target)
        return dispatch.select(problem, target, *others, algorithm="winograd" if takes else "auto")

    monkeypatch.setattr("tvmconv.dispatch.ranges.select", chosen)
    case = Case("skipping", skipping, 1)
    test_moves(case)
    assert Counter(check_numbers(case)) == {"tvmconv cuda/tensor": 2, "tvmconv cuda/winograd": 4}


def test_an_input_in_nhwc_stays_as_it_is() -> None:
    """Its channels are joined with others elsewhere: its memory is the caller's."""
    graph = Graph((2, 9, 10, 16))
    x = graph.node("Transpose", "x", perm=[0, 3, 1, 2])
    y = conv(graph, joined(graph, part(graph, x, 0, 8), conv(graph, part(graph, x, 8, 16), 8, 8)))
    mod, _ = use_kernels(import_model(graph.model(graph.node("GlobalAveragePool", y))).mod, GPU)
    names = Counter(operator_name(value) for block in blocks_of(mod) for value in block.values.values())
    assert (names["relax.call_tir_inplace"], names["relax.concat"]) == (0, 1)


def test_half_precision_needs_wider_parts() -> None:
    """A store has 8 channels in half precision, so 20 are no whole stores."""
    graph = Graph(X_SHAPE, "float16")
    y = conv(graph, joined(graph, conv(graph, "x", 16), conv(graph, "x", 20)), 16, 36)
    mod, _ = use_kernels(import_model(graph.model(graph.node("GlobalAveragePool", y))).mod, GPU)
    names = Counter(operator_name(value) for block in blocks_of(mod) for value in block.values.values())
    assert (names["relax.call_tir_inplace"], names["relax.concat"]) == (0, 1)
