"""The words for how exact a convolution of float32 numbers is: a row for each, and nothing else lists them.

With narrower storage the word makes no difference: see `Problem.precision`. Networks have further words, for storage in
half precision, which they convert their tensors to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from .errors import InvalidArgumentError


class Precision(NamedTuple):
    """The promise of one word for a result."""

    name: str
    promise: str
    served_by: tuple[str, ...]
    """The words whose kernels keep this promise too: the word itself, then stricter ones, the nearest first."""
    nearby: int
    """The distance, in rows and columns, of the outputs whose sums of products an output's error may depend on."""
    operand_unit: float
    """Largest error of rounding an element of x or w, to the nearest, before it is multiplied, as a share of it."""
    product_unit: float
    """Largest error of a product, the float32 rounding of the sum not counted, as a share of the product."""


THREE_PRODUCTS = 2.0**-21
"""The most that three products of TF32 numbers leave out of one of float32 numbers: 2^-22 of it is the product of both
rests, and as much is what the two rests, of at most 2^-11 of their numbers, lose where they are rounded to 11 bits."""

_ROWS = (
    Precision(
        "strict",
        "Each output is as exact as a float32 sum of its own terms by fused multiply-adds; NaN and infinities are "
        "where IEEE arithmetic has them.",
        served_by=("strict",),
        nearby=0,
        operand_unit=0.0,
        product_unit=0.0,
    ),
    Precision(
        "float32",
        "What frameworks call float32: errors are small beside the largest sum of products nearby, also beyond the "
        "edges of a plane, where no element of x or w is closer to zero than 2^-112, and results are finite where "
        "elements and such sums are below 2^120; NaN and infinities may spread to outputs nearby.",
        served_by=("float32", "strict"),
        nearby=3,
        operand_unit=0.0,
        product_unit=THREE_PRODUCTS,
    ),
    Precision(
        "tf32",
        "Elements of x and w may be rounded to the nearest TF32 number, with 10 bits behind the point, before they are "
        "multiplied; sums are float32.",
        served_by=("tf32", "float32", "strict"),
        nearby=3,
        operand_unit=2.0**-11,
        product_unit=0.0,
    ),
)

PRECISIONS = {row.name: row for row in _ROWS}

WORDS = tuple(PRECISIONS)
"""The words, the strictest first."""

Word = Literal["strict", "float32", "tf32"]
"""The words, for type checkers."""

NetworkWord = Literal[Word, "float16", "bfloat16"]
"""The words that networks take, for type checkers."""

DEFAULT: Final = "float32"


class Half(NamedTuple):
    """The promise of a word for a network in float32 whose tensors may be stored in half precision."""

    name: str
    """The type in which tensors are stored, one of `tvmconv.problem.dtypes.NARROW`."""
    promise: str


_HALVES = tuple(
    Half(
        name,
        f"Factors of convolutions, linear layers and, on a GPU, matrix products may be rounded to the nearest {name} "
        "number, and so may tensors between such layers be stored; sums, and all that is computed, are float32.",
    )
    for name in ("float16", "bfloat16")
)

HALVES = {row.name: row for row in _HALVES}

NETWORK_WORDS = (*WORDS, *HALVES)
"""The words that networks take, the strictest first, except for the last two, of which bfloat16 rounds more."""


def require_precision(word: str, words: Sequence[str] = WORDS) -> None:
    """Raise `InvalidArgumentError` unless a precision is one of some words."""
    if not isinstance(word, str) or word not in words:
        raise InvalidArgumentError("precision", word, f"{', '.join(words[:-1])} or {words[-1]}")
