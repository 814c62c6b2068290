"""Kernels, eager calls and networks with an open batch on a real GPU."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tvm

import tvmconv
from tests.open_sizes.batches import BATCHES, CASES, Open, check_on_gpu, images, model
from tests.shared.command_line import tvmconv_json
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.dispatch.ranges import ASSUMED_BATCHES
from tvmconv.problem import Problem
from tvmconv.runtime import operators
from tvmconv.support.cache import Cache
from tvmconv.testing import check_result, random_operands

EVERY = [int(batch) for batch in np.random.default_rng(0).permutation(np.arange(1, 101))]
"""Batches in a row, in which those of one range do not follow one another."""

NETWORK_BATCHES = (1, 2, 3, 7, 8, 9, 33, 64, 65, 200, 1)
"""Batches in the ranges of all kernels, and at their ends; the first comes again after the largest."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_kernel_computes_every_batch(case: Open) -> None:
    check_on_gpu(case, map(case.at, BATCHES))


CALLS: dict[str, tuple[ConvWorkload, dict[str, Any]]] = {
    "depthwise": (ConvWorkload.depthwise((1, 12, 9, 11), (12, 1, 3, 3)), {}),
    "dense": (ConvWorkload.conv2d((1, 32, 9, 11), (48, 32, 3, 3)), {}),
    "direct": (ConvWorkload.conv2d((1, 64, 14, 14), (64, 64, 3, 3)), {"algorithm": "direct"}),
    "im2win": (ConvWorkload.conv2d((1, 16, 9, 11), (24, 16, 3, 3)), {"algorithm": "im2win"}),
    "strict": (ConvWorkload.conv2d((1, 16, 9, 11), (24, 16, 3, 3)), {"precision": "strict"}),
    "half": (ConvWorkload.conv2d((1, 32, 9, 11), (48, 32, 3, 3), dtype="float16"), {}),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("order", ["contiguous", "channels_last"])
def test_a_hundred_batches_in_a_row(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has a kernel of its own; the others have one for each range, and each result is right."""
    torch = pytest.importorskip("torch")
    workload, options = CALLS[name]
    if order == "channels_last" and name not in ("half", "depthwise"):
        pytest.skip("it is copied, and then contiguous")
    call = tvmconv.depthwise if workload.is_depthwise else tvmconv.conv2d
    compiled, compile_one = [], operators.compile_problem

    def counted(problem: Problem, *arguments: Any) -> tvmconv.Operator:
        compiled.append(problem.workload.batch)
        return compile_one(problem, *arguments)

    monkeypatch.setattr(operators, "compile_problem", counted)
    monkeypatch.setattr(operators, "_operators", Cache(9))
    monkeypatch.setattr(operators, "_first_sizes", Cache(9))
    monkeypatch.setattr(operators, "_calls", operators.Calls())
    for batch in EVERY:
        sized = msgspec.structs.replace(workload, batch=batch)
        operands = random_operands(sized, batch)
        x, w = (torch.from_numpy(operands[each]).cuda() for each in ("x", "w"))
        y = call(x.contiguous(memory_format=torch.channels_last) if order == "channels_last" else x, w, **options)
        check_result(sized, operands, y.contiguous().cpu().numpy(), precision=options.get("precision", "float32"))
    assert compiled[0] == EVERY[0]
    assert len(compiled) <= 1 + len(ASSUMED_BATCHES)
    assert set(compiled[1:]) <= set(ASSUMED_BATCHES)


def test_sparse_kernels_take_every_batch() -> None:
    """The first batch has a kernel of its own, all others share one; so does a network with an open batch."""
    workload = ConvWorkload.conv2d((1, 32, 14, 14), (48, 32, 3, 3))
    w = random_operands(workload)["w"]
    w[np.random.default_rng(0).random(w.shape) < 0.9] = 0
    graph = Graph(("n", 32, 14, 14))
    graph_model = graph.model(graph.node("Conv", "x", graph.constant(w), pads=[1] * 4))
    network = tvmconv.build(tvmconv.import_model(graph_model), "cuda", sparse="always")
    assert [layer.kernel for layer in network.layers] == ["tvmconv cuda/sparse"]
    conv = tvmconv.sparse_conv2d(w, target="cuda")
    for batch in (3, 1, 2, 8, 65, 100, 3):
        sized = msgspec.structs.replace(workload, batch=batch)
        operands = {**random_operands(sized, batch), "w": w}
        check_result(sized, operands, network(operands["x"]))
        check_result(sized, operands, conv(tvm.runtime.tensor(operands["x"], tvm.cuda())).numpy())
    assert [operator.problem.open_sizes for operator in conv.operators] == [(), ("batch",)]


def check_network(network: Any) -> None:
    """Compare a function for images of any batch with a build for each on the CPU."""
    for batch in NETWORK_BATCHES:
        x = images(batch)
        expected = tvmconv.build(model(batch))(x)
        assert np.abs(network(x) - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_network_runs_every_batch() -> None:
    check_network(tvmconv.build(model("n"), "cuda"))


def test_onnx_backend_prepares_once_for_every_batch() -> None:
    from tvmconv.integrations import onnx_backend

    graph = Graph(("n", 16, 8, 8))
    source = onnx.shape_inference.infer_shapes(graph.model(graph.conv("x", (24, 16, 3, 3), pads=[1] * 4)))
    prepared = onnx_backend.prepare(source, "CUDA")
    assert [layer.kernel.partition("/")[0] for layer in prepared.network.layers] == ["tvmconv cuda"]
    first = prepared.run([images(200)])[0]
    for batch in (1, 7, 64):
        (y,) = prepared.run([images(200)[:batch]])
        assert np.abs(y - first[:batch]).max() < 1e-4 * np.abs(first).max()


def test_torch_compile_builds_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from tvmconv.integrations import torch_backend

    torch._dynamo.reset()
    built, build = [], torch_backend.build
    monkeypatch.setattr(torch_backend, "build", lambda *arguments: built.append(build(*arguments)) or built[-1])
    module = torch.nn.Sequential(torch.nn.Conv2d(16, 24, 3), torch.nn.ReLU(), torch.nn.Conv2d(24, 8, 1)).cuda().eval()
    exact = deepcopy(module).double()
    compiled = torch.compile(module, backend=torch_backend.compile_graph, dynamic=True)
    for batch in (3, 2, 8, 9, 65, 200):
        x = torch.from_numpy(images(batch)).cuda()
        with torch.no_grad():
            expected = exact(x.double())
            assert (compiled(x) - expected).abs().max() < 1e-4 * expected.abs().max()
    torch._dynamo.reset()
    assert len(built) <= 2  # torch itself may have another graph for convolutions of more than 15 images
    assert all(isinstance(network.inputs[0].shape[0], str) for network in built)
    assert all(layer.kernel.startswith("tvmconv cuda/") for network in built for layer in network.layers)


def test_libraries_are_run_with_any_batch(tmp_path: Path) -> None:
    network, operator = tmp_path / "network.so", tmp_path / "operator.so"
    tvmconv.build(model("n"), "cuda").export(network)
    workload = ConvWorkload.conv2d((1, 16, 8, 8), (24, 16, 3, 3))
    tvmconv.compile(workload, "cuda", open_sizes=("batch",)).save(operator)
    for batch in (1, 9, 65):
        shapes = ("--input-shapes", f"x:[{batch},16,8,8]")
        for library in (network, operator):
            assert tvmconv_json("run", library, *shapes)["outputs"][0]["shape"][0] == batch
