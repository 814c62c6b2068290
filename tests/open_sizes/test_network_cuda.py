"""Networks for CUDA with a batch that is known only when they run, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

import tvmconv
from tests.open_sizes.batches import images, model, network_of_twins
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels
from tvmconv.dispatch import Selection, select
from tvmconv.dispatch.ranges import ASSUMED_BATCHES
from tvmconv.problem import Problem
from tvmconv.schedules import cuda
from tvmconv.schedules.cuda.simt.direct import Config
from tvmconv.targets import resolve_target

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})
TILE = Config(4, 8, 4, 1, 2, 4, 4, 8, 1, 1)
"""A tile of 16 channels and 64 pixels."""

BATCHES = (1, 9, 65)


@pytest.fixture(params=[(1, 2, 1), pytest.param((2, 2, 2), marks=pytest.mark.release)], ids=["ranges", "split-k"])
def in_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dense convolutions have a packed weight, and in each range of batches so many parts of the reduction."""

    def chosen(problem: Problem, target: tvm.target.Target) -> Selection:
        tiled = target is SM_90 and not problem.workload.is_depthwise
        split_k = dict(zip(ASSUMED_BATCHES, request.param, strict=True))
        config = replace(TILE, packed=True, split_k=split_k[problem.workload.batch]) if tiled else None
        return select(problem, target, config)

    monkeypatch.setattr("tvmconv.dispatch.ranges.select", chosen)


@pytest.fixture(scope="module")
def on_cpu() -> tvmconv.Network:
    return tvmconv.build(model("n"), CPU, precision="strict")


@pytest.mark.usefixtures("in_tiles")
def test_serial_twins_compute_every_batch(on_cpu: tvmconv.Network) -> None:
    source = model("n")
    mod, layers = use_kernels(source.mod, SM_90)
    assert [layer.kernel for layer in layers] == [
        f"tvmconv cuda/{name}" for name in ("direct", "depthwise", "direct", "direct")
    ]
    for batch in BATCHES:
        x, network = images(batch), network_of_twins(model(batch), mod, layers, {"n": batch})
        expected = on_cpu(x)
        np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_it_builds_with_kernels_and_graphs() -> None:
    network = tvmconv.build(model("n"), SM_90)
    assert all(layer.kernel.startswith("tvmconv cuda/") for layer in network.layers)
    assert "run_or_capture" in network._executable.as_text()


def test_what_a_kernel_needs_beside_an_output_is_no_output() -> None:
    """The last kernel's workspace, which is smaller than one for any batch, is planned as those of the others are."""
    graph = Graph(("n", 16, 20, 20))
    y = "x"
    for _ in range(3):
        y = graph.node("Relu", graph.conv(y, (16, 16, 3, 3), pads=[1] * 4))
    network = tvmconv.build(graph.model(y), SM_90)
    assert all(layer.kernel.startswith("tvmconv cuda/") for layer in network.layers)


def test_a_convolution_that_no_template_takes_is_left_to_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    for template in (
        cuda.depthwise.template,
        cuda.depthwise_bands.template,
        cuda.direct.template,
        cuda.im2win.template,
        cuda.tensor.template,
    ):
        monkeypatch.setattr(template, "OPEN_SIZES", ())
    with pytest.warns(UserWarning, match=r"^4 of 4 convolutions.* the batch is known only when the model runs"):
        network = tvmconv.build(model("n"), SM_90)
    convolutions = [layer for layer in network.layers if layer.kernel != "tvmconv cuda/product"]
    assert {layer.kernel for layer in convolutions} == {"TVM"}
    assert {layer.reason for layer in convolutions} == {
        "the batch is known only when the model runs, and no kernel for cuda takes it so; "
        "give it as `shapes` (--input-shapes)"
    }


@pytest.mark.parametrize(("target", "template"), [(CPU, "cpu/sparse"), (SM_90, "cuda/sparse")], ids=["cpu", "cuda"])
def test_weights_are_compiled_in_for_any_batch(target: object, template: str) -> None:
    def pruned(batch: int | str) -> tvmconv.Model:
        graph, weight = Graph((batch, 16, 8, 8)), np.random.default_rng(0).standard_normal((16, 16, 3, 3))
        weight[np.random.default_rng(1).random(weight.shape) < 0.9] = 0
        return tvmconv.import_model(graph.model(graph.node("Conv", "x", graph.constant(weight, "float32"))))

    network = tvmconv.build(pruned("n"), target, sparse="always")
    assert [layer.kernel for layer in network.layers] == [f"tvmconv {template}"]
    if target is not CPU:
        return
    dense = tvmconv.build(pruned("n"), CPU, sparse="never")
    for batch in BATCHES:
        x = images(batch)
        expected = dense(x)
        np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
