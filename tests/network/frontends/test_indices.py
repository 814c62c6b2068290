"""Indices and pads of ONNX models: those that fit give what ONNX Runtime gives, and others are errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv.network import build, import_model
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError

Array = np.ndarray[Any, Any]


def expected(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def numbers(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


@dataclass(frozen=True)
class Case:
    """An operator with indices "i" into "x", which has 5 rows and 4 columns."""

    operator: str
    fitting: Any
    """Indices in range, some of them negative."""
    beyond: tuple[tuple[Any, int], ...]
    """Indices one of which is out of range, and this one."""
    length: int
    """The length of the axis that these leave, as the error tells it."""
    updates: Sequence[int] | None = None
    """The shape of the updates of a scatter."""
    axis: int | None = None

    def model(self, *shape: int | str) -> onnx.ModelProto:
        graph = Graph(shape)
        sizes = np.shape(self.fitting)
        graph.inputs.append(helper.make_tensor_value_info("i", onnx.TensorProto.INT64, sizes))
        more = [] if self.updates is None else [graph.random(*self.updates)]
        attributes = {} if self.axis is None else {"axis": self.axis}
        return graph.model(graph.node(self.operator, "x", "i", *more, **attributes))

    def __str__(self) -> str:
        return self.operator if self.axis is None else f"{self.operator}-axis-{self.axis}"


CASES = (
    Case("Gather", [4, -5, 0], (([5, 0, 0], 5), ([0, -6, 0], -6)), 5, axis=0),
    Case("Gather", [[3, -4]], (([[4, 0]], 4), ([[0, -5]], -5)), 4, axis=1),
    Case("GatherElements", [[4, -5, 0, 1]], (([[0, 0, 5, 0]], 5), ([[-6, 0, 0, 0]], -6)), 5, axis=0),
    Case("GatherND", [[4, -4], [-5, 3]], (([[0, 4], [0, 0]], 4), ([[5, 0], [0, 0]], 5), ([[0, 0], [0, -5]], -5)), 4),
    Case("ScatterElements", [[4, -5, 0, 1]], (([[0, 0, 5, 0]], 5), ([[-6, 0, 0, 0]], -6)), 5, (1, 4), 0),
    Case("ScatterND", [[4], [-5]], (([[5], [0]], 5), ([[0], [-6]], -6)), 5, (2, 4)),
)


@pytest.mark.parametrize("shape", [(5, 4), ("rows", 4)], ids=["known", "open"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_indices(case: Case, shape: tuple[int | str, ...]) -> None:
    model = case.model(*shape)
    network = build(model)
    x, fitting = numbers(5, 4), np.array(case.fitting)
    np.testing.assert_array_equal(network(x=x, i=fitting), expected(model, {"x": x, "i": fitting}))
    for each, index in case.beyond:
        told = rf"{case.operator} \(node '{case.operator.lower()}0'\) needs indices of ax[ie]s .* elements"
        with pytest.raises(InvalidArgumentError, match=told) as caught:
            network(x=x, i=np.array(each))
        message = str(caught.value)
        assert f"index is {index};" in message
        assert (f"{case.length} elements" if shape == (5, 4) else "rows is 5") in message


def test_indices_beyond_a_smaller_array() -> None:
    """The same indices fit one call, and not the next."""
    network = build(CASES[0].model("rows", 4))
    indices = np.array([4, 0, 0])
    np.testing.assert_array_equal(network(x=numbers(5, 4), i=indices), numbers(5, 4)[indices])
    with pytest.raises(InvalidArgumentError, match=r"index is 4; .*, of rows elements; rows is 4"):
        network(x=numbers(4, 4), i=indices)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_checks_nothing_else_is_read(case: Case) -> None:
    """Indices out of range are the first or the last of their axis."""
    model = case.model(5, 4)
    network = build(model, check_indices=False)
    lengths = np.array([5, 4]) if case.operator == "GatherND" else np.array([case.length])
    for each, _ in case.beyond:
        nearest = np.clip(np.array(each), -lengths, lengths - 1)
        x = numbers(5, 4)
        np.testing.assert_array_equal(network(x=x, i=np.array(each)), expected(model, {"x": x, "i": nearest}))


def test_constant_indices_are_compared_when_the_model_is_imported() -> None:
    for index, rows in ((5, 5), (-6, 5)):
        graph = Graph((rows, 4))
        model = graph.model(graph.node("Gather", "x", graph.constant([index], "int64")))
        with pytest.raises(UnsupportedModelError, match=rf"Gather \(node 'gather0'\).*of 5 elements; they are {index}"):
            import_model(model)
    graph = Graph(("rows", 4))
    network = build(graph.model(graph.node("Gather", "x", graph.constant([3], "int64"))))
    np.testing.assert_array_equal(network(numbers(4, 4)), numbers(4, 4)[3:])
    with pytest.raises(InvalidArgumentError, match=r"3 < rows: Gather \(node 'gather0'\) needs indices"):
        network(numbers(3, 4))


@pytest.mark.parametrize(("opset", "k"), [(9, 2), (10, 3), (17, 5)])
def test_largest_elements(opset: int, k: int) -> None:
    """The number of elements is an attribute up to opset 9, and an operand since."""
    graph = Graph((5, 4), opset=opset)
    operands, attributes = ([], {"k": k}) if opset < 10 else ([graph.constant([k], "int64")], {})
    values = graph.node("TopK", "x", *operands, axis=0, **attributes)
    graph.nodes[-1].output.append("indices")
    np.testing.assert_array_equal(build(graph.model(values))(numbers(5, 4)), -np.sort(-numbers(5, 4), axis=0)[:k])


def test_more_elements_than_there_are() -> None:
    graph = Graph((5, 4))
    values = graph.node("TopK", "x", graph.constant([6], "int64"), axis=0)
    graph.nodes[-1].output.append("indices")
    with pytest.raises(UnsupportedModelError, match=r"TopK \(node 'topk0'\): it needs a k from 1 to the 5 elements"):
        import_model(graph.model(values))


@pytest.mark.parametrize("count", [0, 1, 7])
def test_any_number_of_chosen_elements(count: int) -> None:
    """What follows an operator whose result has as many rows as numbers decide is right for none as well."""
    graph = Graph((5, 4))
    positions = graph.node("NonZero", graph.node("Greater", "x", graph.constant(0.0)))
    rows = graph.node("Transpose", positions, perm=[1, 0])
    chosen = graph.node("Unsqueeze", graph.node("GatherND", "x", rows), graph.constant([1], "int64"))
    product = graph.node("Softmax", graph.node("MatMul", chosen, graph.random(1, 3)), axis=1)
    model = graph.model(graph.node("Concat", product, graph.random(2, 3), axis=0))
    x = np.full((5, 4), -1, "float32")
    x.reshape(-1)[2 : 2 + count] = np.arange(1, count + 1)
    np.testing.assert_allclose(build(model)(x), expected(model, {"x": x}), rtol=0, atol=1e-6)


def test_sums_of_elements_that_may_be_none_are_refused() -> None:
    graph = Graph((5, 4))
    positions = graph.node("Cast", graph.node("NonZero", "x"), to=onnx.TensorProto.FLOAT)
    with pytest.raises(UnsupportedModelError, match=r"ReduceSum \(node .*needs elements along axis 1"):
        import_model(graph.model(graph.node("ReduceSum", positions, graph.constant([1], "int64"))))


PADS: dict[str, tuple[int, Callable[[Array, int], Array]]] = {
    "reflect": (4, lambda x, n: np.pad(x, ((0, 0), (n, 0)), "reflect")),
    "wrap": (12, lambda x, n: np.pad(x, ((0, 0), (n, 0)), "wrap")),
    "edge": (9, lambda x, n: np.pad(x, ((0, 0), (n, 0)), "edge")),
}
"""Modes of Pad, each with a padding of 5 columns, for a reflection the largest one, and its result."""


def padded(mode: str, width: int | str, pads: int) -> onnx.ModelProto:
    graph = Graph((3, width), opset=19)
    return graph.model(graph.node("Pad", "x", graph.constant([0, pads, 0, 0], "int64"), mode=mode))


@pytest.mark.parametrize("mode", PADS)
@pytest.mark.parametrize("width", [5, "w"], ids=["known", "open"])
def test_pads_as_large_as_they_may_be(mode: str, width: int | str) -> None:
    most, function = PADS[mode]
    np.testing.assert_array_equal(build(padded(mode, width, most))(numbers(3, 5)), function(numbers(3, 5), most))


def test_a_reflection_of_more_than_there_is() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Pad \(node 'pad0'\): it needs pads below the size"):
        import_model(padded("reflect", 5, 5))
    with pytest.raises(InvalidArgumentError, match=r"'w': 5}; expected sizes for which .*Pad \(node 'pad0'\) needs"):
        build(padded("reflect", "w", 5))(numbers(3, 5))


def test_a_library_without_checks(tmp_path: Any) -> None:
    """The command builds what `check_indices` builds."""
    from click.testing import CliRunner

    from tvmconv.cli import main

    file, library = tmp_path / "model.onnx", tmp_path / "model.so"
    onnx.save(CASES[0].model(5, 4), file)
    built = CliRunner().invoke(main, ["build", str(file), "-o", str(library), "--no-check-indices"])
    assert built.exit_code == 0, built.output
    x, indices = numbers(5, 4), np.array([7, 0, -9])
    np.testing.assert_array_equal(tvmconv.load(library)(x=x, i=indices), x[[4, 0, 0]])
    refused = CliRunner().invoke(main, ["run", str(library), "--no-check-indices"])
    assert refused.exit_code != 0
    assert "none for a library" in refused.output
