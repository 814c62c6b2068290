"""Records of devices like the present one: when they are used, and that its own come first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tvmconv import ConvWorkload
from tvmconv.autotvm import task
from tvmconv.autotvm.history import apply_history_best
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record, append
from tvmconv.dispatch import select
from tvmconv.dispatch import selection as selecting
from tvmconv.dispatch.history import History, applicable, expected_gain
from tvmconv.dispatch.record import Log
from tvmconv.problem import Problem
from tvmconv.schedules.space import Space
from tvmconv.targets import DeviceFacts, resolve_target

WORKLOAD = ConvWorkload.conv2d((1, 32, 28, 28), (64, 32, 3, 3))
EPYC, RYZEN = (
    {threads: DeviceFacts(f"{name} (znver4)", threads=threads) for threads in (1, 2, 8, 64)}
    for name in ("AMD EPYC", "AMD Ryzen")
)
H100, H200, A100 = (
    DeviceFacts(name, driver="580.1") for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB")
)
TARGETS = {"cpu": {"kind": "llvm", "mcpu": "znver4"}, "gpu": {"kind": "cuda", "arch": "sm_90"}}


@cache
def tuned(kind: str) -> task.Task:
    """Return the task of "cpu" or "gpu", whose space takes a second to list."""
    return task.create(WORKLOAD, TARGETS[kind], "direct")


def records(device: DeviceFacts, best: Any, best_cost: float = 1e-6, default_cost: float | None = 2e-6) -> list[Record]:
    """Return records that a tuning run confirmed on a device: of a configuration, and of a default with a cost."""
    of = tuned("gpu" if device.threads is None else "cpu")
    costs = {best: best_cost} if default_cost is None else {best: best_cost, of.space.default: default_cost}
    return [
        Record.of(
            MeasureInput(of.target, of, config, Stage.CONFIRM),
            MeasureResult((cost,), Status.OK, None, 0.1, 1e9, device),
        )
        for config, cost in costs.items()
    ]


def another(kind: str, **knobs: Any) -> Any:
    """Return a configuration of the space that is not the default, with these knobs."""
    space = tuned(kind).space
    wanted = knobs.items()
    return next(each for each in space.configs if each != space.default and wanted <= vars(each).items())


@dataclass(frozen=True)
class Case:
    id: str
    measured_on: DeviceFacts
    here: DeviceFacts
    serves: bool
    best_cost: float = 1e-6
    default_cost: float | None = 2e-6


CASES = (
    Case("fewer-threads", EPYC[1], EPYC[2], True),
    Case("more-threads", EPYC[8], EPYC[2], True),
    Case("another-name-with-the-same-core", EPYC[2], RYZEN[2], True),
    Case("another-core", DeviceFacts("AMD EPYC (znver5)", threads=2), EPYC[2], False),
    Case("no-faster-than-the-default", EPYC[1], EPYC[2], False, best_cost=1.99e-6),
    Case("the-default-was-not-measured", EPYC[1], EPYC[2], False, default_cost=None),
    Case("an-H100-for-an-H200", H100, H200, True),
    Case("an-H200-for-an-H100", H200, H100, True),
    Case("another-GPU", A100, H200, False),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_records_of_siblings(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "gpu" if case.here.threads is None else "cpu"
    target = resolve_target(TARGETS[kind])
    monkeypatch.setattr(selecting, "device_here", lambda target: case.here)
    monkeypatch.setattr(selecting, "shipped", lambda: History(Log(), "nothing"))
    best, log = another(kind), tmp_path / "log.jsonl"
    append(log, records(case.measured_on, best, case.best_cost, case.default_cost))
    with apply_history_best(log):
        if not case.serves:
            with pytest.warns(UserWarning, match=re.escape(f"measured on {case.measured_on.name}")):
                assert select(Problem(WORKLOAD), target, algorithm="direct").reason == "default configuration"
            return
        selection = select(Problem(WORKLOAD), target, algorithm="direct")
        assert selection.config == best
        assert selection.reason == f"tuned, by a sibling: 1.00 µs on {case.measured_on} ({log})"

        own = another(kind, tiles=2) if kind == "cpu" else tuned(kind).space.configs[5]
        append(log, records(case.here, own, best_cost=9e-6, default_cost=None))
    with apply_history_best(log):  # slower than the other's, by another's clock
        selection = select(Problem(WORKLOAD), target, algorithm="direct")
        assert selection.config == own
        assert selection.reason == f"tuned: 9.00 µs on {case.here} ({log})"


@pytest.mark.parametrize("constant", [False, True])
def test_networks_take_the_records_that_operators_take(constant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network has another default here, as its weight is a constant: the one that was measured is an operator's."""
    problem = Problem(ConvWorkload.conv2d((128, 512, 1, 1), (1000, 512, 1, 1)), constant_weight=constant)
    target = resolve_target(TARGETS["gpu"])
    of = task.create(problem.workload, target, "tensor")
    default = of.template.default_config(of.problem, target)
    assert (of.template.default_config(problem, target) == default) is not constant
    best = replace(default, num_stages=default.num_stages - 1)
    monkeypatch.setattr(Space, "number", lambda *_: None)  # listing the space takes seconds
    ended = partial(MeasureResult, status=Status.OK, reason=None, all_cost=0.1, timestamp=1e9, device=H200)
    log = Log(
        [
            Record.of(MeasureInput(of.target, of, config, Stage.CONFIRM), ended((cost,)))
            for config, cost in ((best, 1e-6), (default, 2e-6))
        ]
    )
    monkeypatch.setattr(selecting, "device_here", lambda target: H100)
    monkeypatch.setattr(selecting, "shipped", lambda: History(log, "a log"))
    selection = select(problem, target, algorithm="tensor")
    assert (selection.config, selection.reason) == (best, f"tuned, by a sibling: 1.00 µs on {H200} (a log)")


