"""The command `tvmconv quantize`, and the samples that it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.network_graph import Graph

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = Graph((2, 8, 9, 11), opset=11)
    y = graph.node("Relu", graph.conv("x", (8, 8, 3, 3), True))
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(graph.model(graph.conv(y, (4, 8, 1, 1), True)), path)
    return path


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_quantize(form: str, model: Path, tmp_path: Path) -> None:
    data, output = tmp_path / "data.npz", tmp_path / "quantized.onnx"
    np.savez(data, x=np.random.default_rng(0).standard_normal((6, 8, 9, 11)).astype("float32"))
    told = tvmconv_json("quantize", model, "--data", data, "-o", output, "--format", form)
    assert told["samples"] == 3
    assert [each["operator"] for each in told["layers"]] == ["Conv", "Conv", "output"]
    assert all(25 < each["snr_db"] < 70 for each in told["layers"])
    names = {node.op_type for node in onnx.load(output).graph.node}
    assert ("QLinearConv" in names) == (form == "qoperator")
    assert tvmconv("tasks", output).stdout.count("uint8 zero point") >= 1
    verified = tvmconv("run", output, "--verify", "onnxruntime")
    assert verified.exit_code == 0, verified.stderr


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"y": (6, 8, 9, 11)}, "data is ['y']; expected an array for each input of the model: x"),
        ({"x": (6, 8, 9, 10)}, "expected (samples, 8, 9, 11), with samples in multiples of 2"),
        ({"x": (5, 8, 9, 11)}, "with samples in multiples of 2"),
    ],
)
def test_wrong_samples(arrays: dict[str, tuple[int, ...]], problem: str, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **{name: np.zeros(shape, "float32") for name, shape in arrays.items()})
    result = tvmconv("quantize", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "quantized.onnx")
    assert result.exit_code == 2
    assert problem in result.stderr


def test_without_onnxruntime(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 8, 9, 11), "float32"))
    result = tvmconv("quantize", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "quantized.onnx")
    assert result.exit_code == 1
    assert "pip install 'tvmconv[onnx]'" in result.stderr
