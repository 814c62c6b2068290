"""Attention of a network: two products of computed tensors, and the softmax between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
import tvm
from tvm import relax

from tvmconv.problem import FusedProblem
from tvmconv.problem.dtypes import FLOATS, STORAGE_TYPES
from tvmconv.problem.fused.attention import ROW_BYTES, Attention
from tvmconv.problem.layout import StridedRows

from ...graph.constants import Array, constant_value, static_shape
from ...graph.graph import Block, call_of, calls
from ...graph.layers import Convolution
from ...graph.views import AxisStrides, contiguous_strides, last_view_of, reshaped, view_of
from ...sites import Site
from ..context import FusedLayers
from ..early.safe_softmax import NAME, SOFTMAX
from ..products import convolution_of, factors_and_output, found_product
from ..products.forms import Form, form_for, transposed
from ..products.larger_tensors import position_of_result, position_of_rows
from ..products.product import Product

WORDS = "two products and the softmax between them"
"""The layers that the kernel computes, in words."""


@dataclass
class _Scores:
    """The scores that the softmax between two products reads: the first product, scaled, and with constants added."""

    product: relax.Var
    """The first product."""
    safe: bool = False
    scale: float = 1.0
    biases: list[tuple[Array, tuple[int, ...]]] = field(default_factory=list)
    """Constants, each with the shape of the scores that it is added to."""


@dataclass(frozen=True)
class _Site:
    """Attention that may get a kernel."""

    scores: _Scores
    first: Product
    second: Product
    factors: tuple[relax.Expr, relax.Expr, relax.Expr]
    """Queries, keys as the second factor of their product, and values."""
    output: relax.Var
    """The variable that the kernel computes."""
    precision: str
    """The precision of both products, as a word."""
    layers: dict[relax.Var, Convolution]
    """The descriptions of both products, by their variables."""
    biases: list[tuple[StridedRows, Array]]
    """The constants that are added to scores, each with its rows."""


def attention_of(
    block: Block, sites: Sequence[Site], target: tvm.target.Target, precision: str
) -> Iterator[FusedLayers]:
    """Yield the attention in a block: two products of computed tensors, with a softmax of rows between them.

    No variable in between has another reader. Scores may be scaled by numbers and have constants added. All sizes are
    known. The kernel reads queries, keys and values from the larger tensors that they lie in, and stores the result as
    the next layer reads it. The layouts of layers decide where that is: so their kernels are called before.

    Before: `scores = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`, `y = R.matmul(R.nn.softmax(scores), v)`.
    After: `y = R.reshape(R.call_tir(tvmconv_attention_0f3a91c2d47b, (R.reshape(qkv, ...), ...)), ...)`.
    """
    form = form_for(target)
    for var, value in block.values.items():
        if (site := _site(var, value, block, form, target, precision)) is not None:
            attention, operands, output = _attention(site, block)
            problem = FusedProblem(attention, precision=site.precision)
            yield FusedLayers(problem, partial(list, operands), output, site.layers, WORDS)


def _site(
    var: relax.Var, value: relax.Expr, block: Block, form: Form, target: tvm.target.Target, precision: str
) -> _Site | None:
    """Return the attention whose second product is a variable; None where there is none."""
    if call_of(value, "matmul") is None or (scores := _scores(value.args[0], block)) is None:
        return None
    (shares, v), output = factors_and_output(var, value, form, block)
    (q, k), _ = factors_and_output(scores.product, block.values[scores.product], form, block)
    products = []
    for factors, dtype in (((q, k), "float32"), ((shares, v), str(output.ty.dtype))):
        found = found_product(factors, dtype, form, target, precision)
        if isinstance(found, str) or found[0].is_open:  # such as for a GPU without tensor cores
            return None
        products.append(found)
    (first, one), (second, other) = products
    if shares.same_as(v) or first.dtype != second.dtype:
        return None
    if (first.batch, first.rows, first.columns) != (second.batch, second.rows, second.terms):
        return None
    biases = [_bias(constant, shape, first) for constant, shape in scores.biases]
    if any(bias is None for bias in biases):
        return None
    layers = {scores.product: convolution_of(scores.product, first, one), var: convolution_of(var, second, other)}
    added = [each for each in biases if each is not None]
    return _Site(scores, first, second, (q, k, v), output, one.precision, layers, added)


def _scores(shares: relax.Expr, block: Block) -> _Scores | None:
    """Return the scores of the softmax that a variable is, maybe cast or reshaped; None for anything else."""
    safe, scale, biases = None, 1.0, list[tuple[Array, tuple[int, ...]]]()
    var = shares
    while isinstance(var, relax.Var) and block.only_reader(var) is not None:
        value, shape = block.values.get(var), static_shape(var.ty)
        if shape is None or not isinstance(value, relax.Call):
            return None
        if calls(value, "matmul"):
            return None if safe is None else _Scores(var, safe, scale, biases)
        if _keeps_rows(value, shape):
            var = value.args[0]
        elif safe is None and (softmax := call_of(value, *SOFTMAX)) is not None:
            if softmax.attrs is not None and softmax.attrs.axis not in (-1, len(shape) - 1):
                return None
            safe, var = calls(value, NAME), value.args[0]
        elif safe is not None and (joined := _joined(value)) is not None:
            var, constant = joined
            if calls(value, "multiply", "divide"):
                scale *= constant.item() if calls(value, "multiply") else 1 / constant.item()
            elif constant.any():
                biases.append((_multiple(constant, scale if calls(value, "add") else -scale), shape))
        else:
            return None
    return None


def _keeps_rows(value: relax.Call, shape: Sequence[int]) -> bool:
    """Return whether a value reshapes its operand and keeps the rows, or casts it to a floating-point type."""
    if calls(value, "reshape"):
        before = static_shape(value.args[0].ty)
        return before is not None and before[-1:] == tuple(shape[-1:])
    return calls(value, "astype") and str(value.ty.dtype) in FLOATS


def _joined(value: relax.Call) -> tuple[relax.Expr, Array] | None:
    """Return the computed operand and the constant of a scaling by a number, or of an addition or subtraction."""
    scaling = calls(value, "multiply", "divide")
    if not scaling and not calls(value, "add", "subtract"):
        return None
    constants = [constant_value(each) for each in value.args]
    if constants[1] is None and calls(value, "add", "multiply"):
        operand, constant = value.args[1], constants[0]
    else:
        operand, constant = value.args[0], constants[1]
    if constant is None or static_shape(operand.ty) != static_shape(value.ty):
        return None
    is_number = constant.size == 1 and constant.item() != 0
    return (operand, constant) if is_number or not scaling else None


def _multiple(constant: Array, number: float) -> Array:
    """Return a multiple of a constant in float32."""
    with np.errstate(over="ignore"):
        return np.asarray(constant.astype("float64") * number, "float32")


def _attention(site: _Site, block: Block) -> tuple[Attention, list[relax.Expr], relax.Var]:
    """Return the attention, the tensors that its operands lie in, and the variable that its kernel computes."""
    first, second = site.first, site.second
    q, k, v = site.factors
    rows = ((q, q, -2, -1), (k, transposed(k, block), -1, -2), (v, v, -2, -1))
    counts = ((first.rows, first.terms), (first.columns, first.terms), (second.terms, second.columns))
    positions, tensors = [], []
    for (factor, contiguous, outer_axis, inner_axis), (count, columns) in zip(rows, counts, strict=True):
        position, tensor = _position_in_source(factor, outer_axis, inner_axis, block), view_of(factor, block).source
        if position is None or position.rows != count or prod(size for size, _ in position.batch) != first.batch:
            position, tensor = StridedRows.whole_tensor(first.batch, count, columns), contiguous
        positions.append(position)
        tensors.append(relax.op.reshape(tensor, (position.elements,)))
    last = last_view_of(site.output, block)
    output = None
    if not last.same_as(site.output):
        output = position_of_result(view_of(last, block), site.output, second, _vector(first.dtype))
    attention = Attention(
        matrices=first.batch,
        depth=first.terms,
        width=second.columns,
        dtype=first.dtype,
        out_dtype=second.out_dtype,
        scale=site.scores.scale,
        q=positions[0],
        k=positions[1],
        v=positions[2],
        output=output or StridedRows.whole_tensor(first.batch, second.rows, second.columns),
        biases=tuple(position for position, _ in site.biases),
        safe=site.scores.safe,
    )
    operands = [*tensors, *(relax.const(numbers) for _, numbers in site.biases)]
    return attention, operands, site.output if output is None else last


def _position_in_source(factor: relax.Expr, outer_axis: int, inner_axis: int, block: Block) -> StridedRows | None:
    """Return a factor's rows, which lie along an axis, in the tensor of which moves make the factor."""
    view = view_of(factor, block)
    others = [step for axis in view.axes[:-2] for step in axis]
    elements = prod(static_shape(view.source.ty) or ())
    return position_of_rows(
        elements, view.first, others, view.axes[outer_axis], view.axes[inner_axis], _vector(str(factor.ty.dtype))
    )


def _vector(dtype: str) -> int:
    """Return the number of elements of which the offsets of rows have to be multiples."""
    return ROW_BYTES // STORAGE_TYPES[dtype].itemsize


def _bias(constant: Array, shape: Sequence[int], product: Product) -> tuple[StridedRows, Array] | None:
    """Return the rows and numbers of a constant that is added to scores of a shape; None if strides cannot hold it."""
    outer = constant.shape[:-1]
    numbers = np.ascontiguousarray(np.broadcast_to(constant, (*outer, shape[-1])))
    strides = contiguous_strides([1] * (len(shape) - numbers.ndim) + list(numbers.shape))
    axes: list[AxisStrides] = [
        ((size, step if count > 1 else 0),) for size, (count, step) in zip(shape, strides, strict=True)
    ]
    axes[-1] = ((shape[-1], 1),)
    found = reshaped(axes, (product.batch, product.rows, product.columns))
    if found is None:
        return None
    batch, rows, row = found
    position = position_of_rows(numbers.size, 0, batch, rows, row, 1)
    return None if position is None else (position, numbers.reshape(-1))
