"""Fixtures of the tests of passes."""

from __future__ import annotations

import pytest

from tvmconv.problem import Problem


@pytest.fixture
def nhwc_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a convolution take the less time the more of its ends are in NHWC, as large ones do on a GPU."""

    def cycles(problem: Problem, _: object) -> float:
        return [problem.workload.layout, problem.workload.out_layout].count("NCHW")

    monkeypatch.setattr("tvmconv.network.passes.convolutions.layouts.least_cycles", cycles)
