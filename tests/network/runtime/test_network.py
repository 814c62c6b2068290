"""Built networks: right on every kind of array, with a true list of their kernels, and the same from a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv.network import Network, build
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.targets import cuda, has_gpu

SHUFFLENET = Path(onnx.__file__).parent / "backend/test/data/light/light_shufflenet.onnx"


@pytest.mark.release
def test_shufflenet_against_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    zoo = pytest.importorskip("zoo")
    example = zoo.light("shufflenet")
    network = tvmconv.build(example.model)
    kernels = Counter(layer.kernel for layer in network.layers)
    dense = kernels["tvmconv cpu/direct"] + kernels["tvmconv cpu/pointwise"]
    assert (dense, kernels["tvmconv cpu/depthwise"], kernels.total()) == (34, 16, 50)
    assert repr(network).endswith("for llvm, 50 of 50 convolutions by tvmconv>")
    example.check(network(example.x))


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Return a model with two inputs, a dense and a depthwise convolution, and two outputs."""
    graph = Graph((1, 4, 9, 11))
    graph.inputs.append(graph._value("bias/8", (8, 1, 1)))
    y = graph.node("Add", graph.conv("x", (8, 4, 1, 1)), "bias/8")
    z = graph.node("Relu", graph.batch_norm(graph.conv(y, (8, 1, 3, 3), group=8), 8))
    return graph.model(y, z)


@pytest.fixture(scope="module")
def network(model: onnx.ModelProto) -> Network:
    return build(model)


@pytest.fixture(scope="module")
def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((1, 4, 9, 11)).astype("float32"), rng.standard_normal((8, 1, 1)).astype("float32")


@pytest.fixture(scope="module")
def expected(model: onnx.ModelProto, inputs: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, {"x": inputs[0], "bias/8": inputs[1]})


def check(outputs: Any, expected: list[np.ndarray]) -> None:
    assert isinstance(outputs, tuple)
    for y, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(np.asarray(y), reference, rtol=0, atol=4e-6 * np.abs(reference).max())


def test_a_network_says_what_it_is(network: Network) -> None:
    assert repr(network).startswith("<tvmconv.Network ")
    assert repr(network).endswith("for llvm, 2 of 2 convolutions by tvmconv>")


def test_inputs_by_order_and_by_name(network: Network, inputs: Any, expected: list[np.ndarray]) -> None:
    x, bias = inputs
    check(network(x, bias), expected)
    check(network(x, **{"bias/8": bias}), expected)
    check(network(**{"bias/8": bias, "x": x}), expected)


def test_kinds_of_arrays(network: Network, inputs: Any, expected: list[np.ndarray]) -> None:
    x, bias = inputs
    assert all(type(y) is np.ndarray for y in network(x, bias))
    outputs = network(tvm.runtime.tensor(x), bias)
    assert all(isinstance(y, tvm.runtime.Tensor) for y in outputs)
    check(tuple(y.numpy() for y in outputs), expected)
    torch = pytest.importorskip("torch")
    outputs = network(torch.from_numpy(x), torch.from_numpy(bias))
    assert all(isinstance(y, torch.Tensor) for y in outputs)
    check(outputs, expected)
    check(network(x, torch.from_numpy(bias)), expected)


@pytest.mark.parametrize("exported", [False, True], ids=["built", "exported"])
def test_outputs_share_their_memory_with_nothing(exported: bool, tmp_path: Path) -> None:
    """They share none with the input, with each other, or with the network's weights."""
    torch = pytest.importorskip("torch")
    graph = Graph((1, 2, 4, 4))
    weight = graph.constant(np.eye(4))
    product = graph.node("MatMul", "x", weight)
    shape = graph.constant([2, 16], "int64")
    network = build(
        graph.model(product, graph.node("Reshape", product, shape), weight, graph.node("Reshape", "x", shape), "x")
    )
    if exported:
        network.export(tmp_path / "network.so")
        network = tvmconv.load(tmp_path / "network.so")
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    for kind in (lambda: x, lambda: x.numpy().copy(), lambda: tvm.runtime.tensor(x.numpy())):
        given = kind()
        for output in network(given):
            torch.from_dlpack(output).zero_()
        results = [torch.from_dlpack(output) for output in network(given)]
        for result, expected in zip(results, (x, x, torch.eye(4), x, x), strict=True):
            assert torch.equal(result.reshape(expected.shape), expected)


def test_results_are_kept_while_others_are_computed() -> None:
    """A result has memory for itself as long as it is used, and is writable."""
    graph = Graph((3, 1000))
    network = build(graph.model(graph.node("Add", "x", "x")))
    results = [network(np.full((3, 1000), number, "float32")) for number in range(5)]
    results[0][...] = 7
    assert [float(result.min()) for result in results] == [7, 2, 4, 6, 8]
    assert [float(result.max()) for result in results] == [7, 2, 4, 6, 8]


def test_inputs_that_are_alike_are_checked_once_and_others_each_time() -> None:
    network = build((graph := Graph((2, "n"))).model(graph.node("Relu", "x")))
    for columns in (3, 5, 3):
        np.testing.assert_array_equal(network(np.ones((2, columns), "float32")), 1)
        with pytest.raises(InvalidArgumentError, match=r"x is \(3, 3\); expected the shape of x: float32 \(2, n\)"):
            network(np.ones((3, 3), "float32"))
        with pytest.raises(InvalidArgumentError, match="x is 'float64'; expected the dtype of x"):
            network(np.ones((2, columns)))


