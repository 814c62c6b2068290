"""The pass that gives products of two computed tensors, as attention has them, kernels of tvmconv on a GPU."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import msgspec
import tvm
from tvm import relax

from .. import dispatch
from ..compute.tensor_gemm import copied_elements
from ..dtypes import FLOATS
from ..precision import DEFAULT, HALVES
from ..problem import Problem
from ..schedules.cuda.gemm_tiles import VECTOR
from ..targets import backend_of
from ..workload import ConvWorkload
from .constants import static_shape
from .graph import Block, blocks_of, call_of, rebind
from .kernels import NetworkKernel, add_kernel, output_of, reason_of
from .layers import Convolution, Layer


class Product(NamedTuple):
    """A batched product of matrices: (G, M, K) times (G, K, N)."""

    batch: int
    rows: int
    terms: int
    columns: int
    dtype: str
    """The type of the factors."""
    out_dtype: str

    def __str__(self) -> str:
        factors = f"{self.rows}x{self.terms} times {self.terms}x{self.columns}"
        return f"product of {self.batch} {factors} {self.dtype} to {self.out_dtype}"

    @property
    def workload(self) -> ConvWorkload:
        """The 1x1 convolution with a group for each matrix that this is, padded to whole copies and stores.

        Its pixels are the rows. Each group is a matrix by itself in memory, and the weight is the second factor,
        transposed: (G * N, K).
        """
        copied = copied_elements(ConvWorkload.conv2d((1, 1, 1, 1), (1, 1, 1, 1), dtype=self.dtype))
        terms, columns = -(-self.terms // copied) * copied, -(-self.columns // VECTOR) * VECTOR
        workload = ConvWorkload.conv2d(
            (1, self.batch * terms, self.rows, 1),
            (self.batch * columns, terms, 1, 1),
            groups=self.batch,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
        )
        return msgspec.structs.replace(workload, layout=f"NCHW{terms}c", w_layout="KRSC", out_layout=f"NCHW{columns}c")


def use_products(
    mod: tvm.IRModule, target: tvm.target.Target, precision: str = DEFAULT
) -> tuple[tvm.IRModule, tuple[Layer, ...]]:
    """Return the module with kernels of tvmconv for batched products on a GPU, and what runs each of these.

    The products are those that `use_kernels` has left, of two tensors of floating-point numbers with equal batches, of
    which all sizes are known. Those of one row stay with TVM: there is nothing to share. A `precision` of half has the
    factors in it and the product in float32, as frameworks' autocast does.

    Before: `scores = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`.
    After: `scores = R.reshape(R.call_tir(tvmconv_product_0, (R.reshape(q, ...), R.reshape(k, ...))), ...)`.
    """
    if not backend_of(target).on_gpu:
        return mod, ()
    builder = relax.BlockBuilder(mod)
    kernels: dict[Product, NetworkKernel] = {}
    calls: dict[relax.Var, relax.Expr] = {}
    layers = []
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (product := _product(value, precision)) is None:
                continue
            workload = product.workload
            problem = Problem(workload, precision=DEFAULT if precision in HALVES else precision)
            if not dispatch.algorithms_for(problem, target):
                continue
            ranges = dispatch.select_ranges(problem, target)
            if product not in kernels:
                name = f"tvmconv_product_{len(kernels)}"
                kernels[product] = add_kernel(builder, ranges, target, name, constant=False)
            calls[var] = _call(value, product, kernels[product], block)
            selection = ranges[0].selection
            convolution = Convolution(str(var.name), str(product), workload.layout, workload.flops, workload, None)
            config = msgspec.to_builtins(selection.config)
            layers.append(Layer(convolution, f"tvmconv {selection.name}", config, reason_of(ranges)))
    return rebind(builder.get(), calls), tuple(layers)


def _product(value: relax.Expr, precision: str) -> Product | None:
    """Return what a value multiplies; None for anything that gets no kernel."""
    if call_of(value, "matmul") is None:
        return None
    first, second = (static_shape(argument.ty) or () for argument in value.args)
    if min(len(first), len(second)) < 2:
        return None
    (*batch, rows, terms), (*others, _, columns) = first, second
    dtype = str(value.args[0].ty.dtype)
    if batch != others or rows == 1 or min(terms, columns) < 2:
        return None
    if dtype not in FLOATS or dtype != str(value.args[1].ty.dtype):
        return None
    in_half = precision in HALVES and dtype == "float32"
    return Product(prod(batch), rows, terms, columns, precision if in_half else dtype, str(value.ty.dtype))


def _call(value: relax.Call, product: Product, kernel: NetworkKernel, block: Block) -> relax.Expr:
    """Return the expression that multiplies with a kernel."""
    workload = product.workload
    _, terms, _, _ = workload.w_shape
    columns = workload.multiplier
    *batch, rows, _ = value.ty.shape
    first = _padded(value.args[0], len(batch), (0, terms - product.terms))
    second = _padded(_transposed(value.args[1], block), len(batch), (columns - product.columns, terms - product.terms))
    operands = []
    for name, factor in (("x", first), ("w", second)):
        shape, dtype = workload.operands[name]
        narrow = factor if str(value.args[0].ty.dtype) == dtype else relax.op.astype(factor, dtype)
        operands.append(relax.op.reshape(narrow, shape))
    output = relax.op.reshape(output_of(kernel, workload, operands), (*batch, rows, columns))
    if columns == product.columns:
        return output
    return relax.op.strided_slice(output, [len(batch) + 1], [0], [product.columns])


def _transposed(factor: relax.Expr, block: Block) -> relax.Expr:
    """Return a factor with its last two axes swapped: what it was made of, if that was done by swapping them."""
    *batch, terms, columns = factor.ty.shape
    value = block.values.get(factor) if isinstance(factor, relax.Var) else factor
    swapped = [*range(len(batch)), len(batch) + 1, len(batch)]
    if (made := call_of(value, "permute_dims")) is not None and [int(axis) for axis in made.attrs.axes] == swapped:
        return made.args[0]
    if (made := call_of(value, "reshape")) is not None and list(made.args[0].ty.shape)[-2:] == [terms, columns]:
        return relax.op.reshape(_transposed(made.args[0], block), (*batch, columns, terms))
    return relax.op.permute_dims(factor, swapped)


def _padded(factor: relax.Expr, axes: int, behind: tuple[int, int]) -> relax.Expr:
    """Return a factor with so many zeros behind its last two axes, which come behind so many others."""
    return relax.op.nn.pad(factor, [*[0, 0] * axes, 0, behind[0], 0, behind[1]]) if any(behind) else factor
