"""What kernels are for: the key of records, and what is told to the processes that build and run them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..workload import ConvWorkload


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
        """One line of JSON, for another process, with the template's function: `templates.problem_from` reads it."""
        from .templates import sent

        return sent(self)


def tuples(value: Any) -> Any:
    """A value of JSON with tuples for its lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
