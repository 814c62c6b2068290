"""The functions of AutoTVM's templates of one's own, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidArgumentError

_functions: dict[str, Callable[..., Any]] = {}


def define(name: str, function: Callable[..., Any]) -> None:
    """Makes a function that of the template with a name; refuses a name that another function has."""
    if (known := _functions.get(name)) is not None and _where(known) != _where(function):
        raise InvalidArgumentError("task_name", name, f"a name that no other has; {_where(known)} has it")
    _functions[name] = function


def function_named(name: str) -> Callable[..., Any]:
    """The function of the template with a name, undecorated."""
    if name not in _functions:
        known = ", ".join(_functions) or "none is there"
        raise InvalidArgumentError("task_name", name, f"a template that is defined: {known}")
    return _functions[name]


def _where(function: Callable[..., Any]) -> str:
    """Where a function is written: the same where its file runs a second time."""
    code = function.__code__
    return f"{function.__qualname__} in {code.co_filename}, line {code.co_firstlineno}"
