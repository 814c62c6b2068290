"""The matrices of Winograd's minimal filtering F(m, r), by the method of Toom and Cook.

m outputs of a filter of r taps are the values, at m + r - 1 points, of a product of polynomials: with the matrices here
`y = A ((G g) * (B d))`, for inputs d and taps g (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
2016, section 4). The last of the points is infinity.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import NamedTuple

TAPS = 3
"""The taps of a filter along each axis, where nothing else is said."""

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = {4: (0, 1), 6: (0, Fraction(3, 4), Fraction(3, 2)), 8: (0, Fraction(1, 2), 1, 2)}
"""The points by their number, infinity among them, each but zero with its negative.

With those of F(4, 3) errors are half as large as with the usual 0, 1 and 2 (measured), and the fractions are exact. Of
8 points no others add up smaller errors (computed for sixteenths and eighths up to 3), with 5 taps or with 3. Powers of
two that could balance the rows of two matrices would change no rounding.
"""


class Transforms(NamedTuple):
    """The three matrices. Rows 1 and 2 belong to a point and its negative, and so do rows 3 and 4, and so on."""

    output: Matrix
    """A, with a row for each output."""
    weight: Matrix
    """G, with a row for each point."""
    input: Matrix
    """B, with a row for each point."""


@cache
def transforms(outputs: int, taps: int = TAPS) -> Transforms:
    """Return the matrices for so many outputs of so many taps, for which there are `POINTS`."""
    chosen = POINTS[outputs + taps - 1]
    points = [sign * Fraction(point) for point in chosen for sign in ((1, -1) if point else (1,))]
    last = tuple(Fraction(tap == taps - 1) for tap in range(taps))
    output = tuple((*(point**power for point in points), Fraction(power == outputs - 1)) for power in range(outputs))
    weight, rows = [], []
    for point in points:
        others = [other for other in points if other != point]
        factor = _polynomial(others, point)
        weight.append(tuple(point**tap / factor for tap in range(taps)))
        rows.append((*_coefficients(others), Fraction(0)))
    return Transforms(output, (*weight, last), (*rows, _coefficients(points)))


def _polynomial(roots: list[Fraction], at: Fraction) -> Fraction:
    """Return the value of the polynomial with these roots at a point."""
    value = Fraction(1)
    for root in roots:
        value *= at - root
    return value


def _coefficients(roots: list[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial with these roots, the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        found = [
            (found[power - 1] if power else Fraction(0)) - root * (found[power] if power < len(found) else Fraction(0))
            for power in range(len(found) + 1)
        ]
    return tuple(found)
