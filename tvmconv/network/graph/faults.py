"""Errors of importers and of TVM, in short, and whose code raised them: a limit of TVM, or a bug of tvmconv."""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, redirect_stdout
from functools import cache
from importlib.metadata import packages_distributions
from types import FrameType
from typing import Any, TypeVar

from tvmconv.problem.errors import TvmconvError, UnsupportedModelError

TVMS = ("tvm", "tvm_ffi")
"""The packages of TVM."""

N = TypeVar("N")

NAMED = 5
"""The largest number of nodes that an error names."""

IMPORT_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, MemoryError)
"""The errors that importers have been seen to raise for unsupported models, for which TVM has no error class."""


class Refused(Exception):  # noqa: N818
    """Raised for a model that cannot be imported or compiled; callers make an `UnsupportedModelError` of it."""

    def __init__(self, problem: str, hint: str | None = None, nodes: Sequence[Any] = ()) -> None:
        """Keep the problem, `hint`, which says what would help, and `nodes`, those at fault where they are known."""
        super().__init__(problem, hint, nodes)
        self.problem = problem
        self.hint = hint
        self.nodes = nodes


@contextmanager
def tvm_errors_as_refusals() -> Iterator[None]:
    """Raise `Refused` for an error of TVM, which has no class of errors for models that it cannot handle.

    TVM calls code of tvmconv back, in passes and converters, and this calls TVM again. The innermost code that ran,
    without that of other libraries, tells whose error it is: one of tvmconv is a bug, and is passed on.
    """
    try:
        yield
    except (TvmconvError, Refused):
        raise
    except Exception as error:
        if not _is_tvms(error):
            raise
        raise Refused(summary(error)) from error


def _is_tvms(error: Exception) -> bool:
    """Return whether the innermost frame, without those of libraries, is TVM's, in Python or C++."""
    modules = {getattr(module, "__file__", None): name for name, module in [*sys.modules.items()]}
    owners = [_owner(frame, modules) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((owner for owner in reversed(owners) if owner not in _libraries()), "") in TVMS


@cache
def _libraries() -> Set[str]:
    """Return the packages whose errors are their caller's: Python's standard library, and all but TVM and tvmconv."""
    return {"", *sys.stdlib_module_names, *packages_distributions()} - {*TVMS, "tvmconv"}


def _owner(frame: FrameType, modules: Mapping[str | None, str]) -> str:
    """Return the package of a frame's module; "" where nothing tells it. `modules` are the loaded ones by their files.

    Frames that an error has passed before it left TVM's C++ code have no module: only the file is left of them.
    """
    file = frame.f_code.co_filename
    in_cpp = "" if file.startswith("<") else "tvm"
    return str(frame.f_globals.get("__name__") or modules.get(file) or in_cpp).partition(".")[0]


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
