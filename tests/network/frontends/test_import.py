"""Import of models: their descriptions, and the errors for models that cannot be imported."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from tvm import relax

import tvmconv
from tests.shared.network_graph import Graph, relax_module
from tvmconv.network import Model, TensorSpec, import_model
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError, UnsupportedModelError

SHUFFLENET = Path(onnx.__file__).parent / "backend/test/data/light/light_shufflenet.onnx"


def small() -> onnx.ModelProto:
    graph = Graph((1, 8, 9, 11))
    return graph.model(graph.node("Relu", graph.conv("x", (8, 1, 3, 3), True, group=8)))


def test_shufflenet() -> None:
    model = tvmconv.import_model(SHUFFLENET)
    assert model.inputs == (TensorSpec("gpu_0/data_0", (1, 3, 224, 224), "float32"),)
    assert model.outputs == (TensorSpec("gpu_0/softmax_1", (1, 1000), "float32"),)
    assert len(model.mod["main"].params) == 1
    layers = model.convolutions()
    assert [layer.obstacle for layer in layers] == [None] * 50
    assert Counter(layer.description for layer in layers if layer.description.startswith("depthwise")) == {
        "depthwise 1x112x56x56 -> 112, 3x3 stride 2x2 padding 1,1,1,1 + scale+shift": 1,
        "depthwise 1x136x28x28 -> 136, 3x3 padding 1,1,1,1 + scale+shift": 3,
        "depthwise 1x136x28x28 -> 136, 3x3 stride 2x2 padding 1,1,1,1 + scale+shift": 1,
        "depthwise 1x272x14x14 -> 272, 3x3 padding 1,1,1,1 + scale+shift": 7,
        "depthwise 1x272x14x14 -> 272, 3x3 stride 2x2 padding 1,1,1,1 + scale+shift": 1,
        "depthwise 1x544x7x7 -> 544, 3x3 padding 1,1,1,1 + scale+shift": 3,
    }
    assert layers[0].description == "conv2d 1x3x224x224 -> 24, 3x3 stride 2x2 padding 1,1,1,1 + scale+shift+relu"
    assert sum(layer.description.endswith(" groups 4 + scale+shift+residual+relu") for layer in layers) == 13
    assert layers[0].flops == 2 * (24 * 112 * 112) * (3 * 3 * 3)


def test_same_model_from_path_string_bytes_and_proto(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(small(), path)
    models = [import_model(source) for source in (path, str(path), path.read_bytes(), onnx.load(path))]
    assert [model.convolutions() for model in models] == [models[0].convolutions()] * 4
    assert [model.inputs + model.outputs for model in models] == [
        (TensorSpec("x", (1, 8, 9, 11), "float32"), TensorSpec("v1", (1, 8, 7, 9), "float32"))
    ] * 4


@dataclass(frozen=True)
class Left:
    """A convolution that no kernel of tvmconv takes."""

    id: str
    x_shape: tuple[int | str, ...]
    w_shape: tuple[int, ...]
    description: str
    obstacle: str
    flops: int | None
    operator: str = "Conv"
    group: int = 8
    dtype: str = "float32"


LEFT = (
    Left("3d", (1, 8, 5, 6, 7), (8, 1, 3, 3, 3),
         "conv3d NCDHW 1x8x5x6x7 float32, weight OIDHW 8x1x3x3x3, stride 1x1x1, padding 0,0,0,0,0,0, groups 8",
         "conv3d is not supported", 2 * (8 * 3 * 4 * 5) * 27),
    Left("transposed", (1, 8, 5, 5, 5), (8, 2, 3, 3, 3),
         "conv3d_transpose NCDHW 1x8x5x5x5 float32, weight IODHW 8x2x3x3x3, stride 1x1x1, padding 0,0,0,0,0,0, "
         "groups 8",
         "conv3d_transpose is not supported", 2 * (8 * 5 * 5 * 5) * (2 * 27), operator="ConvTranspose"),
    Left("transposed-double", (1, 8, 5, 5), (8, 2, 3, 3),
         "conv2d_transpose NCHW 1x8x5x5 float64, weight IOHW 8x2x3x3, stride 1x1, padding 0,0,0,0, groups 8",
         "float64 with float64 into float64 is not supported", 2 * (8 * 5 * 5) * (2 * 9), operator="ConvTranspose",
         dtype="float64"),
    Left("unknown-height", (1, 8, "height", 9, 9), (8, 1, 3, 3, 3),
         "conv3d NCDHW 1x8xheightx9x9 float32, weight OIDHW 8x1x3x3x3, stride 1x1x1, padding 0,0,0,0,0,0, groups 8",
         "conv3d is not supported", None),
    Left("double", (1, 8, 9, 9), (8, 1, 3, 3),
         "conv2d NCHW 1x8x9x9 float64, weight OIHW 8x1x3x3, stride 1x1, padding 0,0,0,0, groups 8",
         "dtype is 'float64'; expected float32, float16 or bfloat16", 2 * (8 * 7 * 7) * 9, dtype="float64"),
)  # fmt: skip


@pytest.mark.parametrize("left", LEFT, ids=lambda left: left.id)
def test_convolutions_left_to_tvm_are_listed(left: Left) -> None:
    graph = Graph(left.x_shape, left.dtype)
    y = graph.node(left.operator, "x", graph.random(*left.w_shape), group=left.group)
    (layer,) = import_model(graph.model(y)).convolutions()
    assert (layer.description, layer.obstacle, layer.flops) == (left.description, left.obstacle, left.flops)


def test_other_layouts_are_listed() -> None:
    x = relax.Var("x", relax.TensorType((1, 9, 9, 8), "float32"))
    weight = relax.Var("w", relax.TensorType((3, 3, 1, 8), "float32"))
    convolution = partial(relax.op.nn.conv2d, groups=8, data_layout="NHWC", kernel_layout="HWIO")
    (layer,) = Model(relax_module(convolution, x, weight), (), ()).convolutions()
    assert layer.layout == "NHWC"
    assert layer.obstacle == "layout NHWC HWIO is not supported"
    assert layer.flops == 2 * (7 * 7 * 8) * 9


def test_sizes_that_are_known_only_when_the_model_runs() -> None:
    graph = Graph(("batch", 8, "height", 9))
    model = import_model(graph.model(graph.node("Conv", "x", graph.random(8, 1, 3, 3), group=8)))
    assert [str(spec) for spec in model.inputs + model.outputs] == [
        "x: float32 (batch, 8, height, 9)", "v0: float32 (batch, 8, height - 2, 7)"
    ]  # fmt: skip


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "garbage": lambda data: b"\x89PNG\r\n\x1a\n" * 40,
    "text": lambda data: b"not a model at all",
    "cut-in-the-middle": lambda data: data[: len(data) // 2],
    "cut-by-a-byte": lambda data: data[:-1],
    "without-its-last-field": lambda data: data[:-4],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(damage(small().SerializeToString()))
    with pytest.raises(InvalidArgumentError, match=r"model\.onnx.*ONNX file") as caught:
        import_model(path)
    assert caught.value.exit_code == 2
    with pytest.raises(InvalidArgumentError, match=r"source is '\d+ bytes'; expected .*ONNX file"):
        import_model(path.read_bytes())


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="an ONNX file that exists"):
        import_model(tmp_path / "model.onnx")
    with pytest.raises(InvalidArgumentError, match="an ONNX file that exists"):
        import_model(tmp_path)
    path = tmp_path / "model.onnx"
    onnx.save(small(), path, save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    with pytest.raises(InvalidArgumentError, match="an ONNX file with its data"):
        import_model(path)


@pytest.mark.parametrize("source", [3, None, bytearray(3)], ids=str)
def test_unknown_source(source: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"source is '{type(source).__name__}'; expected an ONNX file"):
        import_model(source)


def test_example_inputs_are_for_modules() -> None:
    with pytest.raises(InvalidArgumentError, match="inputs is 'tuple'; expected None"):
        import_model(small(), (1,))


def test_onnx_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'tvmconv\[onnx\]'"):
        import_model("model.onnx")


def unknown(graph: Graph) -> str:
    return graph.node("Relu", graph.node("Swirl", graph.node("Swirl", "x", domain="my.ops"), domain="my.ops"))


def quantized(graph: Graph) -> str:
    return graph.node("QLinearConv", *["x"] * 8)


def wrong_channels(graph: Graph) -> str:
    return graph.node("Conv", graph.node("Relu", "x"), graph.random(8, 1, 3, 3), group=4)


def undefined(graph: Graph) -> str:
    return graph.node("Relu", "nothing")


def window_too_large(graph: Graph) -> str:
    return graph.node("Conv", "x", graph.random(8, 1, 11, 11), group=8)


UNSUPPORTED: dict[Callable[[Graph], str], str] = {
    unknown: r"Swirl \(node 'swirl0'\), Swirl \(node 'swirl1'\): Relax does not have it.*without it",
    quantized: r"QLinearConv \(node 'qlinearconv0'\): its scale is blocked.*quantize it with one scale",
    wrong_channels: r"Conv \(node 'conv1'\): it needs images of 4 channels; they have 8",
    undefined: r"Relu \(node 'relu0'\): the model has no input, constant or node that makes its input 'nothing'",
    window_too_large: "it has a window of 11 that is larger than its input of 9, padding included",
}


@pytest.mark.parametrize("body", UNSUPPORTED, ids=lambda body: body.__name__)
def test_unsupported_onnx(body: Callable[[Graph], str], capsys: pytest.CaptureFixture[str]) -> None:
    graph = Graph((1, 8, 9, 9))
    with pytest.raises(UnsupportedModelError, match=UNSUPPORTED[body]) as caught:
        import_model(graph.model(body(graph)))
    assert caught.value.exit_code == 3
    assert capsys.readouterr().out == ""
