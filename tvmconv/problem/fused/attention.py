"""The description of attention, without TVM."""

from __future__ import annotations

from typing import ClassVar

from ..errors import InvalidArgumentError
from ..layout import StridedRows
from ..parameters import require_positive
from ..workload import Operands
from .base import FusedWorkload

ROW_BYTES = 16
"""Rows of queries, keys, values and results begin at multiples of this number of bytes, and are multiples long."""


class Attention(FusedWorkload, frozen=True, tag="attention"):
    """softmax(q k^T * scale + biases) v for each of several matrices, whose rows lie in other tensors.

    Raises `InvalidArgumentError` for sizes that are not positive, and for rows that do not fit them.
    """

    HAS_WORDS: ClassVar[bool] = True

    matrices: int
    depth: int
    """The number of terms of a score: the columns of queries and keys."""
    width: int
    """The number of columns of values and results."""
    dtype: str
    """The type of queries, keys and values."""
    out_dtype: str
    scale: float
    q: StridedRows
    k: StridedRows
    v: StridedRows
    output: StridedRows
    biases: tuple[StridedRows, ...] = ()
    """The rows of float32 numbers that are added to scores: for each query, one number for each key."""
    safe: bool = False
    """True if results are zeros where all scores are -inf; else they are NaN there."""

    def __post_init__(self) -> None:
        for name in ("matrices", "depth", "width"):
            require_positive(name, getattr(self, name))
        for name, rows in (("v", self.keys), ("output", self.queries)):
            if getattr(self, name).rows != rows:
                raise InvalidArgumentError(name, getattr(self, name), f"{rows} rows of each matrix")

    @property
    def queries(self) -> int:
        """The rows of queries and results of each matrix."""
        return self.q.rows

    @property
    def keys(self) -> int:
        """The rows of keys and values of each matrix."""
        return self.k.rows

    @property
    def itemsize(self) -> int:
        """The bytes of an element of queries, keys and values."""
        return self.storage.itemsize

    @property
    def strided_rows(self) -> dict[str, StridedRows]:
        """The rows of each operand by name, in order; the last ones are the output's."""
        biases = {f"bias_{number}": rows for number, rows in enumerate(self.biases)}
        return {"q": self.q, "k": self.k, "v": self.v, **biases, "output": self.output}

    @property
    def operands(self) -> Operands:
        types = {**dict.fromkeys("qkv", self.dtype), "output": self.out_dtype}
        return {name: ((rows.elements,), types.get(name, "float32")) for name, rows in self.strided_rows.items()}

    @property
    def terms(self) -> int:
        """The number of products for an output, with its share of those that all outputs of a query have in common."""
        return self.keys * (self.depth + self.width) // self.width

    @property
    def flops(self) -> int:
        """The operations, two for each multiply-add of both products."""
        return 2 * self.matrices * self.queries * self.keys * (self.depth + self.width)

    def __str__(self) -> str:
        sizes = f"{self.matrices}x{self.queries}x{self.depth} by {self.keys} keys -> {self.width}"
        biases = f" + {len(self.biases)} biases" if self.biases else ""
        return f"attention {sizes} {self.dtype}{biases}{' safe' if self.safe else ''}"
