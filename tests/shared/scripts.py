"""Scripts of `benchmarks/`, which is no package, in the process of the tests."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def script(name: str) -> Iterator[ModuleType]:
    """Import a script for the block; what it imports from beside it goes with it."""
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module(name)
    for each in {*sys.modules} - before:
        if Path(getattr(sys.modules[each], "__file__", None) or "/").parent == FOLDER:
            del sys.modules[each]


def rows_of(module: ModuleType, **options: Any) -> list[dict[str, Any]]:
    """Return the rows that a script yields for options, as its JSON has them."""
    rows: list[dict[str, Any]] = msgspec.to_builtins([*module.rows(argparse.Namespace(**options))])
    return rows
