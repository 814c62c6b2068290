"""The batched products of matrices that kernels compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tvm import tirx
from tvm.tirx.analysis import undefined_vars

from ..substitution import evaluated
from .convolutions import size_text

Size = int | tirx.Expr
"""A number, or an expression of sizes that are known only when the model runs."""


class Product(NamedTuple):
    """A batched product of matrices: (G, M, K) times (G, K, N)."""

    batch: Size
    rows: Size
    terms: Size
    columns: Size
    dtype: str
    """The type of the factors."""
    out_dtype: str
    one_first: bool = False
    """True if the first factor is one matrix for the whole batch."""

    @property
    def is_open(self) -> bool:
        """True if a size is known only when the model runs."""
        return any(not isinstance(size, int) for size in self[:4])

    def at(self, sizes: Mapping[tirx.Var, int], usual: int) -> Product:
        """Return the product with numbers for its sizes: with those of variables, or the usual one."""

        def number(size: Size) -> int:
            if isinstance(size, int):
                return size
            return max(1, evaluated(size, {var: sizes.get(var, usual) for var in undefined_vars(size)}))

        batch, rows, terms, columns = map(number, self[:4])
        return self._replace(batch=batch, rows=rows, terms=terms, columns=columns)

    def __str__(self) -> str:
        batch, rows, terms, columns = map(size_text, self[:4])
        factors = f"one {rows}x{terms} times {batch}" if self.one_first else f"{batch} {rows}x{terms} times"
        return f"product of {factors} {terms}x{columns} {self.dtype} to {self.out_dtype}"
