"""Calls of a template of one's own, and the messages about problems to processes that build and run kernels."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from ..problem import Problem
from . import functions
from .pickling import pickled, unpickled


class Call(NamedTuple):
    """The problem of a template of one's own: the template's name, and the arguments of its call."""

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
        """Return one line of JSON, for another process, with the template's function: `problem_from` reads it."""
        message = _Message(*self, pickled(self.template, functions.function_named(self.template)), sys.path)
        return msgspec.json.encode(message).decode()


class _Message(msgspec.Struct):
    """A call for another process, with its function."""

    template: str
    arguments: str
    function: str
    """The function as `pickled` returns it."""
    path: list[str]
    """The folders in which Python looks for modules that the function needs."""


def problem_from(text: str) -> Problem | Call:
    """Return the problem or call that `to_json` has written; a call's template is known from then on.

    The text comes from the process that began this one, or from the client of an RPC server: its function is code.
    """
    return _received(text) if text.startswith("{") else Problem.from_json(text)


@lru_cache(maxsize=4)
def _received(text: str) -> Call:
    message = msgspec.json.decode(text, type=_Message)
    functions.redefine(message.template, unpickled(message.function, message.path))
    return Call(message.template, message.arguments)


def tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
