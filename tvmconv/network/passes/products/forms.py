"""The convolutions that batched products of matrices are, on a GPU and on a CPU."""

from __future__ import annotations

from typing import Protocol

import msgspec
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvmconv.compute.tensor.chunks import copied_elements
from tvmconv.dispatch import Selection
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from ...graph.graph import Block, call_of
from .gpu_kernel import gpu_product_kernel
from .kernel import product_kernel
from .larger_tensors import InLargerTensors, in_larger_tensors
from .product import Product

Factors = tuple[relax.Expr, relax.Expr]


class Form(Protocol):
    """The way in which the templates of a kind of target compute products."""

    takes_halves: bool
    """True if factors of half precision that are cast to float32 are multiplied as such."""
    slow_if_open: bool
    """True if products of sizes that are known only when the model runs have slower kernels than others."""

    def open_kernel(self, product: Product, transposed: bool, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
        """Return the function of a product of open sizes, whose second factor may be transposed: (G, N, K)."""
        ...

    def obstacle(self, product: Product) -> str | None:
        """Return the reason why a product stays with TVM; None for one that may be a convolution."""
        ...

    def terms(self, product: Product) -> int:
        """Return the number of elements of a row of the first factor, as kernels read it."""
        ...

    def columns(self, product: Product) -> int:
        """Return the number of elements of a row of the result, as kernels store it."""
        ...

    def in_larger_tensors(
        self, factors: Factors, output: relax.Var, product: Product, selection: Selection, block: Block
    ) -> InLargerTensors:
        """Return which operands a kernel reads from larger tensors, or stores in one."""
        ...

    def workload(self, product: Product) -> ConvWorkload:
        """Return the convolution that a product is."""
        ...

    def operands(self, factors: Factors, product: Product, block: Block, padded: bool) -> Factors:
        """Return the factors of a product as x and w of its convolution, perhaps in other shapes.

        With `padded`, the rows of the first factor are padded already.
        """
        ...


def form_for(target: tvm.target.Target) -> Form:
    """Return how products are computed on a target."""
    return _OnTensorCores() if backend_of(target).on_gpu else _OnPlanes()


class _OnTensorCores:
    """1x1 convolutions with a group for each matrix, whose terms and columns are padded to whole copies.

    Pixels are the rows. Each group is a contiguous matrix in memory, and the weight is the second factor, transposed:
    (G * N, K).
    """

    takes_halves = True
    slow_if_open = True
    """A kernel for open sizes has no tensor cores."""

    open_kernel = staticmethod(gpu_product_kernel)

    def obstacle(self, product: Product) -> str | None:
        if product.is_open:  # whose kernel needs no whole copies, and is not of tensor cores
            return None
        if product.rows == 1 or min(product.terms, product.columns) < 2:
            return "a single row, column or term has nothing to share"
        return "the first factor is one matrix for the whole batch" if product.shares_first else None

    def terms(self, product: Product) -> int:
        return _in_copies(product.terms, product.dtype)

    def columns(self, product: Product) -> int:
        return _in_copies(product.columns, product.dtype)

    def in_larger_tensors(
        self, factors: Factors, output: relax.Var, product: Product, selection: Selection, block: Block
    ) -> InLargerTensors:
        if not selection.takes_strided_rows:
            return InLargerTensors({}, {}, output)
        padded, alignment = (self.terms(product), self.columns(product)), _in_copies(1, product.dtype)
        return in_larger_tensors(factors, output, product, padded, alignment, block)

    def workload(self, product: Product) -> ConvWorkload:
        terms, columns = self.terms(product), self.columns(product)
        workload = ConvWorkload.conv2d(
            (1, product.batch * terms, product.rows, 1),
            (product.batch * columns, terms, 1, 1),
            groups=product.batch,
            dtype=product.dtype,
            out_dtype=product.out_dtype,
        )
        return msgspec.structs.replace(workload, layout=f"NCHW{terms}c", w_layout="KRSC", out_layout=f"NCHW{columns}c")

    def operands(self, factors: Factors, product: Product, block: Block, padded: bool) -> Factors:
        first, second = factors
        more = self.terms(product) - product.terms
        columns = transposed(second, block)
        return (
            first if padded else _padded(first, first.ty.ndim - 2, (0, more)),
            _padded(columns, second.ty.ndim - 2, (self.columns(product) - product.columns, more)),
        )


class _OnPlanes:
    """1x1 convolutions whose planes are the rows of the second factor, so that the output has its rows in order.

    The weight is the first factor, of K input channels and M output channels, in a group for each matrix. If it is one
    matrix for the whole batch, there is an image for each matrix, and one group.
    """

    takes_halves = False
    slow_if_open = False
    open_kernel = staticmethod(product_kernel)

    def obstacle(self, product: Product) -> str | None:
        if product.is_open and "bfloat16" in (product.dtype, product.out_dtype):
            return "no kernel for sizes that are known only when the model runs takes bfloat16"
        return None

    def terms(self, product: Product) -> int:
        return product.terms

    def columns(self, product: Product) -> int:
        return product.columns

    def in_larger_tensors(
        self, factors: Factors, output: relax.Var, product: Product, selection: Selection, block: Block
    ) -> InLargerTensors:
        return InLargerTensors({}, {}, output)

    def workload(self, product: Product) -> ConvWorkload:
        images, groups = (product.batch, 1) if product.shares_first else (1, product.batch)
        return ConvWorkload.conv2d(
            (images, groups * product.terms, 1, product.columns),
            (groups * product.rows, product.terms, 1, 1),
            groups=groups,
            dtype=product.dtype,
            out_dtype=product.out_dtype,
        )

    def operands(self, factors: Factors, product: Product, block: Block, padded: bool) -> Factors:
        first, second = factors
        return second, first


def _in_copies(size: int, dtype: str) -> int:
    """Return a number of elements of a type, rounded up to whole asynchronous copies."""
    copied = copied_elements(ConvWorkload.conv2d((1, 1, 1, 1), (1, 1, 1, 1), dtype=dtype))
    return -(-size // copied) * copied


def transposed(factor: relax.Expr, block: Block) -> relax.Expr:
    """Return a factor with its last two axes swapped: the operand of the swap that makes it, if one does."""
    *batch, terms, columns = factor.ty.shape
    value = block.values.get(factor) if isinstance(factor, relax.Var) else factor
    swapped = [*range(len(batch)), len(batch) + 1, len(batch)]
    if (made := call_of(value, "permute_dims")) is not None:
        axes = reversed(range(factor.ty.ndim)) if made.attrs.axes is None else map(int, made.attrs.axes)
        if list(axes) == swapped:
            return made.args[0]
    made = call_of(value, "reshape")
    before = [] if made is None else list(made.args[0].ty.shape)[-2:]
    if len(before) == 2 and all(map(tvm_ffi.structural_equal, before, [terms, columns])):
        return relax.op.reshape(transposed(made.args[0], block), (*batch, columns, terms))
    return relax.op.permute_dims(factor, swapped)


def _padded(factor: relax.Expr, axes: int, zeros: tuple[int, int]) -> relax.Expr:
    """Return a factor, which has `axes` axes before the last two, with `zeros` zeros at the ends of those two."""
    return relax.op.nn.pad(factor, [*[0, 0] * axes, 0, zeros[0], 0, zeros[1]]) if any(zeros) else factor
