"""Arithmetic expressions in text, from files and messages: they are parsed and computed, never run as Python."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from .errors import InvalidArgumentError

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
"""The operators of expressions, besides `and` and `or`."""

MAX_CHARACTERS = 100_000
"""The longest text of an expression that is read."""

Computed = Callable[[Mapping[str, Any]], Any]
"""The value of an expression, or of a part of it, by the values of names."""


class Expression:
    """An expression such as "height // 2 * 2 == height", of numbers, names, `OPERATORS`, and calls of functions."""

    def __init__(self, text: str, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Parse a text; `functions` are by the names that it calls them by, which may have dots.

        Raises `InvalidArgumentError` for a text that is no such expression.
        """
        self._functions, self.names = functions, set[str]()
        """The names whose values `__call__` needs."""
        try:
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"{len(text)} characters")
            self._value = self._parsed(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            expected = f"an expression of numbers, names, arithmetic, comparisons, and {', '.join(functions)}"
            raise InvalidArgumentError("expression", text[:200], f"{expected} ({error})") from None

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the expression for values of its names."""
        return self._value(values)

    def _parsed(self, node: ast.expr) -> Computed:
        """Return the function that computes a part of the expression."""
        match node:
            case ast.Constant(bool() | int() | float() as number):
                return lambda values: number
            case ast.Name(name):
                self.names.add(name)
                return lambda values: values[name]
            case ast.BoolOp(kind, parts):
                tests, stops_at = [self._parsed(part) for part in parts], isinstance(kind, ast.Or)
                return lambda values: any(bool(test(values)) == stops_at for test in tests) == stops_at
            case ast.UnaryOp(kind, part) if type(kind) in OPERATORS:
                return self._applied(OPERATORS[type(kind)], part)
            case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]) if type(kind) in OPERATORS:
                return self._applied(OPERATORS[type(kind)], left, right)
            case ast.Call(function, [ast.Constant(str() as word), *parts], []):
                called = self._function(function)
                return self._applied(lambda *numbers: called(word, *numbers), *parts)
            case ast.Call(function, parts, []):
                return self._applied(self._function(function), *parts)
        raise ValueError(ast.unparse(node))

    def _applied(self, function: Callable[..., Any], *parts: ast.expr) -> Computed:
        """Return the function that calls another one with the values of parts."""
        arguments = [self._parsed(part) for part in parts]
        return lambda values: function(*(argument(values) for argument in arguments))

    def _function(self, node: ast.expr) -> Callable[..., Any]:
        if (name := ast.unparse(node)) not in self._functions:
            raise ValueError(f"{name} is not a function of it")
        return self._functions[name]
