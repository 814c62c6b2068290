"""Gradients in tuning: tasks, the tuner's workers, and records, which calls use."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.schedules.cases.gradients import GRADIENTS, check, geometry
from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.autotvm import apply_history_best, task
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record, append, decode, encode, load_from_file
from tvmconv.checking.operands import Sample
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import gradients, operators
from tvmconv.support.cache import Cache
from tvmconv.targets import device_facts, resolve_target
from tvmconv.testing import random_operands

WORKLOAD = ConvWorkload.depthwise((2, 4, 12, 11), (4, 1, 3, 3), stride=2)
EVEN = ConvWorkload.depthwise((2, 4, 12, 11), (4, 1, 3, 3), padding=(0, 1, 1, 2))

by_gradient = pytest.mark.parametrize("direction", GRADIENTS)


def record(direction: str, index: int) -> Record:
    made = task.create(WORKLOAD, "llvm", direction=direction)
    result = MeasureResult((2e-6,), Status.OK, None, 0.25, 1e9, device_facts("llvm"))
    return Record.of(MeasureInput(made.target, made, made.space.configs[index], Stage.SEARCH), result)


@by_gradient
def test_a_record_has_the_direction(direction: str) -> None:
    line = encode(record(direction, 1))
    assert f'{{"direction":"{direction}"}}'.encode() in line
    assert decode(line).problem == Problem(WORKLOAD, direction=direction)
    with pytest.raises(msgspec.ValidationError, match="direction is 'backward'"):
        decode(line.replace(direction.encode() + b'"}', b'backward"}'))


@by_gradient
def test_calls_use_records(direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of one batch serves for that batch, by a kernel that is chosen for it."""
    kernels: Cache[tuple[Problem, str, str, operators.State], operators.Operator] = Cache(9)
    monkeypatch.setattr(operators, "_operators", kernels)
    log, tuned = tmp_path / "log.jsonl", record(direction, 3)
    append(log, [tuned])
    arrays = random_operands(WORKLOAD, direction=direction)
    first, second, _ = arrays.values()
    with apply_history_best(log):
        got = getattr(gradients, direction)(first, second, geometry(WORKLOAD))
        selection = select(Problem(WORKLOAD, direction=direction), resolve_target("llvm"))
        other = select(Problem(WORKLOAD), resolve_target("llvm"))
    check(direction, WORKLOAD, arrays, got)
    assert selection.reason.startswith("tuned: 2.00 µs")
    assert msgspec.to_builtins(selection.config) == tuned.knobs
    assert [(problem.open_sizes, selection.config) for problem, *_ in kernels] == [((), selection.config)]
    assert other.reason == "default configuration"


@pytest.mark.usefixtures("one_round", "without_torch")
@by_gradient
def test_the_command_tunes(direction: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    asked = ["tune", "--workload", WORKLOAD.to_json(), "--direction", direction, "-o", log, "--tuner", "random"]
    (task_,) = tvmconv_json(*asked, "--trials", 3, "--number", 1, "--repeat", 1, "--min-repeat-ms", 0)["tasks"]
    assert task_["direction"] == direction
    records = load_from_file(log).records
    assert {each.template for each in records} == {f"cpu/{direction}"}
    assert {each.status for each in records} == {Status.OK}
    assert f"cpu/{direction}" in tvmconv("log", "best", log).stdout
    shown = tvmconv("inspect", WORKLOAD.to_json(), "--direction", direction, "--tuning-records", log).stdout
    assert f"cpu/{direction}" in shown
    assert "tuned: " in shown


def test_a_gradient_that_is_a_convolution_is_tuned_as_one(tmp_path: Path) -> None:
    made = task.create(EVEN, "llvm", direction="input_gradient")
    assert made.name == "cpu/depthwise"
    assert made.problem == Problem(
        msgspec.structs.replace(EVEN, height=11, width=12, padding=(2, 1, 1, 0)),
    )
    assert "taps mirrored" in tvmconv("inspect", EVEN.to_json(), "--direction", "input_gradient").stdout
    assert task.create(EVEN, "llvm", direction="weight_gradient").name == "cpu/weight_gradient"


def test_tasks_of_a_suite() -> None:
    made = task.extract_from_suite("depthwise-networks", "llvm", direction="weight_gradient")
    assert {each.name for each in made} == {"cpu/weight_gradient"}
    assert {each.direction for each in made} == {"weight_gradient"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "backward"}, "direction is 'backward'; expected one of forward"),
        ({"direction": "input_gradient", "sparsity": 0.5}, "expected forward for a sparse kernel"),
        ({"direction": "input_gradient", "algorithm": "direct"}, "cpu/direct computes forward, not input_gradient"),
    ],
)
def test_bad_tasks(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        _ = task.create(WORKLOAD, "llvm", **options).template  # type: ignore[call-overload]


def test_gradients_of_dense_convolutions_are_refused() -> None:
    dense = ConvWorkload.conv2d((2, 4, 12, 11), (8, 4, 3, 3))
    with pytest.raises(InvalidArgumentError, match="cpu/weight_gradient is for depthwise convolutions$"):
        select(Problem(dense, direction="weight_gradient"), resolve_target("llvm"))


@by_gradient
def test_a_sample_of_a_gradient_is_compared(direction: str) -> None:
    """A trial compares some planes, or channels, of a large result, and sees that all are written."""
    workload = ConvWorkload.depthwise((2, 30, 9, 10), (30, 2, 3, 3))
    arrays = random_operands(workload, direction=direction)
    first, second, _ = arrays.values()
    got = getattr(gradients, direction)(first, second, geometry(workload))
    sample = Sample(Problem(workload, direction=direction), arrays, np.random.default_rng(0), got.size // 5)
    sample.check(got)
    wrong = got.copy()
    wrong[-1, -1] += 1
    with pytest.raises(AssertionError, match="elements are wrong"):
        sample.check(wrong)
    wrong[1, 0, 0] = np.nan
    with pytest.raises(AssertionError, match="are not written"):
        sample.check(wrong)
