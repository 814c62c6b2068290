"""What TVM cannot do, told apart from what is wrong with tvmconv itself."""

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
    """Something cannot be imported or compiled; who knows the node makes an `UnsupportedModelError` of it."""

    def __init__(self, problem: str, hint: str | None = None, nodes: Sequence[Any] = ()) -> None:
        """`hint` says what would help, `nodes` are those at fault where whoever raises this knows."""
        super().__init__(problem, hint, nodes)
        self.problem = problem
        self.hint = hint
        self.nodes = nodes


@contextmanager
def tvm_at_work() -> Iterator[None]:
    """Raises `Refused` for what TVM raises: it has no error of its own for what it cannot do.

    TVM calls code of tvmconv back, in passes and converters. What that raises is a bug, and stays what it is, unless
    TVM's compiled code has refused what it was given.
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
    """Whether a file of a traceback is one of TVM's compiled sources, which are not on this machine."""
    return not Path(file).exists()
