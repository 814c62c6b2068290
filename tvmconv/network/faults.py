"""Errors that tell a limit of TVM from a bug of tvmconv."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import Any

import tvm

from ..errors import TvmconvError
from .importer_errors import summary

TVMS = str(Path(tvm.__file__).parent)
OURS = str(Path(__file__).parent.parent)


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

    TVM calls code of tvmconv back, in passes and converters. An error that this code raises is a bug and is passed on
    as it is, unless TVM's compiled code raised it.
    """
    try:
        yield
    except (TvmconvError, Refused):
        raise
    except Exception as error:
        called = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        # Before TVM are the frames that called it.
        inside = dropwhile(lambda file: not file.startswith(TVMS), called)
        if any(file.startswith(OURS) for file in inside) and not is_compiled(called[-1]):
            raise
        if not any(file.startswith(TVMS) for file in called):  # it was not TVM that was called
            raise
        raise Refused(summary(error)) from error


def is_compiled(file: str) -> bool:
    """Return whether a file of a traceback is one of TVM's compiled sources, which are not on this machine."""
    return not Path(file).exists()