def test_the_nearest_sibling_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, log = resolve_target(TARGETS["cpu"]), tmp_path / "log.jsonl"
    monkeypatch.setattr(selecting, "device_here", lambda target: EPYC[2])
    configs = tuned("cpu").space.configs
    for index, device in enumerate((RYZEN[8], EPYC[8], EPYC[64], RYZEN[2]), start=1):
        append(log, records(device, configs[index], best_cost=index * 1e-7))
        with apply_history_best(log):
            nearest = device if device is not EPYC[64] else EPYC[8]
            assert f" on {nearest} (" in select(Problem(WORKLOAD), target, algorithm="direct").reason


def test_a_tuning_run_does_not_go_on_from_a_sibling() -> None:
    assert applicable(records(EPYC[1], another("cpu")), tuned("cpu"), EPYC[2]) == []


def test_too_few_tasks_for_many_threads() -> None:
    """Half the time on one thread is no gain on 64: the default keeps them busy, two tasks do not."""
    of = tuned("cpu")
    template, default = of.template, of.space.default

    def tasks(config: Any) -> int:
        return int(template.features(Problem(WORKLOAD), config, of.target)["tasks"])

    few = next(config for config in of.space.configs if tasks(config) == 2 and config.parallel)
    serial = replace(default, parallel=False)
    assert (tasks(default), tasks(serial)) == (56, 56)

    def gain(config: Any, measured_on: int, threads: int) -> float:
        on, here = EPYC[measured_on], EPYC[threads]
        return expected_gain((config, 1.0), (default, 2.0), Problem(WORKLOAD), template, of.target, on, here)

    assert [gain(few, 1, threads) for threads in (1, 2, 8, 64)] == pytest.approx([2, 2, 2 * 2 / 8, 2 * 2 / 56])
    assert [gain(serial, 1, threads) for threads in (1, 2, 8, 64)] == pytest.approx([2, 2 / 2, 2 / 8, 2 / 56])
    assert gain(few, 8, 2) == pytest.approx(2 * 28 / 7)
