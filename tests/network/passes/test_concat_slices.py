"""Concatenations of kernels' outputs on a CPU: those that kernels store in a concat buffer, and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
import pytest
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax

from tests.shared.network_graph import Graph, check_network, normal
from tests.shared.passes import use_kernels
from tests.shared.sparing import sparing
from tvmconv import dispatch
from tvmconv.network import build, import_model
from tvmconv.network.graph.graph import blocks_of, operator_name
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.targets import resolve_target


@dataclass(frozen=True)
class Case:
    """A graph with concatenations, and the number of them that are removed or stay."""

    id: str
    body: Callable[[Graph], str | tuple[str, ...]]
    in_place: int
    """The number of kernels that write into a tensor that another one began."""
    left: int = 0
    """The number of concatenations that have to stay."""
    x_shape: tuple[int, ...] = (1, 8, 9, 11)
    precision: str = "strict"
    """The precision, where "strict" leaves out Winograd's convolution, which takes long to compile."""

    def model(self, dtype: str) -> onnx.ModelProto:
        graph = Graph(self.x_shape, dtype)
        outputs = self.body(graph)
        return graph.model(*([outputs] if isinstance(outputs, str) else outputs))


def pointwise(g: Graph, x: str = "x", inputs: int = 8) -> str:
    return g.conv(x, (5, inputs, 1, 1), bias=True)


def direct(g: Graph, x: str = "x", inputs: int = 8) -> str:
    return g.node("Relu", g.conv(x, (6, inputs, 3, 3), pads=[1, 1, 1, 1]))


def depthwise(g: Graph) -> str:
    return g.conv("x", (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1])


def joined(g: Graph, *parts: str, axis: int = 1) -> str:
    return g.node("Concat", *parts, axis=axis)


