"""Activations that a network computes in several steps, recognised by the formula that the steps amount to.

A formula of one variable y is a sum of products in a normal form, so equal functions that are written differently, such
as `y / 6 * clip(y + 3, 0, 6)` and `y * clip(y * (1 / 6) + 0.5, 0, 1)`, have the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, isfinite
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmconv.problem.activations import ACTIVATIONS, CONSTANTS, clip
from tvmconv.problem.epilogue import Function
from tvmconv.problem.errors import InvalidArgumentError

from ..graph.constants import constant_value
from ..graph.graph import Block, operator_name

MAX_STEPS = 28
"""The largest number of steps of an activation that is looked for: torch's tanh has 17, a GELU made of it up to 25."""

MAX_TERMS = 12
"""The largest number of terms of a formula; longer sums are given up."""

NAMED = {row.relax: row for row in ACTIVATIONS.values() if row.relax}
"""The activations that are operators of Relax, by the operators' names."""


@dataclass(frozen=True)
class Atom:
    """A factor of a product: y, or a function of a formula."""

    text: str
    clipped: tuple[Formula, float, float] | None = None
    """The formula that a clip is applied to and the two bounds; None for any other atom."""


class Formula:
    """A sum of products, held as the coefficient of each product.

    A product lists an atom as often as it is a factor.
    """

    def __init__(self, terms: Mapping[tuple[Atom, ...], float]) -> None:
        self.terms = {atoms: value for atoms, value in terms.items() if value != 0}
        if len(self.terms) > MAX_TERMS:
            raise NotAFormulaError

    def __str__(self) -> str:
        words = (f"{value:.9g}*{'*'.join(atom.text for atom in atoms)}" for atoms, value in self.terms.items())
        return "(" + " + ".join(sorted(words)) + ")"

    def __add__(self, other: Formula | float) -> Formula:
        terms = dict(self.terms)
        for atoms, value in _formula(other).terms.items():
            terms[atoms] = terms.get(atoms, 0.0) + value
        return Formula(terms)

    def __mul__(self, other: Formula | float) -> Formula:
        terms: dict[tuple[Atom, ...], float] = {}
        for (left, a), (right, b) in product(self.terms.items(), _formula(other).terms.items()):
            atoms = tuple(sorted(left + right, key=lambda atom: atom.text))
            terms[atoms] = terms.get(atoms, 0.0) + a * b
        return Formula(terms)

    def __neg__(self) -> Formula:
        return self * -1.0

    def __sub__(self, other: Formula | float) -> Formula:
        return self + -_formula(other)

    def __truediv__(self, other: Formula | float) -> Formula:
        divisor = _formula(other)
        if list(divisor.terms) == [()]:
            return self * (1 / divisor.terms[()])
        return self * _atom(f"1/{divisor}")

    def __rsub__(self, other: float) -> Formula:
        return -self + other

    def __rtruediv__(self, other: float) -> Formula:
        return _formula(other) / self

    __radd__, __rmul__ = __add__, __mul__


class NotAFormulaError(Exception):
    """Raised for a step that no activation is made of."""


def _formula(value: Formula | float) -> Formula:
    return value if isinstance(value, Formula) else Formula({(): value})


def _atom(text: str, clipped: tuple[Formula, float, float] | None = None) -> Formula:
    return Formula({(Atom(text, clipped),): 1.0})


Y = _atom("y")


class Formulas:
    """The functions that activations are defined with, applied to formulas."""

    def exp(self, y: Formula) -> Formula:
        return _atom(f"exp{y}")

    def expm1(self, y: Formula) -> Formula:
        return self.exp(y) - 1.0

    def erf(self, y: Formula) -> Formula:
        return _atom(f"erf{y}")

    def tanh(self, y: Formula) -> Formula:
        return _atom(f"tanh{y}")

    def abs(self, y: Formula) -> Formula:
        """Return the absolute value, which only some models' forms of an activation use."""
        return _atom(f"abs{y}")

    def clip(self, y: Formula, low: float | None, high: float | None) -> Formula:
        """Return the clip of a formula, normalized so that equal clips have the same text.

        A clip is one of a formula whose first coefficient is 1, times a number; a clip of a clip becomes one clip.
        """
        low, high = -inf if low is None else low, inf if high is None else high
        factors = [value for atoms, value in sorted(y.terms.items(), key=lambda term: _text(term[0])) if atoms]
        if not factors:
            raise NotAFormulaError
        factor = factors[0]
        y, bounds = y / factor, sorted((low / factor, high / factor))
        (atoms, *others) = y.terms
        if not others and len(atoms) == 1 and atoms[0].clipped:
            y, *first = atoms[0].clipped
            bounds = [min(max(bound, bounds[0]), bounds[1]) for bound in first]
        return _atom(f"clip({y}, {bounds[0]:.9g}, {bounds[1]:.9g})", (y, bounds[0], bounds[1])) * factor

    def where_negative(self, y: Formula, then: Formula, otherwise: Formula) -> Formula:
        return _atom(f"where({y} < 0, {then}, {otherwise})")


def _text(atoms: Sequence[Atom]) -> str:
    return "*".join(atom.text for atom in atoms)


OF = Formulas()


def activation_behind(y: relax.Var, block: Block) -> tuple[relax.Var, Function] | None:
    """Return the last variable and the name of an activation of y, if nothing else reads its steps.

    None where there is none, or one that is bounds alone.
    """
    steps = _steps(y, block)
    for var in reversed(steps):
        value = steps[var]
        if not isinstance(value, Formula) or not _same_type(var, y) or not _is_closed(y, var, steps, block):
            continue
        if (found := _named(str(value), _numbers(steps, block))) is not None:
            return var, found
    return None


