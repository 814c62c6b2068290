"""Calls of a template of one's own, and the messages about problems to processes that build and run kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tvmconv.problem import Problem

from . import functions
from .pickling import from_message, to_message


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
        """Return a line of JSON with the template's function, and one with the arguments: `problem_from` reads both."""
        return f"{to_message(self.template, functions.function_named(self.template))}\n{self.arguments}"


def problem_from(text: str) -> Problem | Call:
    """Return the problem or call that `to_json` has written; a call's template is known from then on."""
    message, is_call, arguments = text.partition("\n")
    if not is_call:
        return Problem.from_json(text)
    name, function = from_message(message)
    functions.redefine(name, function)
    return Call(name, arguments)


def tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
