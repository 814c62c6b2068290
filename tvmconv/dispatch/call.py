"""User-defined templates: functions by name, calls of them, and messages to processes that build and run kernels."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError

_functions: dict[str, Callable[..., Any]] = {}


class Call(NamedTuple):
    """The problem of a user-defined template: the template's name, and the arguments of its call."""

    template: str
    arguments: str
    """The arguments as JSON, in which 1, 1.0 and true differ."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments; lists are tuples."""
        args: tuple[Any, ...] = tuples(msgspec.json.decode(self.arguments))
        return args

    def __str__(self) -> str:
        return f"{self.template}({self.arguments[1:-1]})"

    def to_json(self) -> str:
        """Return a line of JSON with the template's function, and one with the arguments: `problem_from` reads both."""
        return f"{to_message(self.template, function_named(self.template))}\n{self.arguments}"


def problem_from(text: str) -> Problem | Call:
    """Return the problem or call that `to_json` has written; a call's template is known from then on."""
    message, is_call, arguments = text.partition("\n")
    if not is_call:
        return Problem.from_json(text)
    name, function = from_message(message)
    redefine(name, function)
    return Call(name, arguments)


def tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


class _Message(msgspec.Struct):
    """A template, or its function, for another process."""

    name: str
    content: str
    """The object as cloudpickle writes it, in base64."""
    path: list[str]
    """The folders in which Python looks for modules that it needs."""


def to_message(name: str, template: Any) -> str:
    """Return a template, or its function, as one line of JSON, for `from_message` in another process."""
    try:
        import cloudpickle
    except ImportError:
        raise MissingPackageError("cloudpickle", "tune", "tuning") from None
    try:
        content = cloudpickle.dumps(template)
    except (TypeError, ValueError, AttributeError) as error:
        expected = f"one that uses what can be sent to another process ({error})"
        raise InvalidArgumentError("template", name, expected) from None
    return msgspec.json.encode(_Message(name, base64.b64encode(content).decode(), sys.path)).decode()


@lru_cache(maxsize=16)
def from_message(text: str) -> tuple[str, Any]:
    """Return the name and the object that `to_message` was given; equal texts return the same object.

    The text comes from the process that began this one, or from the client of an RPC server: it is code.
    """
    import cloudpickle

    message = msgspec.json.decode(text, type=_Message)
    sys.path += [each for each in message.path if each not in sys.path]
    return message.name, cloudpickle.loads(base64.b64decode(message.content))


def define(name: str, function: Callable[..., Any]) -> None:
    """Make a function the one of the template with a name; refuse a name that another function has."""
    if (known := _functions.get(name)) is not None and _where(known) != _where(function):
        raise InvalidArgumentError("task_name", name, f"a name that no other has; {_where(known)} has it")
    _functions[name] = function


def redefine(name: str, function: Callable[..., Any]) -> None:
    """Make a function the one of the template with a name, whatever it was before: this process's client decides."""
    _functions[name] = function


def function_named(name: str) -> Callable[..., Any]:
    """Return the function of the template with a name, undecorated."""
    if name not in _functions:
        known = ", ".join(_functions) or "none is there"
        raise InvalidArgumentError("task_name", name, f"a template that is defined: {known}")
    return _functions[name]


def _where(function: Callable[..., Any]) -> str:
    """Return the file and line of a function, which stay the same when its file runs a second time."""
    code = function.__code__
    return f"{function.__qualname__} in {code.co_filename}, line {code.co_firstlineno}"
