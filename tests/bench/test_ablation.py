"""`tvmconv bench ablation`: the configurations without an optimization, their results, and the output."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.sparing import every
from tvmconv import ConvWorkload, targets
from tvmconv.bench import ablation
from tvmconv.bench.peers import Peer
from tvmconv.bench.report import Row
from tvmconv.bench.suite import How
from tvmconv.bench.timing import Timing
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch import select, template_named
from tvmconv.lowering import build, lower
from tvmconv.problem import Problem
from tvmconv.targets import DeviceFacts, resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

CPU, H100 = resolve_target("llvm"), resolve_target("nvidia/nvidia-h100")
LAYER = ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 3, 3), padding=1, shift=True, activation="relu")
POINTWISE = ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 1, 1), shift=True, activation="relu")
SWITCHES = {
    "cuda": ["micro-kernel", "vector loads", "prefetch", "packing"],
    "llvm": ["micro-kernel", "vectors", "staging", "threads"],
}


@pytest.mark.parametrize("algorithm", ["direct", "im2win"])
def test_a_thesis_layer_has_every_switch(algorithm: str) -> None:
    template = template_named(f"cuda/{algorithm}")
    for workload in load_suite("im2win-thesis", "cuda").values():
        space = template.space(Problem(workload), H100)
        found = template.ablations(space.default)
        assert list(found) == SWITCHES["cuda"]
        assert not any(space.violated(config) for config in found.values())
        assert found["micro-kernel"].outputs == 1


@pytest.mark.parametrize("algorithm", every(2, ["direct", "im2win"]))
def test_configurations_compute_the_layer(algorithm: str) -> None:
    """The configurations are right as serial twins, all in one module."""
    template = template_named(f"cuda/{algorithm}")
    problem = Problem(LAYER)
    configs = template.ablations(template.default_config(problem, H100))
    kernels = {
        f"kernel{i}": serial_twin(
            lower(Problem(LAYER), select(Problem(LAYER), H100, config, algorithm), H100, f"kernel{i}")
        )
        for i, config in enumerate(configs.values())
    }
    executable = build(tvm.IRModule(kernels), CPU)
    for kernel in kernels:
        operands = random_operands(LAYER)
        tensors = [tvm.runtime.tensor(array) for array in operands.values()]
        executable[kernel](*tensors)
        check_result(LAYER, operands, tensors[-1].numpy())


@pytest.mark.parametrize("algorithm", every(2, ["direct", "im2win", "pointwise"]))
def test_measured_on_a_cpu(algorithm: str, brief: None) -> None:
    layer = POINTWISE if algorithm == "pointwise" else LAYER
    pytest.importorskip("torch")
    (found,) = ablation.measure_ablations({"layer": layer}, CPU, algorithm, How(rounds=1), lambda name: None)
    assert found.selection.name == f"cpu/{algorithm}"
    assert {"micro-kernel", "vectors"} <= found.without.keys() <= set(SWITCHES["llvm"])
    assert ("staging" in found.without) == (algorithm == "direct")  # the others have no windows, or none without it
    assert found.times.keys() == found.shares.keys() == found.without.keys()
    assert found.shares["micro-kernel"] == found.whole.median / found.times["micro-kernel"].median


H100_DIRECT = ("--target", "nvidia/nvidia-h100", "--rounds", 3, "--algorithm", "direct")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend a GPU on which every output of a thread saves time."""

    def measured(suite: str, name: str, workload: ConvWorkload, target: object, peers: list[Peer], how: How) -> Row:
        assert how == How(rounds=3)
        costs: dict[str, Any] = {peer.name: 1e-3 / getattr(peer, "config").outputs for peer in peers}  # noqa: B009
        times = {name: Timing(cost, 0.9 * cost, 1.1 * cost) for name, cost in costs.items()}
        return Row(suite, name, str(workload), workload.flops, 1, "", times, {}, {})

    monkeypatch.setattr(ablation, "measure_row", measured)
    monkeypatch.setattr(targets, "device_of", lambda target: None)
    monkeypatch.setattr(targets, "device_facts", lambda kind: DeviceFacts("a GPU"))


def test_table(gpu: None) -> None:
    pytest.importorskip("torch")
    lines = tvmconv("bench", "ablation", *H100_DIRECT).stdout.splitlines()
    switches = " ".join(f"% without {name}" for name in SWITCHES["cuda"])
    assert " ".join(lines[0].split()) == f"name template µs GFLOP/s {switches}"
    workload = load_suite("im2win-thesis", "cuda")["conv1"]
    outputs = template_named("cuda/direct").default_config(Problem(workload), H100).outputs
    assert float(lines[1].split()[4]) == pytest.approx(100 / outputs, rel=1e-3)
    assert lines[1].split()[5:] == ["100", "100", "100"]
    assert len(lines) == 1 + 12 + 2
    assert "100% without prefetch (12)" in lines[-2]
    assert lines[-1].startswith("a GPU, warm caches, medians of 3 rounds; tvmconv ")


def test_json(gpu: None) -> None:
    pytest.importorskip("torch")
    report = tvmconv_json("bench", "ablation", *H100_DIRECT, "--batch", 1)
    assert (report["rounds"], report["suite"], len(report["rows"])) == (3, "im2win-thesis", 12)
    row = report["rows"][3]
    workload = load_suite("im2win-thesis", "cuda", 1)["conv4"]
    assert (row["name"], row["template"], row["flops"]) == ("conv4", "cuda/direct", workload.flops)
    assert list(row["without"]) == SWITCHES["cuda"]
    assert row["without"]["prefetch"]["config"]["num_stages"] == 1
    assert row["without"]["prefetch"]["time"] == row["time"]


def test_some_layers(gpu: None) -> None:
    pytest.importorskip("torch")
    report = tvmconv_json("bench", "ablation", "conv9", "conv4", *H100_DIRECT)
    assert [row["name"] for row in report["rows"]] == ["conv4", "conv9"]
    result = tvmconv("bench", "ablation", "conv13", "--target", "nvidia/nvidia-h100")
    assert result.exit_code == 2
    assert "layer is 'conv13'; expected some of conv1, conv2" in result.stderr


def test_an_algorithm_that_there_is_not() -> None:
    assert tvmconv("bench", "ablation", "--algorithm", "winograd").exit_code == 2
