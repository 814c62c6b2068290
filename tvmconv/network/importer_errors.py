"""What Relax's importers and its compiler raise and print, made fit to be told."""

from __future__ import annotations

import io
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TypeVar

from ..errors import UnsupportedModelError

N = TypeVar("N")

NAMED = 5
"""As many nodes are named in an error."""

IMPORT_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, MemoryError)
"""What they have been seen to raise for a model that they cannot take; they have no error of their own."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps back what an importer prints on stdout, and its warnings, which say nothing that a user can act on."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def node_at_fault(error: BaseException, node_type: type[N]) -> N | None:
    """The node of a graph that an importer was at when it raised: the variable `node` of its innermost frame."""
    nodes = [frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((node for node in reversed(nodes) if isinstance(node, node_type)), None)


def summary(error: BaseException) -> str:
    """The first line of what an error says; of a failed look-up that is only what was looked for."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
    return f"there is no {first}" if isinstance(error, LookupError) else first


def unsupported(found: list[str], problem: str, hint: str) -> UnsupportedModelError:
    """The error for operators that cannot be imported, each described with its node; there may be none to name."""
    named = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    return UnsupportedModelError(
        f"the model cannot be imported: {named}{': ' if named else ''}{problem}. What would help: {hint}"
    )
