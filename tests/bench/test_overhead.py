"""`tvmconv bench overhead`: every way to call is checked and timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv.bench import overhead
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime import operators

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("brief")

OURS = ["tvmconv.depthwise", "tvmconv.depthwise, out=", "operator", "operator, out=", "network", "the kernel itself"]
ROWS = [("torch.conv2d", "torch"), *((name, kind) for kind in ("torch", "numpy") for name in OURS)]


def test_json() -> None:
    report = tvmconv_json("bench", "overhead", "--rounds", 2)
    assert [(row["name"], row["arrays"]) for row in report["rows"]] == ROWS
    assert all(0 < row["time"]["low"] <= row["time"]["median"] <= row["time"]["high"] < 0.1 for row in report["rows"])
    assert report["workload"]["groups"] == 4
    assert report["rounds"] == 2


def test_table() -> None:
    headers, *rows, note = tvmconv("bench", "overhead", "--rounds", 1).stdout.splitlines()
    assert headers.split() == ["call", "arrays", "µs", "low-high", "torch.conv2d", "/", "this"]
    assert [tuple(row.rsplit(maxsplit=4)[:2]) for row in rows] == ROWS
    assert rows[0].split()[-1] == "1"
    assert note.startswith("depthwise 1x4x4x4 -> 4, 3x3 padding 1,1,1,1, ")


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.Operator.__call__

    def wrong(self: operators.Operator, x: Any, w: Any, **rest: Any) -> Any:
        result = right(self, x, w, **rest)
        return result + 1 if isinstance(result, np.ndarray) else result

    monkeypatch.setattr(operators.Operator, "__call__", wrong)
    result = tvmconv("bench", "overhead", "--rounds", 1)
    assert (result.exit_code, result.stdout) == (5, "")
    assert "operator of arrays of numpy computes depthwise 1x4x4x4 -> 4, 3x3 padding 1,1,1,1 wrongly" in result.stderr


def test_the_workload_is_one_that_a_thread_computes_alone() -> None:
    workload = overhead.WORKLOAD
    assert isinstance(workload, ConvWorkload)
    assert not operators.compile(workload).selection.config.parallel
