"""Elements of arrays of sizes: numbers, expressions of open sizes, and floating-point numbers made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from tvm import tirx

from .facts import Size, SizeFacts, as_expr, choice, product

MAX_EXACT = 256
"""The largest factor by which float32 multiplies sizes exactly, as those have up to 16 bits."""


@dataclass(frozen=True)
class Ratio:
    """A floating-point number that is an open size divided by a number: n / 2."""

    above: tirx.Expr
    below: int = 1

    @property
    def is_exact(self) -> bool:
        """True if floating point has the number exactly: the divisor is a power of two."""
        return self.below & (self.below - 1) == 0


Element: TypeAlias = Any
"""A number of Python, a Fraction where the array is one of floats, an expression or a Ratio."""


class UnknownElementError(Exception):
    """Raised for a result that is no expression of sizes, or not exactly one."""


def is_expression(element: Element) -> bool:
    return isinstance(element, (tirx.Expr, Ratio))


def truncated(facts: SizeFacts, number: Ratio) -> Element:
    """Return a number without its fraction, as a cast to an integer does, for numbers of at least 0."""
    if facts.proves(number.above >= 0) is not True:
        raise UnknownElementError
    return simplest(number.above // number.below, facts)


def simplest(element: Element, facts: SizeFacts) -> Element:
    """Return an element in its simplest form."""
    if isinstance(element, Ratio):
        above = facts.simplified(element.above)
        if isinstance(above, int):
            return Fraction(above, element.below)
        if element.below > 1 and facts.proves(tirx.EQ(above % element.below, as_expr(0))):
            return Ratio(as_expr(facts.simplified(above // element.below)))
        return Ratio(above, element.below)
    if not isinstance(element, tirx.Expr):
        return element
    if str(element.ty.dtype) == "bool":
        known = facts.proves(element)
        return element if known is None else known
    return facts.simplified(element)


def _ratio(element: Element) -> Ratio:
    """Return an element of floats as a ratio that floating point has exactly."""
    ratio = element if isinstance(element, Ratio) else Ratio(as_expr(element.numerator), element.denominator)
    if not ratio.is_exact:
        raise UnknownElementError
    return ratio


def _sum(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    if not is_float or not (is_expression(a) or is_expression(b)):
        return a + b
    x, y = _ratio(a), _ratio(b)
    below = max(x.below, y.below)
    return Ratio(x.above * (below // x.below) + y.above * (below // y.below), below)


def _negative(facts: SizeFacts, is_float: bool, a: Element) -> Element:
    return Ratio(0 - a.above, a.below) if isinstance(a, Ratio) else 0 - a


def _difference(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    return _sum(facts, is_float, a, _negative(facts, is_float, b))


def _product(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    if not is_float or not (is_expression(a) or is_expression(b)):
        return a * b
    for each in (a, b):
        if isinstance(each, Fraction) and abs(each.numerator) > MAX_EXACT:
            raise UnknownElementError
    x, y = _ratio(a), _ratio(b)
    return Ratio(x.above * y.above, x.below * y.below)


def _quotient(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    if b == 0 and not is_expression(b):
        raise UnknownElementError
    if is_float:
        if not (is_expression(a) or is_expression(b)):
            return a / b
        if isinstance(b, Ratio) and isinstance(a, Ratio):
            above, below = a.above * b.below, b.above * a.below
            times = facts.quotient([above], [below])
            if isinstance(times, int) and facts.are_equal(above, product([below, times])):
                return Fraction(times)
        if is_expression(b) or b < 0 or abs(b.numerator) > MAX_EXACT:
            raise UnknownElementError
        x = _ratio(a)
        return Ratio(x.above * b.denominator, x.below * b.numerator)
    if not (is_expression(a) or is_expression(b)):
        return int(a / b) if a * b < 0 else a // b
    if facts.proves(a >= 0) is True:
        return a // b
    return choice(as_expr(a) >= 0, as_expr(a) // b, 0 - (0 - as_expr(a)) // b)


def _remainder(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    if is_float:
        raise UnknownElementError
    return a % b


def _floor(facts: SizeFacts, is_float: bool, a: Element) -> Element:
    if not isinstance(a, Ratio):
        return Fraction(a.numerator // a.denominator)
    return Ratio(a.above // a.below)


def _ceiling(facts: SizeFacts, is_float: bool, a: Element) -> Element:
    return _negative(facts, is_float, _floor(facts, is_float, _negative(facts, is_float, a)))


def _round(facts: SizeFacts, is_float: bool, a: Element) -> Element:
    if isinstance(a, Ratio) and a.below > 1:
        raise UnknownElementError
    return a if isinstance(a, Ratio) else Fraction(round(a))


def _compared(test: Callable[[Any, Any], Any]) -> Callable[..., Element]:
    def compare(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
        if not (is_expression(a) or is_expression(b)):
            return bool(test(a, b))
        if is_float:
            x, y = _ratio(a), _ratio(b)
            a, b = x.above * y.below, y.above * x.below
        return test(as_expr(a), as_expr(b))

    return compare


def _larger(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    return _extreme(facts.larger, max, a, b)


def _smaller(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    return _extreme(facts.smaller, min, a, b)


def _extreme(of_sizes: Callable[..., Size], of_numbers: Callable[..., Element], a: Element, b: Element) -> Element:
    if not (is_expression(a) or is_expression(b)):
        return of_numbers(a, b)
    if isinstance(a, (Ratio, Fraction)) or isinstance(b, (Ratio, Fraction)):
        x, y = _ratio(a), _ratio(b)
        return Ratio(as_expr(of_sizes(x.above * y.below, y.above * x.below)), x.below * y.below)
    return of_sizes(a, b)


def _clipped(facts: SizeFacts, is_float: bool, a: Element, *bounds: Element) -> Element:
    low, high = (*bounds, None, None)[:2]
    a = a if low is None else simplest(_larger(facts, is_float, a, low), facts)
    return a if high is None else _smaller(facts, is_float, a, high)


def _chosen(facts: SizeFacts, is_float: bool, test: Element, a: Element, b: Element) -> Element:
    if not is_expression(test):
        return a if test else b
    if is_float or isinstance(a, bool) or isinstance(b, bool):
        raise UnknownElementError
    return choice(test, a, b)


def _both(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    return tirx.And(_test(a), _test(b)) if is_expression(a) or is_expression(b) else a and b


def _either(facts: SizeFacts, is_float: bool, a: Element, b: Element) -> Element:
    return tirx.Or(_test(a), _test(b)) if is_expression(a) or is_expression(b) else a or b


def _inverse(facts: SizeFacts, is_float: bool, a: Element) -> Element:
    return tirx.Not(a) if is_expression(a) else not a


def _test(element: Element) -> tirx.Expr:
    return element if isinstance(element, tirx.Expr) else tirx.const(bool(element), "bool")


def _absolute(facts: SizeFacts, is_float: bool, a: Element) -> Element:
    return _larger(facts, is_float, a, _negative(facts, is_float, a))


COMPARING: dict[str, Callable[..., Element]] = {
    "Equal": _compared(lambda a, b: tirx.EQ(a, b) if isinstance(a, tirx.Expr) else a == b),
    "Greater": _compared(lambda a, b: a > b),
    "GreaterOrEqual": _compared(lambda a, b: a >= b),
    "Less": _compared(lambda a, b: a < b),
    "LessOrEqual": _compared(lambda a, b: a <= b),
}

FUNCTIONS: dict[str, Callable[..., Element]] = {
    **COMPARING,
    "Abs": _absolute,
    "Add": _sum,
    "And": _both,
    "Ceil": _ceiling,
    "Clip": _clipped,
    "Div": _quotient,
    "Floor": _floor,
    "Max": _larger,
    "Min": _smaller,
    "Mod": _remainder,
    "Mul": _product,
    "Neg": _negative,
    "Not": _inverse,
    "Or": _either,
    "Round": _round,
    "Sub": _difference,
    "Sum": _sum,
    "Where": _chosen,
}
"""The functions of elements: they take the facts about sizes, whether elements are floats, and the elements."""

REDUCING = {"ReduceMax": _larger, "ReduceMin": _smaller, "ReduceProd": _product, "ReduceSum": _sum}
"""The functions of two elements by which operators reduce axes."""
