"""Sizes that are known only when a network runs: names and bounds that users give, and what kernels can index."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.shared.huge_arrays import huge
from tvmconv import load
from tvmconv.network import Network, OpenSize, build, import_model
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import MAX_ELEMENTS
from tvmconv.schedules import cuda

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.shared.network_graph import Graph  # noqa: E402


def image(batch: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, channels, 8, 9)).astype("float32")


def summing() -> onnx.ModelProto:
    """Return a model of two inputs, a convolution of "x" added to "z"."""
    graph = Graph((1, 3, 8, 9))
    graph.inputs.append(graph._value("z", ("batch", 4, 8, 9)))
    return graph.model(graph.node("Add", graph.conv("x", (4, 3, 3, 3), pads=[1, 1, 1, 1]), "z"))


def refused(network: Network, *inputs: np.ndarray) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        network(*inputs)
    return str(caught.value)


def test_sizes_are_named_and_bounded() -> None:
    """A name in one input is that of another, which the model has left open by itself."""
    model = summing()
    imported = import_model(model, shapes={"x": ("2<=batch<=5", 3, 8, 9)})
    assert [str(spec) for spec in imported.inputs] == ["x: float32 (batch, 3, 8, 9)", "z: float32 (batch, 4, 8, 9)"]
    assert imported.open_sizes == (OpenSize("batch", 2, 5),)
    network = build(imported)
    assert network.open_sizes == imported.open_sizes
    assert {layer.kernel for layer in network.layers} == {"tvmconv cpu/direct"}
    for batch in (2, 5):
        x, z = image(batch), image(batch, 4)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "z": z})
        np.testing.assert_allclose(network(x, z), expected, rtol=0, atol=1e-5)
    assert refused(network, image(2), image(3, 4)) == (
        "z is (3, 4, 8, 9); expected the shape of z: float32 (batch, 4, 8, 9), where batch is 2 as in x"
    )
    for batch in (1, 6):
        assert refused(network, image(batch), image(batch, 4)).endswith("(batch, 3, 8, 9), with batch of 2 to 5")
    assert refused(network, image(0), image(0, 4)).endswith("(batch, 3, 8, 9), open sizes of at least 1")


def test_bounds_of_one_name_hold_together() -> None:
    imported = import_model(summing(), shapes={"x": ("n<=8", 3, 8, 9), "z": (" 3 <= n ", 4, 8, 9)})
    assert imported.open_sizes == (OpenSize("n", 3, 8),)


def test_batch_that_kernels_cannot_index_is_refused(tmp_path: Path) -> None:
    """The limit is that of the layer with the largest tensor for each image, padding and rounding included."""
    graph = Graph(("n", 3, 64, 64))
    y = graph.conv(graph.conv("x", (4, 3, 1, 1)), (32, 4, 3, 3), pads=[1, 1, 1, 1])
    model = graph.model(graph.node("GlobalAveragePool", graph.conv(y, (8, 32, 1, 1))))
    network = build(model, precision="strict")  # without Winograd's convolution, which takes long to compile
    (size,) = network.open_sizes
    assert size.most == MAX_ELEMENTS // (32 * 64 * 64)
    assert refused(network, huge(tmp_path, (size.most + 1, 3, 64, 64))).endswith(
        f"with n of 1 to {size.most}: with more, the output of conv2d nx4x64x64 -> 32, 3x3 padding 1,1,1,1 "
        f"has over {MAX_ELEMENTS} elements"
    )


def test_sizes_without_names_are_named_by_their_axes() -> None:
    model = summing()
    for value, axis in ((model.graph.input[0], 0), (model.graph.input[1], 3)):
        value.type.tensor_type.shape.dim[axis].Clear()
    imported = import_model(model, shapes={"z": ("x_0", 4, 8, 9)})
    assert [size.name for size in imported.open_sizes] == ["x_0"]
    assert {spec.shape[0] for spec in imported.inputs} == {"x_0"}


def test_limit_of_a_batch_that_is_computed() -> None:
    """A layer whose batch is a multiple of the input's limits that accordingly."""
    graph = Graph(("n", 16, 64, 64))
    split = graph.node("Reshape", "x", graph.constant([-1, 2, 64, 64], "int64"))
    (size,) = build(graph.model(graph.conv(split, (4, 2, 1, 1)))).open_sizes
    assert size.most == MAX_ELEMENTS // (8 * 4 * 64 * 64)


def test_bounds_are_exported(tmp_path: Path) -> None:
    network = build(import_model(summing(), shapes={"x": ("batch<=5", 3, 8, 9)}))
    network.export(tmp_path / "open.so")
    loaded = load(tmp_path / "open.so")
    assert isinstance(loaded, Network)
    assert loaded.open_sizes == (OpenSize("batch", 1, 5),)
    np.testing.assert_array_equal(loaded(image(3), image(3, 4)), network(image(3), image(3, 4)))
    assert "with batch of 1 to 5" in refused(loaded, image(6), image(6, 4))


def test_layers_left_to_tvm_for_their_sizes_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning has the share of the FLOPs and the way out; what nobody can change is not warned of."""
    graph = Graph(("n", 4, 8, 8, 8))
    volumes = graph.model(graph.conv("x", (4, 4, 1, 1, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(volumes)
    for template in (cuda.direct.template, cuda.im2win.template, cuda.tensor.template):
        monkeypatch.setattr(template, "OPEN_SIZES", ())
    with pytest.warns(UserWarning, match=r"^1 of 1 convolutions, .* on TVM's own loops, .*: .* give it as `sh"):
        build(_open_height(), {"kind": "cuda", "arch": "sm_90"})


def test_frames_of_signals_have_kernels() -> None:
    """Kernels are chosen for signals that are long enough for a window of frames, however many samples these have."""
    graph = Graph((1, 1, "samples"))
    frames = graph.conv("x", (16, 1, 320), strides=[160])
    network = build(graph.model(graph.conv(frames, (8, 16, 3))))
    assert [layer.kernel for layer in network.layers] == ["tvmconv cpu/direct"] * 2
    assert network(np.zeros((1, 1, 1600), "float32")).shape == (1, 8, 7)


def _open_height() -> onnx.ModelProto:
    graph = Graph((1, 4, "height", 8))
    return graph.model(graph.conv("x", (4, 4, 3, 3)))