def test_a_network_without_inputs() -> None:
    graph = Graph((1,))
    graph.inputs.clear()
    y = build(graph.model(graph.node("Relu", graph.constant([-1.0, 2.0]))))()
    assert isinstance(y, np.ndarray)
    assert y.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("offset", [4, 16, 36])
def test_unaligned_and_strided_arrays(offset: int, network: Network, inputs: Any, expected: list[np.ndarray]) -> None:
    x, bias = inputs
    room = np.zeros(x.nbytes + 128, "uint8")
    start = -room.ctypes.data % 64 + offset
    unaligned = room[start : start + x.nbytes].view("float32").reshape(x.shape)
    unaligned[...] = x
    check(network(unaligned, bias), expected)
    strided = np.asfortranarray(x)
    strided.flags.writeable = False
    check(network(strided, bias), expected)


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        (("x",), {}, "inputs is '1 arrays'; expected 2 inputs: x: float32 .1, 4, 9, 11., bias/8: float32"),
        (("x", "b", "b"), {}, "inputs is '3 arrays'"),
        (("x", "b"), {"x": "x"}, "input is 'x'; expected .* each once"),
        (("x",), {"y": "b"}, "input is 'y'"),
        (("short", "b"), {}, r"x is \(1, 4, 9, 10\); expected the shape of x: float32 \(1, 4, 9, 11\)"),
        (("flat", "b"), {}, r"x is \(396,\)"),
        (("double", "b"), {}, "x is 'float64'; expected the dtype of x: float32"),
        (("list", "b"), {}, "x is 'list'; expected an array"),
    ],
)
def test_wrong_inputs(given: Any, named: Any, message: str, network: Network, inputs: Any) -> None:
    x, bias = inputs
    arrays = {"x": x, "b": bias, "short": x[..., :10], "flat": x.ravel(), "double": x.astype("float64"), "list": [1]}
    with pytest.raises(InvalidArgumentError, match=message):
        network(*(arrays[name] for name in given), **{name: arrays[array] for name, array in named.items()})


def test_sizes_that_are_known_only_when_it_runs() -> None:
    graph = Graph(("batch", 8, "height", 9))
    network = build(graph.model(graph.node("Relu", graph.conv("x", (8, 1, 3, 3), group=8))))
    assert [layer.kernel for layer in network.layers] == ["tvmconv cpu/depthwise"]
    assert [network(np.ones(shape, "float32")).shape for shape in ((1, 8, 5, 9), (3, 8, 7, 9))] == [
        (1, 8, 3, 7), (3, 8, 5, 7)
    ]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=r"the shape of x: float32 \(batch, 8, height, 9\)"):
        network(np.ones((1, 8, 5, 8), "float32"))


def test_layers(model: onnx.ModelProto) -> None:
    dense, depthwise = build(model, {"kind": "llvm", "mcpu": "znver5"}).layers  # the first depends on the machine
    for layer, kernel in ((dense, "tvmconv cpu/pointwise"), (depthwise, "tvmconv cpu/depthwise")):
        assert (layer.kernel, layer.reason) == (kernel, "default configuration")
    assert str(dense.convolution.workload) == "conv2d 1x4x9x11 -> 8, 1x1"
    assert str(depthwise.convolution.workload) == "depthwise 1x8x9x11 -> 8, 3x3 + scale+shift+relu"
    assert depthwise.config


def test_file_holds_the_same_network(network: Network, inputs: Any, expected: list[np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "network.so"
    network.export(path)
    loaded = tvmconv.load(path)
    assert isinstance(loaded, Network)
    for field in ("inputs", "outputs", "layers"):
        assert getattr(loaded, field) == getattr(network, field)
    assert str(loaded.target) == str(network.target)
    check(loaded(*inputs), expected)
    with pytest.raises(InvalidArgumentError, match="copy the file"):
        loaded.export(tmp_path / "copy.so")


def test_a_network_knows_what_its_factors_are_rounded_to(model: onnx.ModelProto, tmp_path: Path) -> None:
    network = build(model, precision="tf32")
    network.export(tmp_path / "network.so")
    assert tvmconv.load(tmp_path / "network.so").multiplied == network.multiplied == {"tf32"}
    assert build(model, precision="strict").multiplied == {"float32"}


def test_cuda_is_built_without_a_gpu_and_run_with_one(
    model: onnx.ModelProto, inputs: Any, expected: list[np.ndarray]
) -> None:
    network = build(model, {"kind": "cuda", "arch": "sm_80"} if not has_gpu() else "cuda")
    assert [layer.kernel for layer in network.layers] == ["tvmconv cuda/direct", "tvmconv cuda/depthwise"]
    ours = [source for source in cuda.sources(network._executable.mod) if "tvmconv_" in source]
    assert len(ours) == 2
    if has_gpu():
        check(network(*inputs), expected)
    else:
        with pytest.raises(NoDeviceError):
            network(*inputs)
