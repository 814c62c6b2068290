"""What kernels are for: the key of records, and what is told to the processes that build and run them."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from ..workload import ConvWorkload
from . import functions


class Problem(NamedTuple):
    """What a kernel is for; one configuration is the best of each."""

    workload: ConvWorkload
    sparsity: float | None = None
    """Share of zeros in the weight, which is compiled in; None for a dense kernel, which has the weight as operand."""

    def __str__(self) -> str:
        return str(self.workload) if self.sparsity is None else f"{self.workload}, {100 * self.sparsity:g}% zeros"

    def to_json(self) -> str:
        """One line of JSON, for another process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The problem that `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


class Call(NamedTuple):
    """What a kernel of a template of one's own is for: the template by its name, called with some arguments."""

    template: str
    arguments: str
    """As JSON, in which 1, 1.0 and true differ."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments; lists are tuples."""
        args: tuple[Any, ...] = tuples(msgspec.json.decode(self.arguments))
        return args

    def __str__(self) -> str:
        return f"{self.template}({self.arguments[1:-1]})"

    def to_json(self) -> str:
        """One line of JSON, for another process, with the template's function: `problem_from` reads it."""
        message = _Message(*self, functions.pickled(self.template), sys.path)
        return msgspec.json.encode(message).decode()


class _Message(msgspec.Struct):
    """A call for another process, with what it takes to make it there."""

    template: str
    arguments: str
    function: str
    """As `functions.pickled` gives it."""
    path: list[str]
    """Where Python looks for modules that the function needs."""


def problem_from(text: str) -> Problem | Call:
    """What `to_json` of a problem or of a call has written; a call's template is known from then on.

    The text comes from the process that began this one, or from the client of an RPC server: its function is code.
    """
    return _received(text) if text.startswith("{") else Problem.from_json(text)


@lru_cache(maxsize=4)
def _received(text: str) -> Call:
    message = msgspec.json.decode(text, type=_Message)
    sys.path += [path for path in message.path if path not in sys.path]
    functions.define_pickled(message.template, message.function)
    return Call(message.template, message.arguments)


def tuples(value: Any) -> Any:
    """A value of JSON with tuples for its lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