def inception(g: Graph) -> str:
    """Build kernels with other tensors between them, which may not use the memory of the half-written one."""
    first = pointwise(g)
    second = direct(g, pointwise(g), 5)
    third = direct(g, direct(g, pointwise(g), 5), 6)
    fourth = pointwise(g, g.node("MaxPool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    return direct(g, direct(g, joined(g, first, second, third, fourth), 22), 6)


def in_blocks(g: Graph) -> str:
    """Build kernels of which those on machines with vectors of 8 hand tensors to each other in blocks of channels."""
    x = g.node("Relu", g.conv("x", (32, 8, 3, 3), pads=[1, 1, 1, 1]))
    parts = [g.conv(x, (32, 32, 1, 1)), g.conv(x, (64, 32, 3, 3), pads=[1, 1, 1, 1]), g.conv(x, (32, 32, 1, 1))]
    return direct(g, joined(g, *parts), 128)


def two_of_a_kind(g: Graph) -> str:
    """Build kernels of one workload, at the same offset in two tensors and at different ones in each."""
    y = joined(g, pointwise(g), pointwise(g))
    return g.node("Add", y, joined(g, pointwise(g), pointwise(g)))


def inner_with_an_input(g: Graph) -> str:
    return joined(g, joined(g, pointwise(g), direct(g)), "x")


def read_twice(g: Graph) -> str:
    part = pointwise(g)
    return joined(g, part, direct(g, part, 5))


def concatenation_read_twice(g: Graph) -> tuple[str, str]:
    inner = joined(g, pointwise(g), direct(g))
    return joined(g, inner, pointwise(g)), g.node("Sigmoid", inner)


def part_that_is_an_output(g: Graph) -> tuple[str, str]:
    part = pointwise(g)
    return part, joined(g, part, direct(g))


def twice(g: Graph) -> str:
    part = pointwise(g)
    return joined(g, part, part)


CASES = (
    Case("the-output", lambda g: joined(g, pointwise(g), direct(g)), 1),
    Case("three-kinds", lambda g: g.node("Sigmoid", joined(g, depthwise(g), pointwise(g), direct(g))), 2),
    Case("other-order", lambda g: joined(g, *reversed([pointwise(g), depthwise(g), direct(g)])), 2),
    Case("negative-axis", lambda g: joined(g, pointwise(g), direct(g), axis=-3), 1),
    Case("large-batch", lambda g: joined(g, pointwise(g), direct(g), depthwise(g)), 2, x_shape=(3, 8, 9, 11)),
    Case("inception", inception, 3),
    Case("two-of-a-kind", two_of_a_kind, 2),
    Case("in-blocks", in_blocks, 2, precision="float32"),
    Case("residual", lambda g: joined(g, pointwise(g), g.node("Add", depthwise(g), "x")), 1),
    Case("of-concatenations", lambda g: joined(g, joined(g, pointwise(g), direct(g)), joined(g, depthwise(g))), 2),
    Case("inner-with-an-input", inner_with_an_input, 1, left=1),
    Case("concatenation-read-twice", concatenation_read_twice, 1, left=1),
    Case("read-twice", read_twice, 0, left=1),
    Case("part-that-is-an-output", part_that_is_an_output, 0, left=1),
    Case("the-same-twice", twice, 0, left=1),
    Case("input", lambda g: joined(g, "x", pointwise(g)), 0, left=1),
    Case("pooling", lambda g: joined(g, pointwise(g), g.node("MaxPool", "x", kernel_shape=[1, 1])), 0, left=1),
    Case("other-axis", lambda g: joined(g, pointwise(g), pointwise(g), axis=2), 0, left=1),
    Case(
        "1d",
        lambda g: joined(g, *(g.conv("x", (6, 8, 3), pads=[1, 1]) for _ in range(2))),
        0,
        left=1,
        x_shape=(1, 8, 30),
    ),
)


def calls(mod: tvm.IRModule) -> list[relax.Call]:
    return [value for block in blocks_of(mod) for value in block.values.values() if isinstance(value, relax.Call)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_concatenation(case: Case) -> None:
    mod, _ = use_kernels(import_model(case.model("float32")).mod, resolve_target("llvm"), precision=case.precision)
    names = Counter(map(operator_name, calls(mod)))
    assert (names["relax.call_tir_inplace"], names["relax.concat"]) == (case.in_place, case.left)
    called = {call.args[0].name_hint for call in calls(mod) if operator_name(call).startswith("relax.call_tir")}
    assert {var.name_hint for var in mod.functions} == {"main", *called}


ALIKE = ("negative-axis", "other-order", "large-batch", "of-concatenations")
"""Cases whose graph becomes one of those that others have, too."""


# Where no kernel stores in a concat buffer there is less to get wrong.
@pytest.mark.parametrize(
    "case",
    sparing(CASES, lambda index: CASES[index].in_place > 0 and CASES[index].id not in ALIKE),
    ids=lambda case: case.id,
)
def test_numbers(case: Case) -> None:
    network = build(case.model("float32"), precision=case.precision)
    for _ in range(2):
        check_network(network, case.model("float64"), normal(*case.x_shape))


@pytest.mark.parametrize("algorithm", ["direct", "im2win", "pointwise"])
def test_templates(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every template can store in a concat buffer; the one that a workload gets alone depends on the machine."""
    monkeypatch.setattr("tvmconv.dispatch.ranges.select", partial(dispatch.select, algorithm=algorithm))
    case = Case("", lambda g: joined(g, pointwise(g), g.conv("x", (6, 8, 1, 1))), 1, x_shape=(2, 8, 9, 11))
    network = build(case.model("float32"))
    assert [layer.kernel for layer in network.layers] == [f"tvmconv cpu/{algorithm}"] * 2
    assert "concatenate" not in network._executable.as_text()
    check_network(network, case.model("float64"), normal(*case.x_shape))


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types(dtype: str) -> None:
    case = Case(dtype, lambda g: joined(g, pointwise(g), direct(g), depthwise(g)), 2, x_shape=(2, 8, 9, 11))
    network = build(case.model(dtype))
    x = np.random.default_rng(3).standard_normal(case.x_shape).astype(dtype)
    (expected,) = ReferenceEvaluator(case.model("float64")).run(None, {"x": x.astype("float64")})
    y = network(x)
    assert "concatenate" not in network._executable.as_text()
    assert y.dtype == dtype
    unit = STORAGE_TYPES[dtype].unit
    np.testing.assert_allclose(y.astype("float64"), expected, rtol=2 * unit, atol=2 * unit)


def test_open_sizes() -> None:
    """The channels of a concatenation are known, and so is where the parts begin, in planes of any size."""
    graph = Graph(("n", 8, "h", "w"))
    model = graph.model(joined(graph, pointwise(graph), direct(graph)))
    mod, _ = use_kernels(import_model(model).mod, resolve_target("llvm"), precision="strict")
    names = Counter(map(operator_name, calls(mod)))
    assert (names["relax.call_tir_inplace"], names["relax.concat"]) == (1, 0)
    network = build(model, precision="strict")
    for shape in ((1, 8, 9, 11), (3, 8, 7, 20)):
        check_network(network, model, normal(*shape))


def test_sparse_kernels_are_left_alone() -> None:
    graph = Graph((1, 8, 9, 11))
    model = graph.model(joined(graph, pointwise(graph), direct(graph)))
    network = build(model, sparse="always", precision="strict")
    assert "concatenate" in network._executable.as_text()
    x = normal(1, 8, 9, 11)
    np.testing.assert_allclose(network(x), build(model, precision="strict")(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_pixels_of_whole_stores_on_a_gpu(target: str) -> None:
    """The parts have 5 and 6 channels, which on a GPU are no whole stores in NHWC."""
    graph = Graph((1, 8, 9, 11))
    text = build(graph.model(joined(graph, pointwise(graph), direct(graph))), target)._executable.as_text()
    assert ("concatenate" in text) == (target == "cuda")
