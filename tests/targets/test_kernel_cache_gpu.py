"""Machine code of networks that is made once, on a real GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv import lowering
from tvmconv.runtime import storage
from tvmconv.targets import cuda, kernel_cache, sources

EXPORT = "import sys, tvmconv; tvmconv.build(sys.argv[1], 'cuda').export(sys.argv[2])"


def test_nothing_is_compiled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network is built again, and one that was built as without a GPU is loaded, without a compiler."""
    graph = Graph((2, 16, 28, 28))
    y = graph.conv(graph.conv("x", (32, 16, 3, 3), pads=[1, 1, 1, 1]), (64, 32, 3, 3), pads=[1, 1, 1, 1])
    model = graph.model(graph.node("GlobalAveragePool", graph.node("Relu", y)))
    onnx.save(model, tmp_path / "model.onnx")
    x = np.random.default_rng(3).standard_normal((2, 16, 28, 28)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "digest", lambda: "these sources")
    first = tvmconv.build(model, "cuda")
    environment = {**os.environ, "TVM_COMPILE_FORCE_FALLBACK": "1", "TVMCONV_CACHE_DIR": str(tmp_path / "other")}
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "model.onnx"), str(tmp_path / "model.so")]
    subprocess.run(command, env=environment, check=True)
    assert len(storage.read_description(tmp_path / "model.so").kernels) == len(cuda.sources(first._executable.mod))
    monkeypatch.setattr(kernel_cache, "_compiled", {})
    monkeypatch.setattr(cuda, "compile_source", None)  # a call would fail
    monkeypatch.setattr(lowering, "lower", None)
    for network in (first, tvmconv.build(model, "cuda"), tvmconv.load(tmp_path / "model.so")):
        assert isinstance(network, tvmconv.network.Network)
        np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-4 * np.abs(expected).max())
