"""Products of matrices whose sizes, any of them, are known only when the model runs, with one kernel for all values."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from tvmconv.targets import backend_of

from ...graph.graph import Block
from .forms import form_for, transposed
from .product import Product

REASON = "one kernel for all sizes"


class OpenProducts:
    """The kernels of a module for products of open sizes; those of one form share one."""

    def __init__(self, builder: relax.BlockBuilder, target: tvm.target.Target) -> None:
        self._builder, self._target = builder, target
        self._kernel = form_for(target).open_kernel
        self.name = f"tvmconv {backend_of(target).templates}/product"
        """The name of the kernels in the descriptions of layers."""
        self._functions: dict[tuple[object, ...], relax.GlobalVar] = {}

    def call(
        self, factors: Sequence[relax.Expr], product: Product, output: relax.Var, block: Block
    ) -> tuple[relax.Expr, str]:
        """Return the expression that computes a product, and the name of the function that it calls.

        A second factor with swapped axes is read as it was before.

        Before: `y = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`, with q and k of (n, 12, s, 64).
        After: `y = R.reshape(R.call_tir(tvmconv_product_0, (R.reshape(q, (n * 12, s, 64)), R.reshape(k, ...))), ...)`.
        """
        first, second = factors
        swapped = transposed(second, block)
        is_swapped = isinstance(swapped, relax.Var)  # another one would be made anew
        key = tuple(each if isinstance(each, (int, str)) else None for each in product), is_swapped
        if key not in self._functions:
            name = f"tvmconv_product_{len(self._functions)}"
            func = self._kernel(product, is_swapped, self._target, name)
            self._functions[key] = self._builder.add_func(func, name)
        batch, rows, terms, columns = product[:4]
        matrices = (batch, columns, terms) if is_swapped else (batch, terms, columns)
        operands = [
            relax.op.reshape(first, (1 if product.one_first else batch, rows, terms)),
            relax.op.reshape(swapped if is_swapped else second, matrices),
        ]
        result = relax.TensorType((batch, rows, columns), product.out_dtype)
        function = self._functions[key]
        call = relax.op.reshape(relax.call_tir(function, operands, result), output.ty.shape)
        return call, str(function.name_hint)
