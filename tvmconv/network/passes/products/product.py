"""The batched products of matrices that kernels compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import evaluated

from ...graph.convolutions import size_text

Size: TypeAlias = "int | tirx.Expr"
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
    shares_first: bool = False
    """True if the first factor is one matrix for the whole batch."""

    @property
    def is_open(self) -> bool:
        """True if a size is known only when the model runs."""
        return any(not isinstance(size, int) for size in self[:4])

    def at(self, sizes: Mapping[tirx.Var, int], usual: int) -> Product:
        """Return the product with numbers for its sizes: a variable is one of `sizes`, or else `usual`."""

        def number(size: Size) -> int:
            if isinstance(size, int):
                return size
            return max(1, evaluated(size, {var: sizes.get(var, usual) for var in undefined_vars(size)}))

        batch, rows, terms, columns = map(number, self[:4])
        return self._replace(batch=batch, rows=rows, terms=terms, columns=columns)

    def __str__(self) -> str:
        batch, rows, terms, columns = map(size_text, self[:4])
        factors = f"one {rows}x{terms} times {batch}" if self.shares_first else f"{batch} {rows}x{terms} times"
        return f"product of {factors} {terms}x{columns} {self.dtype} to {self.out_dtype}"


INDEX = "int64"
"""The type of indices where sizes are open: Relax's type of sizes."""


class OpenFactors(NamedTuple):
    """The parameters of a function for a product of open sizes, and its sizes, as numbers where they are known."""

    first: tirx.Buffer
    """(G, M, K), or (1, M, K) for one matrix for the whole batch."""
    second: tirx.Buffer
    """(G, K, N) or, transposed, (G, N, K)."""
    result: tirx.Buffer
    """(G, M, N)."""
    batch: Expr
    rows: Expr
    terms: Expr
    columns: Expr
    shares_first: bool
    transposed: bool

    @classmethod
    def of(cls, product: Product, transposed: bool) -> OpenFactors:
        """Return the parameters for a product, whose second factor may be transposed."""
        sizes = zip(("batch", "rows", "terms", "columns"), product, strict=False)
        batch, rows, terms, columns = (
            tirx.const(size, INDEX) if isinstance(size, int) else tirx.Var(name, INDEX) for name, size in sizes
        )
        first = tirx.const(1, INDEX) if product.shares_first else batch, rows, terms
        second = (batch, columns, terms) if transposed else (batch, terms, columns)
        return cls(
            tirx.decl_buffer(first, product.dtype, "x"),
            tirx.decl_buffer(second, product.dtype, "w"),
            tirx.decl_buffer((batch, rows, columns), product.out_dtype, "output"),
            *(batch, rows, terms, columns, product.shares_first, transposed),
        )

    @property
    def parameters(self) -> list[tirx.Buffer]:
        return [self.first, self.second, self.result]

    def first_at(self, matrix: Expr, row: Expr, term: Expr) -> Expr:
        """Return an element of the first factor in float32."""
        return self.first[tirx.const(0, INDEX) if self.shares_first else matrix, row, term].astype("float32")

    def second_at(self, matrix: Expr, term: Expr, column: Expr) -> Expr:
        """Return an element of the second factor in float32."""
        indices = (matrix, column, term) if self.transposed else (matrix, term, column)
        return self.second[indices].astype("float32")
