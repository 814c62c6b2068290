"""Networks whose weights are compiled into their kernels: the choice of weights, and the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tvmconv as library
from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels
from tvmconv.checking.pruning import pruned
from tvmconv.network.passes.convolutions import kernels as called
from tvmconv.network.passes.convolutions import sparse_kernels
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import storage
from tvmconv.targets import cuda, resolve_target


def network() -> Graph:
    """Return four convolutions: two with batch norm, one of them depthwise in another branch, then a residual."""
    graph = Graph((2, 4, 8, 8))
    first = graph.node("Relu", graph.batch_norm(graph.conv("x", (8, 4, 3, 3), pads=[1, 1, 1, 1]), 8))
    second = graph.conv(first, (8, 8, 1, 1), bias=True)
    third = graph.batch_norm(graph.conv(first, (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1]), 8)
    graph.conv(graph.clip(graph.node("Add", second, third), -1.0, 1.0), (4, 8, 3, 3), strides=[2, 2])
    return graph


def model(sparsity: dict[tuple[int, ...], float]) -> onnx.ModelProto:
    """Return the network with so many zeros in the weights of these shapes."""
    graph = network()
    for number, tensor in enumerate(graph.weights):
        array = numpy_helper.to_array(tensor)
        if array.shape in sparsity:
            graph.weights[number] = numpy_helper.from_array(pruned(array, sparsity[array.shape]), tensor.name)
    return graph.model(graph.nodes[-1].output[0])


AVX512 = {"kind": "llvm", "mcpu": "znver5"}
"""A fixed target, since the choice of a dense convolution's template depends on the machine."""

MIXED = {(8, 4, 3, 3): 0.9, (8, 8, 1, 1): 0.5, (8, 1, 3, 3): 0.75, (4, 8, 3, 3): 1.0}
X = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype("float32")


def kernels(built: library.Network) -> list[str]:
    return [layer.kernel.removeprefix("tvmconv cpu/") for layer in built.layers]


def test_many_zeros_make_a_sparse_kernel() -> None:
    source = model(MIXED)
    dense, auto, every = (library.build(source, sparse=mode) for mode in ("never", "auto", "always"))
    for mode, expected in (
        ("never", ["direct", "pointwise", "depthwise", "direct"]),
        ("auto", ["sparse", "pointwise", "sparse", "sparse"]),
    ):
        _, layers = use_kernels(library.import_model(source).mod, resolve_target(AVX512), mode)
        assert [layer.kernel.removeprefix("tvmconv cpu/") for layer in layers] == expected
    assert kernels(every) == ["sparse"] * 4
    assert auto.layers[0].reason == "89.9% of the weight is zero; default configuration for 10.1% non-zeros"
    assert auto.layers[0].config is not None
    for built in (auto, every):
        assert np.allclose(built(X), dense(X), atol=1e-5)


def test_batch_norm_is_in_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    build_kernel = called.build_kernel

    def recording(problem: Any, *others: Any) -> Any:
        taken.append(problem.workload)
        return build_kernel(problem, *others)

    monkeypatch.setattr(called, "build_kernel", recording)
    library.build(model(MIXED))
    assert [str(workload.epilogue) for workload in taken] == ["shift+relu", "shift", "none"]


def test_equal_weights_share_a_kernel() -> None:
    graph = Graph((1, 4, 8, 8))
    weight = graph.constant(pruned(np.random.default_rng(1).standard_normal((4, 4, 3, 3)), 0.8))
    y = "x"
    for _ in range(3):
        y = graph.node("Conv", y, weight, pads=[1, 1, 1, 1])
    mod = library.import_model(graph.model(y)).mod
    lowered, layers = use_kernels(mod, resolve_target("llvm"))
    assert [layer.kernel for layer in layers] == ["tvmconv cpu/sparse"] * 3
    assert len(lowered.attrs["external_mods"]) == 1


def test_dense_weights_and_too_many_weights_stay_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sparse" not in kernels(library.build(model({})))
    monkeypatch.setattr(sparse_kernels, "MAX_NONZEROS", 20)
    assert kernels(library.build(model(MIXED), AVX512)) == ["direct", "pointwise", "sparse", "sparse"]