def _steps(y: relax.Var, block: Block) -> dict[relax.Var, Formula | _Negative]:
    """Return the variables that are computed from y and numbers alone, in order, with their formulas."""
    steps: dict[relax.Var, Formula | _Negative] = {y: Y}
    waiting = [y]
    while waiting and len(steps) <= MAX_STEPS:
        for reader in block.readers(waiting.pop(0)):
            if reader in steps:
                continue
            try:
                steps[reader] = _step(block.values[reader], steps)
            except (NotAFormulaError, ZeroDivisionError, OverflowError):
                continue
            waiting.append(reader)
    del steps[y]
    return steps


@dataclass(frozen=True)
class _Negative:
    """The condition that a formula is negative."""

    formula: Formula


def _step(value: relax.Expr, steps: Mapping[relax.Var, Any]) -> Formula | _Negative:
    name = operator_name(value)
    if name is None or (name not in OPERATORS and name not in NAMED):
        raise NotAFormulaError
    if name == "relax.astype" and not str(value.ty.dtype).startswith("float"):
        raise NotAFormulaError
    arguments = [_argument(argument, steps) for argument in value.args]
    if name in NAMED:
        row, values = NAMED[name], NAMED[name].fixed
        if row.parameters:
            values = (float(value.attrs.alpha),)
        formula: Formula = row.definition(OF, *arguments, *values)
        return formula
    result: Formula | _Negative = OPERATORS[name](*arguments)
    return result


def _argument(argument: relax.Expr, steps: Mapping[relax.Var, Any]) -> Any:
    if isinstance(argument, relax.Var):
        if argument not in steps:
            raise NotAFormulaError
        return steps[argument]
    if isinstance(argument, tirx.FloatImm | tirx.IntImm):
        return float(argument.value)  # a bound of a clip
    array = constant_value(argument)
    if array is None or array.size != 1 or not np.issubdtype(array.dtype, np.floating):
        raise NotAFormulaError
    value = array.reshape(())
    return _formula(next((known for known in CONSTANTS if array.dtype.type(known) == value), float(value)))


def _power(base: Formula, exponent: Formula) -> Formula:
    if list(exponent.terms) != [()] or exponent.terms[()] not in (2.0, 3.0):
        raise NotAFormulaError
    return base * base if exponent.terms[()] == 2.0 else base * base * base


def _number(formula: Formula) -> float:
    if list(formula.terms) not in ([()], []):
        raise NotAFormulaError
    return formula.terms.get((), 0.0)


def _where(condition: Any, then: Formula, otherwise: Formula) -> Formula:
    if not isinstance(condition, _Negative):
        raise NotAFormulaError
    return OF.where_negative(condition.formula, then, otherwise)


OPERATORS: dict[str, Callable[..., Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
    "relax.negative": lambda a: -a,
    "relax.power": _power,
    "relax.astype": lambda a: a,
    "relax.abs": OF.abs,
    "relax.exp": OF.exp,
    "relax.erf": OF.erf,
    "relax.clip": OF.clip,
    "relax.maximum": lambda a, b: OF.clip(a, _number(b), None),
    "relax.minimum": lambda a, b: OF.clip(a, None, _number(b)),
    "relax.less": lambda a, b: _Negative(a - b),
    "relax.where": _where,
}


def _is_closed(y: relax.Var, last: relax.Var, steps: Mapping[relax.Var, Any], block: Block) -> bool:
    """Return whether y and the steps that lead to `last` have no other readers than these steps and `last`."""
    inside, waiting = {last}, [last]
    while waiting:
        for argument in block.values[waiting.pop()].args:
            if isinstance(argument, relax.Var) and argument in steps and argument not in inside:
                inside.add(argument)
                waiting.append(argument)
    before = [y, *(inside - {last})]
    return all(block.is_inner(var) and set(block.readers(var)) <= inside for var in before)


def _same_type(var: relax.Var, y: relax.Var) -> bool:
    return str(var.ty) == str(y.ty)


def _numbers(steps: Mapping[relax.Var, Any], block: Block) -> set[float]:
    """Return numbers that may be an activation's parameter: those in the steps, of either sign.

    0 is left out: with it, activations are mere bounds.
    """
    found: set[float] = set()
    for var in steps:
        value = block.values[var]
        arrays = [constant_value(argument) for argument in value.args]
        found |= {float(array.item()) for array in arrays if array is not None and array.size == 1}
        if (row := NAMED.get(operator_name(value) or "")) is not None and row.parameters:
            found.add(float(value.attrs.alpha))
    return {sign * number for number in found if isfinite(number) and number for sign in (1, -1)}


def _named(text: str, numbers: set[float]) -> Function | None:
    """Return the activation whose formula has this text, with parameters out of these numbers; None for no match."""
    for row in ACTIVATIONS.values():
        if row.definition is clip:
            continue
        for values in product(sorted(numbers), repeat=len(row.parameters)):
            if text in _forms(row.name, values):
                try:
                    row.values(values)
                except InvalidArgumentError:
                    continue
                return Function(row.name, values)
    return None


@lru_cache(maxsize=256)  # each step of each activation of a network is compared with all of them
def _forms(row: str, values: tuple[float, ...]) -> tuple[str, ...]:
    """Return the formulas of an activation, by its name, in all forms that importers write."""
    found, activation = [], ACTIVATIONS[row]
    for definition in (activation.definition, *activation.forms):
        with suppress(NotAFormulaError, ZeroDivisionError):
            found.append(str(definition(OF, Y, *values)))
    return tuple(found)
