"""The batched products of matrices that kernels compute."""

from __future__ import annotations

from typing import NamedTuple


class Product(NamedTuple):
    """A batched product of matrices: (G, M, K) times (G, K, N)."""

    batch: int
    rows: int
    terms: int
    columns: int
    dtype: str
    """The type of the factors."""
    out_dtype: str
    one_first: bool = False
    """True if the first factor is one matrix for the whole batch."""

    def __str__(self) -> str:
        first = f"{self.rows}x{self.terms}"
        factors = f"one {first} times {self.batch}" if self.one_first else f"{self.batch} {first} times"
        return f"product of {factors} {self.terms}x{self.columns} {self.dtype} to {self.out_dtype}"
