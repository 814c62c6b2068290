"""Knobs that have got another name: records and saved operators with the former names are read as before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconv
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.autotvm.history import apply_history_best
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Status
from tvmconv.autotvm.record import Record, decode, encode
from tvmconv.autotvm.task import ConvTask, create
from tvmconv.dispatch import select
from tvmconv.dispatch.history import device_here
from tvmconv.dispatch.registry import TEMPLATES
from tvmconv.runtime import storage
from tvmconv.schedules.space import Space
from tvmconv.targets import device_facts, resolve_target
from tvmconv.testing.configs import legal_configs

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
DENSE = ConvWorkload.conv2d((2, 16, 9, 11), (24, 16, 3, 3), padding=1)

GEMM = (
    *("threads_m", "threads_n", "lanes_m", "vthreads_m", "vthreads_n", "channels", "pixels"),
    *("chunk_c", "chunk_r", "chunk_s", "stages", "asynchronous", "packed", "load", "store", "parts", "resident"),
)
DEPTHWISE = (
    *("planes", "threads_y", "threads_x", "vthreads_y", "vthreads_x", "rows", "columns", "vector"),
    *("unroll", "shared_input", "shared_filter", "load", "siblings", "flat"),
)

FORMER = {
    "cuda/direct": (create(DENSE, SM_90, algorithm="direct"), GEMM),
    "cuda/im2win": (create(DENSE, SM_90, algorithm="im2win"), GEMM),
    "cuda/depthwise": (create(ConvWorkload.depthwise((1, 8, 14, 14), (8, 1, 3, 3)), SM_90), DEPTHWISE),
    "cuda/sparse": (
        create(DENSE, SM_90, sparsity=0.9),
        ("channels", "images", "threads_y", "threads_x", "rows", "columns", "chunk", "buffers", "tiles"),
    ),
    "cuda/input_gradient": (
        create(ConvWorkload.depthwise((1, 8, 14, 14), (8, 1, 3, 3), stride=2), SM_90, direction="input_gradient"),
        ("threads_z", "threads_y", "threads_x", "thread_y", "thread_x", "load"),
    ),
    "cpu/sparse": (create(DENSE, "llvm", sparsity=0.9), ("channels", "vectors", "rows", "shares", "parallel")),
}
"""A task of each template with renamed knobs, and the names that its knobs had, in their order."""


def former_line(task: ConvTask, config: Any, names: tuple[str, ...]) -> bytes:
    """Return the line of a configuration's record as it was with the former names."""
    device = device_here(task.target) or device_facts("llvm")
    result = MeasureResult((1e-6,), Status.OK, None, 0.25, 1e9, device)
    line = json.loads(encode(Record.of(MeasureInput(task.target, task, config), result)))
    values = (value for _, _, value in line["config"]["entity"])
    line["config"]["entity"] = [[name, "ot", value] for name, value in zip(names, values, strict=True)]
    return json.dumps(line).encode()


@pytest.mark.parametrize(
    ("task", "names"), sparing(FORMER.values(), lambda number: number != 1), ids=FORMER.keys()
)  # "cuda/im2win" has the knobs of "cuda/direct"
def test_record_with_former_names_is_read_and_applied(
    tmp_path: Path, task: ConvTask, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, "number", lambda *_: None)  # listing the space takes seconds
    config = next(each for each in legal_configs(task.space, task.name) if each != task.space.default)
    line = former_line(task, config, names)
    assert decode(line).knobs == asdict(config)
    (tmp_path / "log.jsonl").write_bytes(line + b"\n")
    with apply_history_best(tmp_path / "log.jsonl"):
        selection = select(task.problem, task.target, algorithm=task.algorithm)
    assert (selection.name, selection.config) == (task.name, config)
    assert selection.reason.startswith("tuned")


def test_templates_with_former_names_are_all_tested() -> None:
    renamed = {name for name, template in TEMPLATES.items() if hasattr(template.Config, "FORMER_NAMES")}
    assert renamed == FORMER.keys()


@pytest.mark.parametrize(("task", "names"), FORMER.values(), ids=FORMER.keys())
def test_no_knob_has_the_former_name_of_another(task: ConvTask, names: tuple[str, ...]) -> None:
    table: Mapping[str, str] = task.template.Config.FORMER_NAMES
    knobs = tuple(each.name for each in fields(task.template.Config))
    assert table == {former: now for former, now in zip(names, knobs, strict=True) if former != now}
    assert table.keys().isdisjoint(knobs)


def test_saved_operator_with_former_names_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype("float32")
    weight[:, ::2] = 0
    convolution = tvmconv.sparse_conv2d(weight)
    x = np.ones((1, 4, 9, 9), "float32")
    expected, save = convolution(x), storage.save

    def save_as_before(executable: Any, kind: Any, target: str, details: dict[str, Any], path: Path) -> None:
        config = details["config"]
        config["channels"] = config.pop("block_m")
        save(executable, kind, target, details, path)

    monkeypatch.setattr(storage, "save", save_as_before)
    convolution.save(tmp_path / "sparse.so")
    loaded = tvmconv.load(tmp_path / "sparse.so")
    (before,) = convolution.operators
    assert loaded.selection.config == before.selection.config
    np.testing.assert_array_equal(loaded(x), expected)
