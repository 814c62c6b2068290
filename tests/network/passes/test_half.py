"""Networks in half precision: what is stored in it, how exact results are, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.network_graph import Graph, operators
from tests.shared.passes import use_kernels, with_precision
from tests.shared.sparing import every
from tvmconv import build, import_model
from tvmconv.autotvm.task import extract_from_model
from tvmconv.checking import verify
from tvmconv.network.graph.layers import Layer
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import multiplies, resolve_target

ZEN4 = {"kind": "llvm", "mcpu": "znver4"}
SM_90 = {"kind": "cuda", "arch": "sm_90"}

runs = pytest.mark.skipif(
    not multiplies(resolve_target("llvm"), "bfloat16"), reason="this CPU has no instructions for bfloat16"
)


def classifier(batch: int | str = 2, dtype: str = "float32") -> onnx.ModelProto:
    """Return a network with what lies between convolutions, and a linear layer and softmax at its end."""
    graph = Graph((batch, 3, 28, 28), dtype)
    stem = graph.node("Relu", graph.batch_norm(graph.conv("x", (32, 3, 3, 3), pads=[1] * 4), 32))
    stem = graph.node("MaxPool", stem, kernel_shape=[2, 2], strides=[2, 2])
    body = graph.node("Relu", graph.conv(stem, (32, 32, 1, 1), bias=True))
    body = graph.conv(body, (32, 32, 3, 3), bias=True, pads=[1] * 4, strides=[1, 1])
    y = graph.node("Relu", graph.node("Add", body, stem))
    left = graph.conv(y, (16, 32, 1, 1), bias=True)
    right = graph.conv(y, (16, 32, 3, 3), bias=True, pads=[1] * 4)
    y = graph.node("Relu", graph.node("Concat", left, right, axis=1))
    y = graph.clip(graph.conv(y, (32, 1, 3, 3), True, group=32, pads=[1] * 4, strides=[2, 2]), 0, 6)
    y = graph.node("AveragePool", y, kernel_shape=[2, 2], strides=[1, 1])
    y = graph.conv(y, (64, 32, 1, 1), bias=True)
    y = graph.node("Mul", y, graph.node("Sigmoid", y))
    y = graph.node("Flatten", graph.node("GlobalAveragePool", y))
    logits = graph.node("Gemm", y, graph.random(64, 10, scale=0.2), graph.random(10))
    return graph.model(logits, graph.node("Softmax", logits, axis=1))


def images(count: int = 2) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 3, 28, 28)).astype("float32")


def exact(x: np.ndarray) -> list[np.ndarray]:
    return list(ReferenceEvaluator(classifier(dtype="float64")).run(None, {"x": x.astype("float64")}))


def compiled(graph: object, target: object, word: str) -> tuple[list[str], tuple[Layer, ...]]:
    """Return the operators of a network with its kernels, and its layers."""
    resolved = resolve_target(target)
    mod, precision = with_precision(import_model(graph).mod, resolved, word)
    mod, layers = use_kernels(mod, resolved, "auto", precision)
    return operators(mod), layers


def types(layers: tuple[Layer, ...]) -> list[tuple[str, str]]:
    """Return the types that the layers read and write."""
    return [(layer.convolution.workload.dtype, layer.convolution.workload.output_storage.name) for layer in layers]


# What is stored


def test_tensors_between_convolutions_are_halves() -> None:
    """The input and the means are rounded, and what one operator by element behind a joined tensor reads is cast."""
    names, layers = compiled(classifier(), ZEN4, "bfloat16")
    assert types(layers) == [("bfloat16", "bfloat16")] * 7 + [("bfloat16", "float32")]
    assert all("bfloat16" in layer.convolution.description for layer in layers)
    assert {layer.kernel for layer in layers} >= {"tvmconv cpu/dot", "tvmconv cpu/depthwise"}
    assert names == [
        *("relax.astype", "relax.call_tir", "relax.nn.max_pool2d", "relax.call_tir", "relax.call_tir"),
        *("relax.call_tir", "relax.call_tir_inplace", "relax.astype", "relax.nn.relu", "relax.astype"),
        *("relax.call_tir", "relax.astype", "relax.nn.avg_pool2d", "relax.astype", "relax.call_tir", "relax.astype"),
        *("relax.mean", "relax.astype", "relax.reshape", "relax.reshape", "relax.call_tir", "relax.reshape"),
        "relax.nn.softmax",
    ]


@pytest.mark.parametrize("word", every(2, ["float16", "bfloat16"]))
def test_tensor_cores_get_the_same(word: str) -> None:
    _, layers = compiled(classifier(), SM_90, word)
    assert types(layers) == [(word, word)] * 7 + [(word, "float32")]
    assert {"tvmconv cuda/shallow", "tvmconv cuda/tensor"} <= {layer.kernel for layer in layers}


def test_norms_stay_in_float32() -> None:
    """What only layers read is rounded when it is stored; the norm of their result, and what is behind it, is not."""
    graph = Graph((2, 16, 4, 4))
    x = graph.node("Sqrt", graph.node("Abs", "x"))
    y = graph.node("Add", graph.conv(x, (16, 16, 1, 1)), graph.conv(x, (16, 16, 1, 1)))
    norm = graph.node("LayerNormalization", y, graph.random(4), graph.random(4), axis=3)
    names, layers = compiled(graph.model(graph.node("Relu", norm)), ZEN4, "bfloat16")
    assert types(layers) == [("bfloat16", "float32")] * 2
    assert names[:5] == ["relax.abs", "relax.sqrt", "relax.astype", "relax.call_tir", "relax.call_tir"]
    assert "relax.nn.layer_norm" in names
    assert "relax.astype" not in names[5:]


def test_norms_between_layers_read_and_store_halves() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Conv2d(16, 16, 1), torch.nn.GroupNorm(4, 16), torch.nn.Conv2d(16, 24, 3)
    program = torch.export.export(torch.nn.Sequential(*layers).eval(), (torch.zeros(2, 16, 6, 6),))
    names, found = compiled(program, ZEN4, "bfloat16")
    assert types(found) == [("bfloat16", "bfloat16"), ("bfloat16", "float32")]
    cast, kernel = "relax.astype", "relax.call_tir"
    assert names == [cast, kernel, cast, "relax.nn.group_norm", cast, kernel]


def test_functions_between_layers_keep_their_type() -> None:
    """The importer makes a function of what Relax has no operator for, such as bicubic interpolation."""
    torch = pytest.importorskip("torch")
    layers = torch.nn.Conv2d(16, 16, 1), torch.nn.Upsample(scale_factor=2, mode="bicubic"), torch.nn.Conv2d(16, 24, 3)
    program = torch.export.export(torch.nn.Sequential(*layers).eval(), (torch.zeros(2, 16, 6, 6),))
    _, found = compiled(program, ZEN4, "bfloat16")
    assert types(found) == [("bfloat16", "float32")] * 2


def test_sums_that_norms_alone_read_stay_in_float32() -> None:
    """Rounding them block by block would add up; where a layer reads what is added it is rounded anyway."""
    torch = pytest.importorskip("torch")

    class Blocks(torch.nn.Module):
        def __init__(self, *, normed: bool) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(16, 16, 1) for _ in range(4))
            self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(4, 16) for _ in range(3))
            self.normed = normed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second, third, last = self.layers
            x = first(x)
            x = x + second(self.norms[0](x) if self.normed else x)
            x = x + third(self.norms[1](x) if self.normed else x)
            return last(self.norms[2](x.transpose(2, 3)))

    x = (torch.zeros(2, 16, 6, 6),)
    for normed, stored in ((True, "float32"), (False, "bfloat16")):
        _, layers = compiled(torch.export.export(Blocks(normed=normed).eval(), x), ZEN4, "bfloat16")
        assert [output for _, output in types(layers)] == ["bfloat16", stored, stored, "float32"]


def test_constants_are_joined_to_halves_as_halves() -> None:
    graph = Graph((2, 16, 4, 4))
    y = graph.node("Concat", graph.conv("x", (16, 16, 1, 1)), graph.random(2, 8, 4, 4), axis=1)
    names, layers = compiled(graph.model(graph.conv(y, (16, 24, 3, 3))), ZEN4, "bfloat16")
    assert types(layers) == [("bfloat16", "bfloat16"), ("bfloat16", "float32")]
    assert names == ["relax.astype", "relax.call_tir", "relax.concat", "relax.call_tir"]


def test_what_the_caller_gives_is_added_as_it_is() -> None:
    graph = Graph((2, 16, 8, 8))
    names, layers = compiled(
        graph.model(graph.conv(graph.node("Add", graph.conv("x", (16, 16, 1, 1)), "x"), (16, 16, 1, 1))),
        *(ZEN4, "bfloat16"),
    )
    assert types(layers) == [("bfloat16", "float32")] * 2
    assert layers[0].convolution.workload.epilogue.residual
    assert names == ["relax.astype", "relax.call_tir", "relax.astype", "relax.call_tir"]


def test_parts_of_tensors_stay_halves() -> None:
    """Channels are split, interleaved and scaled by a gate between convolutions."""
    graph = Graph((1, 8, 12, 12))
    y = graph.conv("x", (32, 8, 1, 1))
    graph.nodes.append(onnx.helper.make_node("Split", [y], ["a", "b"], axis=1))
    moved = graph.node("Reshape", "a", graph.constant([1, 2, 8, 12, 12], "int64"))
    moved = graph.node("Transpose", moved, perm=[0, 2, 1, 3, 4])
    moved = graph.node("Reshape", moved, graph.constant([1, 16, 12, 12], "int64"))
    b = graph.conv("b", (16, 16, 1, 1))
    gate = graph.node("Sigmoid", graph.conv(graph.node("GlobalAveragePool", b), (16, 16, 1, 1)))
    y = graph.node("Concat", moved, graph.node("Mul", b, gate), axis=1)
    model = graph.model(graph.conv(y, (16, 32, 3, 3)))
    _, layers = compiled(model, ZEN4, "bfloat16")
    assert types(layers) == [("bfloat16", "bfloat16")] * 3 + [("bfloat16", "float32")]
    if multiplies(resolve_target("llvm"), "bfloat16"):
        x = np.random.default_rng(2).standard_normal((1, 8, 12, 12)).astype("float32")
        wide, narrow = (build(import_model(model), precision=word)(x) for word in ("float32", "bfloat16"))
        (found,) = verify.compare({"y": narrow}, {"y": wide}, {"bfloat16"})
        assert found.agrees
        assert 40 < found.ratio < 60


def test_tuning_is_for_the_network_that_is_built() -> None:
    tasks = extract_from_model(classifier(), ZEN4, precision="bfloat16")
    assert {task.workload.dtype for task in tasks} == {"bfloat16"}
    assert {task.precision for task in tasks} == {"float32"}


# Results


@runs
@pytest.mark.parametrize("batch", every(2, ["n", 2]))
def test_results_are_near_float64(batch: int | str) -> None:
    x, network = images(), build(import_model(classifier(batch)), precision="bfloat16")
    assert [spec.dtype for spec in (*network.inputs, *network.outputs)] == ["float32"] * 3
    assert network.multiplied == {"bfloat16"}
    narrow = dict(zip("ab", network(x), strict=True))
    expected = dict(zip("ab", (each.astype("float32") for each in exact(x)), strict=True))
    logits, probabilities = verify.compare(narrow, expected, network.multiplied)
    assert logits.agrees
    assert probabilities.agrees
    assert 38 < logits.ratio < 60  # 48 dB are errors of 2^-8
    assert not verify.compare(narrow, expected)[0].agrees


@runs
def test_each_layer_is_near_float64() -> None:
    """One layer alone has the errors of its rounded factors, and none of storage."""
    graphs = [Graph((1, 32, 9, 9), dtype) for dtype in ("float32", "float64")]
    model, reference = (graph.model(graph.conv("x", (16, 32, 3, 3), bias=True)) for graph in graphs)
    x = np.random.default_rng(3).standard_normal((1, 32, 9, 9)).astype("float32")
    got = build(import_model(model), precision="bfloat16")(x)
    weight = onnx.numpy_helper.to_array(reference.graph.initializer[0])
    (wanted,) = ReferenceEvaluator(reference).run(None, {"x": x.astype("float64")})
    sums = np.abs(np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), (1, 2))).astype("float64")
    magnitude = np.einsum("chwrs,kcrs->khw", sums, np.abs(weight))
    assert weight.shape == (16, 32, 3, 3)
    assert (np.abs(got - wanted)[0] <= (STORAGE_TYPES["bfloat16"].unit + 2.0**-12) * magnitude).all()
    assert np.abs(got - wanted).max() > 2.0**-12


# What is refused


@pytest.mark.parametrize(
    ("target", "word", "message"),
    [
        (
            {"kind": "llvm", "mcpu": "skylake-avx512"},
            "bfloat16",
            "expected strict, float32 or tf32: skylake-avx512 has no",
        ),
        (
            ZEN4,
            "float16",
            "expected strict, float32, tf32 or bfloat16: znver4 has no instructions that multiply float16",
        ),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "bfloat16", "has no instructions that multiply bfloat16"),
        ({"kind": "cuda", "arch": "sm_75"}, "float16", "sm_75 has no instructions that multiply float16, and would be"),
        (ZEN4, "half", "precision is 'half'; expected strict, float32, tf32, float16 or bfloat16"),
    ],
)
def test_refused(target: dict[str, str], word: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        build(import_model(classifier()), target, precision=word)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("joined", [False, True], ids=["chain", "joined"])
def test_many_operators_on_bfloat16(joined: bool) -> None:
    """Each is rounded, as by torch, and the network is built in seconds, not in the hours of nested roundings."""
    torch = pytest.importorskip("torch")

    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for _ in range(12):
                x = x * y + 1.5
            return torch.cat([x, (x - y) * x, y], 1) if joined else x

    x, y = torch.rand((2, 5, 37), generator=torch.Generator().manual_seed(1)).bfloat16()
    found = build(import_model(Chain(), (x, y)))(x, y)
    torch.testing.assert_close(found, Chain()(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reductions_behind_operators_on_bfloat16(axis: int) -> None:
    """Each number that a reduction reads is rounded by itself, in each lane of a vector."""
    torch = pytest.importorskip("torch")

    class Reduced(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (x * x + x).sum(axis), (x * x + x).amax(axis)

    x = torch.randn((8, 16, 64), generator=torch.Generator().manual_seed(1)).bfloat16()
    total, largest = build(import_model(Reduced(), (x,)))(x)
    terms = (x * x + x).double()
    torch.testing.assert_close(total.double(), terms.sum(axis), rtol=2**-8, atol=0.01)
    torch.testing.assert_close(largest.double(), terms.amax(axis), rtol=0, atol=0)


# On the command line


@runs
def test_build_and_run(tmp_path: Path) -> None:
    model, library = tmp_path / "model.onnx", tmp_path / "model.so"
    graph = Graph((2, 16, 8, 8))
    y = graph.node("Relu", graph.conv("x", (32, 16, 1, 1), bias=True))
    onnx.save(graph.model(y, graph.node("Softmax", y, axis=1)), model)
    report = tvmconv_json("build", model, "-o", library, "--precision", "bfloat16")
    assert all("bfloat16" in layer["description"] for layer in report["layers"])
    assert tvmconv("run", library).exit_code == 0
    refused = tvmconv("run", library, "--precision", "bfloat16")
    assert (refused.exit_code, "expected none for a library" in refused.stderr) == (2, True)
    pytest.importorskip("onnxruntime")
    verified = tvmconv("run", model, "--precision", "bfloat16", "--verify", "onnxruntime")
    assert verified.exit_code == 0, verified.stderr
    told = [line for line in verified.stdout.splitlines() if "dB of signal to noise" in line]
    assert len(told) == 2


def test_half_precision_is_for_networks() -> None:
    result = tvmconv("inspect", "{}", "--precision", "bfloat16")
    assert (result.exit_code, "expected one of strict, float32, tf32" in result.stderr) == (2, True)
