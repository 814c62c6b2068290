"""Profiles: the kernels of a call with their times, of static and open networks and of operators."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime.profiling import Recorder, Timed, profile_of

OPEN = ("n<=4", 4, 8, 8)


def two_layers() -> onnx.ModelProto:
    """Return a graph of two equal convolutions with a softmax between them."""
    graph = Graph((1, 4, 8, 8))
    first = graph.conv("x", (4, 4, 3, 3), pads=[1] * 4)
    soft = graph.node("Softmax", first, axis=1)
    return graph.model(graph.conv(soft, (4, 4, 3, 3), pads=[1] * 4))


@pytest.mark.parametrize("shapes", [None, {"x": OPEN}], ids=["static", "open"])
def test_each_kernel_of_a_network_is_told_with_its_layer(shapes: dict[str, tuple[int | str, ...]] | None) -> None:
    network = tvmconv.build(tvmconv.import_model(two_layers(), shapes=shapes))
    x = np.random.default_rng(0).random((1 if shapes is None else 3, 4, 8, 8), "float32")
    before = network(x)
    profile = network.profile(x, repeat=3)
    layers = [layer.convolution.name for layer in network.layers]
    assert [row.name for row in profile.rows if row.kernel == "tvmconv cpu/direct"] == layers
    assert any("softmax" in row.name and row.kernel == "TVM" for row in profile.rows)
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert profile.seconds == pytest.approx(sum(row.seconds for row in profile.rows))
    assert 0 < profile.seconds < 1
    text = str(profile).splitlines()
    assert len(text) == len(profile.rows) + 2
    assert text[-1].startswith(f"{len(profile.rows)} kernels: ")
    np.testing.assert_array_equal(network(x), before)
    np.testing.assert_array_equal(network(x=x), before)


def test_a_network_that_was_loaded_has_the_same_rows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    network = tvmconv.build(tvmconv.import_model(two_layers()))
    network.export(tmp_path / "network.so")
    x = np.ones((1, 4, 8, 8), "float32")
    names = [(row.name, row.kernel) for row in network.profile(x).rows]
    assert [(row.name, row.kernel) for row in tvmconv.load(tmp_path / "network.so").profile(x=x).rows] == names


def test_an_operator_is_one_row() -> None:
    operator = tvmconv.compile(tvmconv.ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3)))
    arrays = {"x": np.ones((1, 4, 12, 12), "float32"), "w": np.ones((4, 1, 3, 3), "float32")}
    for profile in (operator.profile(*arrays.values()), operator.profile(**arrays, repeat=2)):
        (row,) = profile.rows
        assert (row.kernel, row.share) == ("tvmconv cpu/depthwise", 1)
        assert 0 < row.seconds < 1


def test_wrong_arguments() -> None:
    network = tvmconv.build(tvmconv.import_model(two_layers()))
    with pytest.raises(InvalidArgumentError, match="repeat is 0; expected an integer of 1 or more"):
        network.profile(np.ones((1, 4, 8, 8), "float32"), repeat=0)
    with pytest.raises(InvalidArgumentError, match="x is .*; expected the shape of x"):
        network.profile(np.ones((1, 4, 8, 9), "float32"))


def test_functions_that_call_others_are_left_out() -> None:
    recorder = Recorder(lambda: None)
    for name, before in (("outer", 1), ("vm.builtin.match_shape", 1), ("inner", 1), ("inner", 0), ("outer", 0)):
        if name == "inner" and not before:
            time.sleep(0.01)
        assert recorder(None, name, bool(before), None) == 0
    ((name, seconds),) = recorder.timed
    assert name == "inner"
    assert seconds >= 0.01


def test_medians_and_layers_by_order() -> None:
    runs = [[Timed("f", 1.0), Timed("g", 2.0), Timed("f", cost)] for cost in (3.0, 9.0, 5.0)]
    rows = profile_of(runs, {"f": [("first", "k"), ("second", "k")], "g": [("a", "m"), ("b", "m")]}).rows
    assert [(row.name, row.seconds) for row in rows] == [("first", 1), ("a, b", 2), ("second", 5)]
    assert [row.share for row in rows] == [1 / 8, 2 / 8, 5 / 8]


def test_a_call_for_several_layers_has_the_names_of_all() -> None:
    """As one of an attention has those of its two products."""
    (run,) = runs = [[Timed("f", 1.0), Timed("f", 2.0)]]
    layers = {"f": [(name, "k") for name in ("scores", "values", "scores_1", "values_1")]}
    assert [row.name for row in profile_of(runs, layers).rows] == ["scores, values", "scores_1, values_1"]
    assert len(run) == 2


@pytest.mark.parametrize("shapes", [None, {"x": ("n", 2, "s", 8)}], ids=["static", "open"])
def test_products_are_told_with_their_layers(shapes: dict[str, tuple[int | str, ...]] | None) -> None:
    graph = Graph((1, 2, 16, 8))
    turned = graph.node("Transpose", "x", perm=[0, 1, 3, 2])
    scores = graph.node("Softmax", graph.node("MatMul", "x", turned), axis=-1)
    network = tvmconv.build(tvmconv.import_model(graph.model(graph.node("MatMul", scores, "x")), shapes=shapes))
    x = np.random.default_rng(0).random((1, 2, 16, 8), "float32")
    names = [layer.convolution.name for layer in network.layers]
    rows = {row.name: row for row in network.profile(x).rows}
    assert len(names) == 2
    for layer in network.layers:
        assert rows[layer.convolution.name].kernel == layer.kernel
        assert layer.kernel.startswith("tvmconv cpu/")
