"""The example that prunes a network whose weights training has shaped: the sparse kernels change nothing."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pruned_digits.py"


def test_example() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    result = runpy.run_path(str(EXAMPLE))["run"](channels=16, epochs=6)
    first, *others, classifier = result.network.layers
    assert [first.kernel, classifier.kernel] == ["tvmconv cpu/depthwise", "tvmconv cpu/direct"]
    assert [layer.kernel for layer in others] == ["tvmconv cpu/sparse"] * 2
    assert all(re.match(r"(90|89\.9)% of the weight is zero; ", layer.reason) for layer in others)
    assert result.before > 0.9
    assert result.pruned > 0.85
    assert result.sparse == result.dense == pytest.approx(result.pruned, abs=0.005)
    assert 0 <= result.difference < 1e-5
    assert np.isfinite(result.difference)
