"""The functions of templates of one's own, by name, and how they get to another process."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from ..errors import InvalidArgumentError, MissingPackageError

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


def pickled(name: str) -> str:
    """The function of a template for another process, where `define_pickled` takes it: pickled, in base64."""
    try:
        import cloudpickle
    except ImportError:
        raise MissingPackageError("cloudpickle", "tune", "tuning") from None
    try:
        content = cloudpickle.dumps(function_named(name))
    except (TypeError, ValueError, AttributeError) as error:
        expected = f"one that uses what can be sent to another process ({error})"
        raise InvalidArgumentError("template", name, expected) from None
    return base64.b64encode(content).decode()


def define_pickled(name: str, content: str) -> None:
    """Makes what `pickled` gave in another process the function of the template with a name; it is code."""
    import cloudpickle

    _functions[name] = cloudpickle.loads(base64.b64decode(content))


def _where(function: Callable[..., Any]) -> str:
    """Where a function is written: the same where its file runs a second time."""
    code = function.__code__
    return f"{function.__qualname__} in {code.co_filename}, line {code.co_firstlineno}"
