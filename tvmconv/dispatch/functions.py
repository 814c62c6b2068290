"""The functions of AutoTVM's templates of one's own, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmconv.problem.errors import InvalidArgumentError

_functions: dict[str, Callable[..., Any]] = {}


def define(name: str, function: Callable[..., Any]) -> None:
    """Make a function that of the template with a name; refuse a name that another function has."""
    if (known := _functions.get(name)) is not None and _where(known) != _where(function):
        raise InvalidArgumentError("task_name", name, f"a name that no other has; {_where(known)} has it")
    _functions[name] = function


def redefine(name: str, function: Callable[..., Any]) -> None:
    """Make a function that of the template with a name, whatever it was before: the client of this process knows."""
    _functions[name] = function


def function_named(name: str) -> Callable[..., Any]:
    """Return the function of the template with a name, undecorated."""
    if name not in _functions:
        known = ", ".join(_functions) or "none is there"
        raise InvalidArgumentError("task_name", name, f"a template that is defined: {known}")
    return _functions[name]


def _where(function: Callable[..., Any]) -> str:
    """Return the place where a function is written, which is the same where its file runs a second time."""
    code = function.__code__
    return f"{function.__qualname__} in {code.co_filename}, line {code.co_firstlineno}"
