"""Records of several layers in one kernel: their lines in a log, and the choice that they make for a network."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.schedules.configured import FUSED
from tvmconv.autotvm import task
from tvmconv.autotvm.history import apply_history_best
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record, append, decode, encode
from tvmconv.dispatch import select
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import DeviceFacts, resolve_target

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
DEVICE = DeviceFacts("NVIDIA H100 80GB HBM3", "580.1")


def task_of(name: str) -> task.ConvTask:
    return task.create(FUSED[name].workload, SM_90, precision=FUSED[name].precision)


def record(name: str, index: int, seconds: float) -> Record:
    """Return the record of an invented trial."""
    made = task_of(name)
    result = MeasureResult((seconds,), Status.OK, None, 0.25, 1e9, DEVICE)
    return Record.of(MeasureInput(SM_90, made, made.space.configs[index], Stage.CONFIRM), result)


@pytest.mark.parametrize("name", FUSED)
def test_a_record_survives_its_line(name: str) -> None:
    whole = record(name, 1, 1e-6)
    assert decode(encode(whole)) == whole
    assert whole.workload == FUSED[name].workload
    assert whole.problem == FUSED[name]


@pytest.mark.parametrize("name", FUSED)
def test_the_fastest_configuration_of_a_log_is_taken(name: str, tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", [record(name, index, seconds) for index, seconds in ((0, 3e-6), (1, 2e-6))])
    made = task_of(name)
    with apply_history_best(tmp_path / "log.jsonl"):
        selection = select(made.problem, SM_90)
    assert selection.config == made.space.configs[1]
    assert selection.reason.startswith("tuned: 2.00 µs on NVIDIA H100")
    assert select(made.problem, SM_90).config == made.space.default


@pytest.mark.parametrize("wrong", ['{"type": "attention"}', "no JSON", '{"type": "pooling"}'])
def test_other_text_is_no_record(wrong: str) -> None:
    line = json.loads(encode(record("cuda/attention-0", 0, 1e-6)))
    line["input"][2] = [wrong]
    with pytest.raises(msgspec.ValidationError):
        decode(json.dumps(line).encode())


@pytest.mark.parametrize("name", FUSED)
def test_sparsity_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"None for {FUSED[name].workload.kind}"):
        task.create(FUSED[name].workload, SM_90, sparsity=0.9)
