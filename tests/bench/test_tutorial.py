"""`tvmconv bench tutorial`: its configurations on the CPU, and its output with pretended timings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import tvm

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import targets
from tvmconv.bench.peers import Peer
from tvmconv.bench.report import Row
from tvmconv.bench.suite import How
from tvmconv.bench.timing import Timing
from tvmconv.bench.tuning import tutorial
from tvmconv.bench.tuning.tutorial import TABLES, Entry
from tvmconv.dispatch import select, template_for
from tvmconv.lowering import build, lower
from tvmconv.problem import Problem
from tvmconv.problem.errors import WrongResultError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime import operators
from tvmconv.targets import DeviceFacts, resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

CPU, H100 = resolve_target("llvm"), resolve_target("nvidia/nvidia-h100")
ENTRIES = [entry for entries in TABLES.values() for entry in entries]
SMALL = ConvWorkload.depthwise((1, 2, 9, 9), (2, 2, 3, 3), scale=True, shift=True, activation="relu")


def narrow(entry: Entry) -> ConvWorkload:
    """Return the entry's workload with three channels."""
    workload = entry.workload
    return msgspec.structs.replace(workload, in_channels=3, out_channels=3 * workload.multiplier, groups=3)


def name(entry: Entry) -> str:
    config = entry.config
    return f"{entry.workload.height}-{config.block_x}-{config.threads_y}x{config.threads_x}-{config.vthreads_x}"


@pytest.mark.parametrize("entry", ENTRIES, ids=name)
def test_configurations_are_legal(entry: Entry) -> None:
    assert template_for(Problem(entry.workload), H100).space(Problem(entry.workload), H100).violated(entry.config) == []


def test_configurations_compute_the_workloads() -> None:
    """The configurations are right as serial twins, in one module, which is much faster to build."""
    different = {(narrow(entry), entry.config): None for entry in ENTRIES}
    kernels = {
        f"kernel{i}": serial_twin(lower(Problem(workload), select(Problem(workload), H100, config), H100, f"kernel{i}"))
        for i, (workload, config) in enumerate(different)
    }
    assert len(kernels) == 17
    executable = build(tvm.IRModule(kernels), CPU)
    for kernel, (workload, _) in zip(kernels, different, strict=True):
        operands = random_operands(workload)
        tensors = [tvm.runtime.tensor(array) for array in operands.values()]
        executable[kernel](*tensors)
        check_result(workload, operands, tensors[-1].numpy())


def test_a_configuration_is_measured_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured beside tvmconv's own choice, PyTorch and copies, and only if its result is right."""
    config = replace(template_for(Problem(SMALL), CPU).default_config(Problem(SMALL), CPU), unroll=0)
    monkeypatch.setattr(tutorial, "TABLES", {"small": [tutorial.Entry(SMALL, config, 1.0)] * 2})
    used, compiled = [], operators.compile

    def recording(workload: ConvWorkload, *rest: Any) -> operators.Operator:
        used.append(compiled(workload, *rest))
        return used[-1]

    monkeypatch.setattr(operators, "compile", recording)
    ((workload, row),) = tutorial.measure_tables(CPU, rounds=1).items()
    assert workload == SMALL
    assert set(row.times) == {str(config), *tutorial.BESIDE}
    assert config in [operator.selection.config for operator in used]

    other = msgspec.structs.replace(SMALL, padding=(0, 1, 2, 1))

    def wrong_where_configured(workload: ConvWorkload, target: Any, config: Any, *rest: Any) -> operators.Operator:
        return compiled(other if config else workload, target, config, *rest)

    monkeypatch.setattr(operators, "compile", wrong_where_configured)
    with pytest.raises(WrongResultError, match=r"Config\(.*\) computes depthwise 1x2x9x9 .* elements are wrong"):
        tutorial.measure_tables(CPU, rounds=1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend a GPU on which a configuration takes 4 µs for each of its columns; PyTorch fails on 5x5 kernels."""

    def measured(suite: str, name: str, workload: ConvWorkload, target: object, peers: list[Peer], how: How) -> Row:
        assert how == How(rounds=3)
        costs = {"tvmconv": 2e-6, "pytorch": 8e-6, "copy": 3e-6, "copy-kernel": 1e-6}
        failed = {"pytorch": "out of memory"} if workload.kernel == (5, 5) else {}
        costs |= {peer.name: 4e-6 * peer.config.thread_x for peer in peers if isinstance(peer, tutorial.Configured)}
        times = {name: Timing(cost, 0.9 * cost, 1.1 * cost) for name, cost in costs.items() if name not in failed}
        return Row(suite, name, str(workload), 1, 1, "", times, {}, failed)

    monkeypatch.setattr(tutorial, "measure_row", measured)
    monkeypatch.setattr(targets, "device_of", lambda target: None)
    monkeypatch.setattr(targets, "device_facts", lambda kind: DeviceFacts("a GPU"))


def test_tables(gpu: None) -> None:
    result = tvmconv("bench", "tutorial", "--rounds", 3)
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.endswith(", µs")] == [f"{title}, µs" for title in TABLES]
    case = lines[lines.index("vthreads, µs") + 3]
    assert case.split()[-11:] == ["32x32", "8x8", "1x4", "103.1", "4", "3.6-4.4", "2", "8", "1", "2", "4"]
    assert lines[-2].startswith("* TVM depthwise tutorial")
    assert lines[-1].startswith("the others: a GPU, warm caches, medians of 3 rounds; tvmconv ")
    failing = [str(workload) for workload in dict.fromkeys(entry.workload for entry in ENTRIES) if 5 in workload.kernel]
    assert result.stderr.splitlines() == [f"pytorch on {workload}: out of memory" for workload in failing]


def test_json(gpu: None) -> None:
    report = tvmconv_json("bench", "tutorial", "--rounds", 3)
    assert [len(table["rows"]) for table in report["tables"]] == [4, 2, 4, 4, 4, 2]
    fused = report["tables"][-1]["rows"][-1]
    assert fused["gtx1080_us"] == {"tensorflow": 419.9, "tvm": 91.5}
    assert fused["workload"]["epilogue"]["low"] == 0
    assert list(fused["times"]) == ["config", *tutorial.BESIDE]
    assert fused["times"]["pytorch"] == pytest.approx({"median": 8e-6, "low": 7.2e-6, "high": 8.8e-6})
    assert fused["times"]["config"]["median"] == pytest.approx(4e-6 * fused["config"]["thread_x"])


def test_is_about_gpus() -> None:
    result = tvmconv("bench", "tutorial", "--target", "llvm")
    assert (result.exit_code, result.stdout) == (2, "")