@pytest.mark.parametrize(("size", "pays"), [(1, False), (7, False), (14, True), (56, True)])
def test_few_pixels_do_not_pay_in_a_large_network_on_a_cpu(size: int, pays: bool) -> None:
    """In a large network the code of a layer comes from memory in each call, in a small one from a cache."""
    workload = library.ConvWorkload.conv2d((1, 64, size, size), (64, 64, 3, 3), padding=1)
    large = library.ConvWorkload.conv2d((1, 2048, 1, 1), (4096, 2048, 1, 1))
    weight = pruned(np.random.default_rng(0).standard_normal(workload.w_shape), 0.9)
    for others, expected in (([large], pays), ([], True)):
        found = sparse_kernels.SparseKernels(resolve_target("llvm"), "auto", [workload, *others])
        assert (found.choose("conv", workload, weight, {}) is not None) == expected


@pytest.mark.parametrize(
    ("dtype", "precision", "channels", "outputs", "pays"),
    [
        ("float32", "strict", 256, 512, True),
        ("float32", "strict", 1024, 256, False),
        ("float32", "float32", 256, 1024, False),
        ("float32", "float32", 256, 64, True),
        ("float16", "float32", 256, 64, False),
    ],
)
def test_models_of_both_decide_on_a_gpu(dtype: str, precision: str, channels: int, outputs: int, pays: bool) -> None:
    """The dense kernel is the one that the network would have: where the precision lets it, one for tensor cores."""
    workload = library.ConvWorkload.conv2d((1, channels, 14, 14), (outputs, channels, 1, 1), dtype=dtype)
    weight = pruned(np.random.default_rng(0).standard_normal(workload.w_shape), 0.9)
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    found = sparse_kernels.SparseKernels(target, "auto", [workload], precision)
    assert (found.choose("conv", workload, weight, {}) is not None) == pays


@pytest.mark.parametrize("channels", [32, 960])
def test_filters_of_channels_do_not_pay_on_a_gpu(channels: int) -> None:
    """Each channel has code of its own: that of 32 takes as long as the dense kernel, that of 960 far longer."""
    workload = library.ConvWorkload.depthwise((1, channels, 7, 7), (channels, 1, 3, 3))
    weight = pruned(np.random.default_rng(0).standard_normal(workload.w_shape), 0.9)
    found = sparse_kernels.SparseKernels(resolve_target({"kind": "cuda", "arch": "sm_90"}), "auto", [workload])
    assert found.choose("conv", workload, weight, {}) is None


@pytest.mark.parametrize(("channels", "size", "outputs", "pays"), [(256, 56, 64, True), (256, 14, 512, False)])
def test_it_has_to_pay_at_any_batch_on_a_gpu(channels: int, size: int, outputs: int, pays: bool) -> None:
    """Both do for one image, and with a kernel of their own for 64; one kernel for all does not always."""
    weight = pruned(np.random.default_rng(0).standard_normal((outputs, channels, 1, 1)), 0.9)
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    for batch, opened, expected in ((1, (), True), (64, (), True), (1, ("batch",), pays)):
        workload = library.ConvWorkload.conv2d((batch, channels, size, size), weight.shape)
        found = sparse_kernels.SparseKernels(target, "auto", [workload], "strict")
        assert (found.choose("conv", workload, weight, {}, opened) is not None) == expected


@pytest.mark.parametrize(("channels", "outputs", "kernel", "pays"), [(64, 64, 3, False), (256, 64, 1, True)])
def test_much_code_does_not_pay_in_a_large_network_on_a_gpu(
    channels: int, outputs: int, kernel: int, pays: bool
) -> None:
    """In ResNet-50, batch 1, on an H200 it takes 15.0 µs instead of 12.2, and 4.0 instead of 6.8."""
    workload = library.ConvWorkload.conv2d(
        (1, channels, 56, 56), (outputs, channels, kernel, kernel), padding=kernel // 2, shift=True, activation="relu"
    )
    large = library.ConvWorkload.conv2d((1, 2048, 1, 1), (8192, 2048, 1, 1))
    weight = pruned(np.random.default_rng(0).standard_normal(workload.w_shape), 0.9)
    for others, expected in (([large], pays), ([], True)):
        found = sparse_kernels.SparseKernels(
            resolve_target({"kind": "cuda", "arch": "sm_90"}), "auto", [workload, *others]
        )
        assert (found.choose("conv", workload, weight, {}) is not None) == expected


