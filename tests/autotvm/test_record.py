"""Tuning logs: the content of a line, damaged lines, and the choice of records that may be used."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm

import tvmconv
from tests.shared.records import DEVICE, TASK, WORKLOAD, record
from tvmconv import ConvWorkload
from tvmconv.autotvm import task
from tvmconv.autotvm.history import apply_history_best, best_record
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record, append, decode, encode, load_from_file
from tvmconv.dispatch.history import objection
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import DeviceFacts


def test_a_line_has_the_layout_of_autotvm() -> None:
    line = json.loads(encode(record(index=3)))
    target, name, (workload,), options = line["input"]
    assert (json.loads(target)["kind"], name, options) == ("llvm", "cpu/depthwise", {})
    assert ConvWorkload.from_json(json.dumps(workload)) == WORKLOAD
    knobs = msgspec.to_builtins(TASK.space.configs[3])
    assert line["config"] == {"index": 3, "code_hash": None, "entity": [[name, "ot", knobs[name]] for name in knobs]}
    assert line["result"] == [[2e-6, 1e-6, 3e-6], 0, 0.25, 1e9]
    assert (line["version"], line["tvm_version"]) == (0.2, tvm.__version__)
    assert line["versions"]["tvmconv"] == tvmconv.__version__
    assert line["device"]["name"] == DEVICE.name


def test_a_record_survives_its_line() -> None:
    whole = record(status=Status.CRASH, costs=())
    assert decode(encode(whole)) == whole
    assert len(str(whole.reason)) <= 300
    assert "\n" not in str(whole.reason)


def test_damaged_and_foreign_lines_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    line = encode(record())
    foreign = [b"# a comment\n", b'{"input": 1}\n', line.replace(b'"version":0.2', b'"version":0.1'), b"\xff\xfe\n"]
    log.write_bytes(line + b"".join(foreign) + line[: len(line) // 2])
    append(log, [record(index=1)])
    found = load_from_file(log)
    assert [item.config.index for item in found.records] == [0, 1]
    assert found.skipped == {"foreign": 4, "torn": 1}


def test_trials_without_an_end_are_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, [record(0, (), Status.STARTED), record(0), record(1, (), Status.STARTED)])
    found = load_from_file(log)
    assert [item.config.index for item in found.records] == [0]
    assert [item.config.index for item in found.under_way] == [1]


@pytest.mark.usefixtures("without_torch")
def test_several_writers_share_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    line = tmp_path / "line"
    line.write_bytes(encode(record()))
    script = (
        "import sys; from tvmconv.autotvm.record import append, decode\n"
        "one = decode(open(sys.argv[1], 'rb').read())\n"
        "for _ in range(300): append(sys.argv[2], [one])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(line), str(log)]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = load_from_file(log)
    assert (len(found.records), found.skipped) == (600, {})


def test_a_log_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"nowhere\.jsonl"):
        load_from_file("nowhere.jsonl")


@pytest.mark.parametrize("content", [gzip.compress(bytes(1000))[:15], b"plain"], ids=["torn", "not-compressed"])
def test_a_damaged_compressed_log_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.gz").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"log\.gz"):
        load_from_file(tmp_path / "log.gz")


def test_confirmed_records_decide() -> None:
    lucky, steady = record(1, [1e-6]), record(2, [2e-6])
    again = [record(1, [4e-6], stage=Stage.CONFIRM), record(2, [3e-6, 2e-6], stage=Stage.CONFIRM)]
    assert best_record([lucky, steady]).config.index == 1
    best = best_record([lucky, steady, *again])
    assert (best.config.index, best.cost) == (2, pytest.approx(2.5e-6))
    failed = record(2, (), Status.WRONG_ANSWER, Stage.CONFIRM)
    assert best_record([lucky, steady, *again, failed]).config.index == 1
    assert best_record([failed]) is None


def test_the_best_record_is_applied_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log.jsonl"
    append(log, [record(4, [5e-6]), record(5, [2e-6])])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in (WORKLOAD.x_shape, WORKLOAD.w_shape))
    caplog.set_level("INFO", "tvmconv")
    with apply_history_best(log):
        tvmconv.depthwise(x, w)
        operator = tvmconv.compile(WORKLOAD)
        fused = tvmconv.compile(msgspec.structs.replace(WORKLOAD, epilogue=tvmconv.Epilogue(shift=True, low=0.0)))
    assert operator.selection.config == TASK.space.configs[5]
    assert operator.selection.reason == f"tuned: 2.00 µs on {DEVICE} ({log})"
    assert "tuned: 2.00 µs" in caplog.messages[0]
    assert fused.selection.reason.startswith("tuned without its epilogue: 2.00 µs")
    assert tvmconv.compile(WORKLOAD).selection.reason == "default configuration"
    np.testing.assert_allclose(operator(x, w), tvmconv.depthwise(x, w), rtol=1e-5, atol=1e-6)


OTHERS = {
    "device": ({"device": DeviceFacts("Another CPU", threads=DEVICE.threads)}, "measured on Another CPU"),
    "threads": ({"device": DeviceFacts(DEVICE.name, threads=99)}, "99 threads"),
    "tvm": ({"tvm_version": "0.1"}, "made with TVM 0.1"),
    "template": ({"versions": msgspec.structs.replace(record().versions, template=0)}, "of version 0 of the template"),
    "processor": (
        {"input": (record().target.replace(str(TASK.target.attrs["mcpu"]), "atom"), *record().input[1:])},
        "made for atom",
    ),
    "knobs": ({"config": msgspec.structs.replace(record().config, entity=(("rows", "ot", 1),))}, "with other knobs"),
}


@pytest.mark.parametrize(("changes", "objection"), OTHERS.values(), ids=OTHERS.keys())
def test_records_of_something_else_are_left_out_with_a_warning(
    tmp_path: Path, changes: dict[str, object], objection: str
) -> None:
    log = tmp_path / "log.jsonl"
    append(log, [msgspec.structs.replace(record(5), **changes)])
    with apply_history_best(log), pytest.warns(UserWarning, match=objection) as warned:
        assert tvmconv.compile(WORKLOAD).selection.reason == "default configuration"
    assert len(warned) == 1


def test_an_illegal_configuration_is_not_applied(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    good = record(5)
    entity = tuple((name, kind, 10**6 if name == "rows" else value) for name, kind, value in good.config.entity)
    append(log, [msgspec.structs.replace(good, config=msgspec.structs.replace(good.config, entity=entity))])
    with apply_history_best(log):
        assert tvmconv.compile(WORKLOAD).selection.reason == "default configuration"


@pytest.mark.parametrize(
    ("model", "why"), [("H100", None), (None, None), ("H200", "measured on NVIDIA H100 80GB HBM3")]
)
def test_records_of_another_model_than_the_targets_are_left_out_where_there_is_no_gpu(
    model: str | None, why: str | None
) -> None:
    fields = {"kind": "cuda", "arch": "sm_90"}
    here = task.create(WORKLOAD, fields if model is None else {**fields, "model": model})
    result = MeasureResult((1e-6,), Status.OK, None, 0.1, 0.0, DeviceFacts("NVIDIA H100 80GB HBM3", "580"))
    there = task.create(WORKLOAD, fields)
    made = Record.of(MeasureInput(there.target, there, here.space.default), result)
    assert objection(made, here.target, here.maker, None) == why


def test_a_log_that_is_applied_again_finds_its_kernels(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append(log, [record(5)])
    with apply_history_best(log) as first:
        pass
    with apply_history_best(log) as second:
        assert second.history is first.history
    append(log, [record(6)])
    with apply_history_best(log) as grown:
        assert grown.history is not first.history
    with pytest.raises(InvalidArgumentError, match=r"nowhere\.jsonl"), apply_history_best("nowhere.jsonl"):
        pass
