"""The levels of docs/levels/, which import what they share as a script does: from their own folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "levels"
FILES = sorted(FOLDER.glob("[0-9]*.py"))
by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@pytest.fixture
def level(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the level of a file."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module(path.stem).LEVEL
