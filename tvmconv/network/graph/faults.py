"""Errors that tell a limit of TVM from a bug of tvmconv."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm

from tvmconv import errors, schedules
from tvmconv.errors import TvmconvError

from .importer_errors import summary

TVMS = str(Path(tvm.__file__).parent)
OURS = tuple(str(Path(file).parent) for file in (errors.__file__, schedules.__file__))
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class Refused(Exception):  # noqa: N818
    """Raised for a model that cannot be imported or compiled; who knows the node raises `UnsupportedModelError`."""

    def __init__(self, problem: str, hint: str | None = None, nodes: Sequence[Any] = ()) -> None:
        """Keep the problem, `hint`, which says what would help, and `nodes`, those at fault where they are known."""
        super().__init__(problem, hint, nodes)
        self.problem = problem
        self.hint = hint
        self.nodes = nodes


@contextmanager
def tvm_at_work() -> Iterator[None]:
    """Raise `Refused` for an error of TVM, which has no error of its own for models that it cannot handle.

    TVM calls code of tvmconv back, in passes and converters, and this calls TVM again. The code that was running, but
    for that of libraries which it had called, tells whose error it is: one of tvmconv is a bug, and is passed on.
    """
    try:
        yield
    except (TvmconvError, Refused):
        raise
    except Exception as error:
        called = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not _is_tvms(called):
            raise
        raise Refused(summary(error)) from error


def _is_tvms(called: Sequence[str]) -> bool:
    """Return whether the last of the called files is TVM's, other libraries left out."""
    for file in reversed(called):
        if file.startswith(OURS):
            return False
        if file.startswith(TVMS) or _is_compiled(file):
            return True
        if not file.startswith(LIBRARIES):
            return False
    return False


def _is_compiled(file: str) -> bool:
    """Return whether a file of a traceback is one of TVM's compiled sources, which are not on this machine."""
    return not Path(file).exists()