def test_shifts_are_in_the_kernels() -> None:
    """One weight with two biases is therefore two kernels; a bias that is not finite stays outside."""
    graph = Graph((1, 2, 6, 6))
    weight = graph.constant(pruned(np.random.default_rng(0).standard_normal((2, 2, 3, 3)), 0.8))
    biases = [graph.constant(np.array(values)) for values in ([1.0, 2.0], [3.0, 4.0], [np.inf, 0.0])]
    first, second, third = (graph.node("Conv", "x", weight, bias) for bias in biases)
    source = graph.model(graph.node("Add", first, graph.node("Add", second, third)))
    dense, every = (library.build(source, sparse=mode) for mode in ("never", "always"))
    assert kernels(every) == ["sparse", "sparse", "direct"]
    x = np.random.default_rng(1).standard_normal((1, 2, 6, 6)).astype("float32")
    assert np.allclose(every(x), dense(x), atol=1e-5)


def test_weights_that_are_not_finite_stay_dense() -> None:
    graph = Graph((1, 2, 6, 6))
    weight = np.zeros((2, 2, 3, 3))
    weight[0, 0, 0, 0] = np.inf
    built = library.build(graph.model(graph.node("Conv", "x", graph.constant(weight))), sparse="always")
    assert kernels(built) == ["direct"]


def test_a_weight_that_its_scale_makes_infinite_stays_dense() -> None:
    workload = library.ConvWorkload.conv2d((1, 2, 6, 6), (2, 2, 3, 3), scale=True)
    weight, scale = np.full(workload.w_shape, 1e30, "float32"), np.full(2, 1e30)
    found = sparse_kernels.SparseKernels(resolve_target("llvm"), "always", [workload])
    assert found.choose("conv", workload, weight, {"scale": scale}) is None
    assert found.choose("conv", workload, weight, {"scale": 1e-30 * scale}) is not None


def test_a_weight_that_is_computed() -> None:
    graph = Graph((1, 2, 6, 6))
    graph.inputs.append(graph._value("w", (3, 2, 3, 3)))
    source = graph.model(graph.node("Conv", "x", "w"))
    assert kernels(library.build(source)) == ["direct"]
    with pytest.raises(InvalidArgumentError, match="sparse is 'always'; expected auto or never: the weight of .* comp"):
        library.build(source, sparse="always")
    with pytest.raises(InvalidArgumentError, match="sparse is 'sometimes'; expected one of auto, always, never"):
        library.build(source, sparse="sometimes")


def test_export(tmp_path: Path) -> None:
    built = library.build(model(MIXED))
    built.export(tmp_path / "network.so")
    loaded = library.load(tmp_path / "network.so")
    assert np.array_equal(loaded(X), built(X))
    assert loaded.layers == built.layers


def test_command_line(tmp_path: Path) -> None:
    onnx.save(model(MIXED), tmp_path / "model.onnx")
    command = ["build", tmp_path / "model.onnx", "-o", tmp_path / "network.so"]
    layers = tvmconv_json(*command)["layers"]
    assert sum(layer["count"] for layer in layers if layer["kernel"] == "tvmconv cpu/sparse") == 3
    assert "sparse" not in tvmconv(*command, "--sparse", "never").stdout


def test_cuda_source_compiles_and_is_kept_with_the_network(tmp_path: Path) -> None:
    built = library.build(model(MIXED), {"kind": "cuda", "arch": "sm_90"})
    assert [layer.kernel for layer in built.layers].count("tvmconv cuda/sparse") == 2
    built.export(tmp_path / "network.so")
    kernels = storage.read_description(tmp_path / "network.so").kernels
    assert len(kernels) == len(cuda.sources(built._executable.mod)) > 3
