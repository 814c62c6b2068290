"""Errors of Relax's importers and compiler, made short enough to show to a user."""

from __future__ import annotations

import io
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TypeVar

from tvmconv.problem.errors import UnsupportedModelError

N = TypeVar("N")

NAMED = 5
"""The largest number of nodes that an error names."""

IMPORT_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, MemoryError)
"""The errors that importers have been seen to raise for unsupported models; they have no error of their own."""


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back an importer's output on stdout and its warnings, which tell a user nothing to act on."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def node_at_fault(error: BaseException, node_type: type[N]) -> N | None:
    """Return the node that an importer was at when it raised: the variable `node` of its innermost frame."""
    nodes = [frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((node for node in reversed(nodes) if isinstance(node, node_type)), None)


def summary(error: BaseException) -> str:
    """Return the first line of an error's message; for a failed look-up, say that there is no such thing."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
    return f"there is no {first}" if isinstance(error, LookupError) else first


def unsupported(found: list[str], problem: str, hint: str) -> UnsupportedModelError:
    """Return the error for operators that cannot be imported, each described with its node; `found` may be empty."""
    named = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    return UnsupportedModelError(
        f"the model cannot be imported: {named}{': ' if named else ''}{problem}. What would help: {hint}"
    )
