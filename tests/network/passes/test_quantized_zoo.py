"""Three whole networks that ONNX Runtime quantizes, in both forms: all in integers, and as ONNX Runtime computes them.

They take some minutes, and run when asked for: `pytest -m release tests/network/passes/test_quantized_zoo.py`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import tvmconv  # noqa: E402
from tests.shared.quantized_graph import in_integers  # noqa: E402
from tvmconv.bench.networks.models import NETWORKS  # noqa: E402
from tvmconv.bench.networks.weights import randomized  # noqa: E402
from tvmconv.bench.peers.onnxruntime import session_of  # noqa: E402
from tvmconv.integrations.quantizing import FORMATS, quantize  # noqa: E402

pytestmark = pytest.mark.release

STEPS = {"resnet50": 1, "mobilenet_v2": 2, "efficientnet_b0": 2}
"""The steps of the output's quantization that results may be apart: ties of a layer are broken either way."""

SIZE = 1, 3, 224, 224


def images(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal(SIZE).astype("float32")} for _ in range(count)]


def output_step(path: Path) -> float:
    """Return the step of the quantization of a model's output."""
    model = onnx.load(path)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    last = next(node for node in model.graph.node if model.graph.output[0].name in node.output)
    return float(constants[last.input[1]])


@pytest.fixture(scope="module", params=STEPS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / f"{request.param}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = randomized(NETWORKS[request.param])
        torch.onnx.export(module, (torch.zeros(SIZE),), str(path), input_names=["x"], dynamo=False)
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_network(exported: Path, form: str) -> None:
    path = exported.with_name(f"{exported.stem}-{form}.onnx")
    quantize(exported, path, images(4, 1), form)
    network, session = tvmconv.build(path), session_of(path.read_bytes())
    assert all(in_integers(network))
    assert all(layer.kernel.startswith("tvmconv cpu/") for layer in network.layers)
    step = output_step(path)
    for sample in images(4, 2):
        distance = np.abs(network(**sample) - session.run(None, sample)[0]).max()
        assert round(distance / step) <= STEPS[exported.stem]
