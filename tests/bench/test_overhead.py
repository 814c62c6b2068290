"""`benchmarks/overhead.py`: every way to call is checked and timed; and the harness of the scripts, by its example."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shared.scripts import FOLDER, rows_of, script
from tvmconv.runtime import operators

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("brief")

OURS = ["tvmconv.depthwise", "tvmconv.depthwise, out=", "operator", "operator, out=", "network", "the kernel itself"]
ROWS = [("torch.conv2d", "torch"), *((name, kind) for kind in ("torch", "numpy") for name in OURS)]


def test_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a line for each row, and writes all rows with the device, the versions and the options."""
    path = tmp_path / "overhead.json"
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--rounds", "1", "-o", str(path)])
    with script("overhead"):
        runpy.run_path(str(FOLDER / "overhead.py"), run_name="__main__")
    document = json.loads(path.read_bytes())
    assert {"device", "versions", "rows"} < document.keys()
    assert (document["rounds"], document["target"]) == (1, "llvm")
    assert [(row["name"], row["arrays"]) for row in document["rows"]] == ROWS
    assert all(0 < row["time"]["low"] <= row["time"]["median"] <= row["time"]["high"] < 0.1 for row in document["rows"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ROWS)
    assert lines[0].startswith("name torch.conv2d, arrays torch, time ")
    assert " µs (" in lines[0]


def test_a_row_is_a_line() -> None:
    timing = {"median": 2e-6, "low": 1e-6, "high": 3e-6}
    row = {
        "name": "conv",
        "shape": (1, 2),
        "error": 1.5e-7,
        "none": None,
        "memory": {"open": 1},
        "times": {"tvm": timing},
    }
    with script("script") as harness:
        told = "name conv, shape (1, 2), error 1.5e-07, memory open 1, times tvm 2.0 µs (1.0-3.0)"
        assert harness.described(row) == told
        assert harness.described({"name": "conv"}) == "name conv"


def test_results_are_compared_with_the_exact_one() -> None:
    exact = torch.tensor([1.0, -4.0], dtype=torch.float64)
    with script("script") as harness:
        assert harness.errors_of({"near": exact.float() + 0.004}, exact, 0.01, "a sum")["near"] == pytest.approx(
            0.001, rel=1e-3
        )
        for wrong in (exact + 0.1, exact * float("nan")):
            with pytest.raises(AssertionError, match="a sum: wrong by {'far'"):
                harness.errors_of({"far": wrong}, exact, 0.01, "a sum")


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.Operator.__call__

    def wrong(self: operators.Operator, x: Any, w: Any, **rest: Any) -> Any:
        result = right(self, x, w, **rest)
        return result + 1 if isinstance(result, np.ndarray) else result

    monkeypatch.setattr(operators.Operator, "__call__", wrong)
    with script("overhead") as overhead, pytest.raises(AssertionError):
        rows_of(overhead, target="llvm", rounds=1)


def test_the_workload_is_one_that_a_thread_computes_alone() -> None:
    with script("overhead") as overhead:
        assert not operators.compile(overhead.WORKLOAD).selection.config.parallel
