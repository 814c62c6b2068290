"""The levels of docs/levels/ on a real GPU: numbers of the whole problem, and a time of each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.levels import by_file, level
from tvmconv.targets import arch_of, has_gpu, resolve_target

__all__ = ["level"]

ROLES = 7
"""The level that needs sm_90."""


@by_file
def test_numbers_and_time(level: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if level.number == ROLES and has_gpu() and arch_of(resolve_target("cuda")) != "sm_90":
        pytest.skip("it is for sm_90")
    level.run()
    assert " times as fast as level 1\n" in capsys.readouterr().out
