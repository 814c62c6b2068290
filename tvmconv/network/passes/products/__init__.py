"""The pass that gives products of two computed tensors, as attention has them, kernels of tvmconv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import tvm
from tvm import relax

from tvmconv import dispatch
from tvmconv.problem import ASSUMED_BATCH, Problem
from tvmconv.problem.dtypes import FLOATS
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from ...graph.constants import constant_value, same_size, sizes_of, static_shape
from ...graph.convolutions import GIVE_SIZES, Assumed, assumed_sizes, is_linear, shape_text, size_text
from ...graph.graph import Block, blocks_of, call_of, rebind
from ...graph.layers import Convolution, Layer
from ...sites.half import half_of
from ..context import Context
from ..convolutions.functions import NetworkKernel, add_kernel, output_of, reason_of
from .forms import Factors, Form, form_for, transposed
from .larger_tensors import InLargerTensors
from .padded_rows import padded_path
from .product import Product

REASON = "one kernel for all sizes"


def use_products(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module with kernels of tvmconv for batched products, and add these to the context.

    The products are those that `call_kernels` has left, of two tensors of floating-point numbers. A factor may be the
    same for the whole batch. Products with a size that is known only when the model runs are for `OpenProducts`. On a
    GPU factors that are cast from half precision are multiplied in it, with sums in float32, and the kernel takes in a
    cast to it after the product. There a kernel also reads factors from, and stores the result in, larger tensors, as
    `in_larger_tensors` finds them, and rows that it stores padded stay padded up to the product that reads them, as
    `padded_path` says. A product without a kernel is left to TVM, with the reason in its layer.

    Before: `scores = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`.
    After: `scores = R.reshape(R.call_tir(tvmconv_product_0f3a91c2d47b, (R.reshape(q, ...), R.reshape(k, ...))), ...)`.
    """
    target, precision, layers = context.target, context.precision, context.products
    form = form_for(target)
    builder = relax.BlockBuilder(mod)
    kernels: dict[tuple[object, ...], NetworkKernel] = {}
    opened, assumed = OpenProducts(builder, target), assumed_sizes(mod)
    calls: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        with_kernel: dict[relax.Var, _ProductWithKernel] = {}
        for var, value in block.values.items():
            if call_of(value, "matmul") is None:
                continue
            factors, output = factors_and_output(var, value, form, block)
            found = found_product(factors, str(output.ty.dtype), form, target, precision, assumed)
            if not isinstance(found, str) and found[0].is_open:
                calls[output], function = opened.call(factors, found[0], output, block)
                layers.append(Layer(convolution_of(var, *found), opened.name, None, REASON, function))
            elif not isinstance(found, str):
                with_kernel[var] = _ProductWithKernel(
                    factors, output, *found, dispatch.select_ranges(found[1], target), len(layers)
                )
                layers.append(_layer(var, with_kernel[var]))
            elif not _is_linear_layer(value):
                layers.append(_left_to_tvm(str(var.name), value, found))
        padded: set[relax.Var] = set()
        for var, each in with_kernel.items():
            product, columns = each.product, form.columns(each.product)
            in_larger = form.in_larger_tensors(each.factors, each.output, product, each.ranges[0].selection, block)
            key = product, *sorted(in_larger.positions.items())
            if key not in kernels:
                kernels[key] = add_kernel(builder, each.ranges, target, "product", False, in_larger.positions)
            layers[each.layer] = replace(layers[each.layer], function=str(kernels[key].function.name_hint))
            operands = form.operands(each.factors, product, block, padded=var in padded)
            rows = _rows(operands, in_larger, columns - product.columns, each.problem.workload, kernels[key])
            if columns > product.columns:
                path = padded_path(each.output, block, columns, builder)
                reader = None if path is None else with_kernel.get(path.product)
                if path is not None and reader is not None and form.terms(reader.product) == columns:
                    calls |= path.values
                    padded.add(path.product)
                else:
                    rows = relax.op.strided_slice(rows, [each.output.ty.ndim - 1], [0], [product.columns])
            calls[in_larger.output] = rows
            block.forget_value(in_larger.output)  # its old operands are computed no more: it is no view of them
    return rebind(builder.get(), calls)


class _ProductWithKernel(NamedTuple):
    """A product that gets a kernel."""

    factors: Factors
    output: relax.Var
    """The variable that the kernel computes."""
    product: Product
    problem: Problem
    ranges: Sequence[dispatch.Range]
    layer: int
    """The index of its layer among the context's products."""


def _layer(var: relax.Var, found: _ProductWithKernel) -> Layer:
    """Return the layer of a product with kernels."""
    selection, convolution = found.ranges[0].selection, convolution_of(var, found.product, found.problem)
    config = msgspec.to_builtins(selection.config)
    return Layer(convolution, f"tvmconv {selection.name}", config, reason_of(found.ranges))


def convolution_of(var: relax.Var, product: Product, problem: Problem) -> Convolution:
    """Return the description of a product that a variable is."""
    workload = problem.workload
    return Convolution(str(var.name), str(product), workload.layout, workload.flops, workload, None)


def is_slow_of_open_sizes(mod: tvm.IRModule, target: tvm.target.Target) -> bool:
    """Return whether a module has products of open sizes that known sizes would give faster kernels.

    On a GPU that is so for all, as `OpenProducts` uses no tensor cores; on a CPU for those that no kernel takes.
    """
    form = form_for(target)
    return any(
        form.slow_if_open or isinstance(found_product(value.args, str(value.ty.dtype), form, target, DEFAULT), str)
        for block in blocks_of(mod)
        for value in block.values.values()
        if call_of(value, "matmul") is not None and not _is_linear_layer(value)
        if any(static_shape(factor.ty) is None for factor in value.args)
    )


def _is_linear_layer(value: relax.Call) -> bool:
    """Return whether a product is a linear layer, whose kernel `call_kernels` has added to the context."""
    return is_linear(value) and constant_value(value.args[1]) is not None and str(value.ty.dtype) in FLOATS


def products_of_halves(mod: tvm.IRModule, target: tvm.target.Target, dtype: str) -> set[relax.Var]:
    """Return the products in float32 that get a kernel for factors of a type of half precision."""
    form = form_for(target)
    if not form.takes_halves:
        return set()

    def has_kernel(value: relax.Expr) -> bool:
        if call_of(value, "matmul") is None or {str(each.ty.dtype) for each in (value, *value.args)} != {"float32"}:
            return False
        first, second = (relax.Var("factor", relax.TensorType(each.ty.shape, dtype)) for each in value.args)
        return not isinstance(found_product((first, second), dtype, form, target, DEFAULT), str)

    return {var for block in blocks_of(mod) for var, value in block.values.items() if has_kernel(value)}


def factors_and_output(var: relax.Var, value: relax.Call, form: Form, block: Block) -> tuple[Factors, relax.Var]:
    """Return the factors that a kernel reads and the variable that it computes: without casts from and to halves."""
    first, second = (half_of(each, block) for each in value.args)
    wide = (value.args[0], value.args[1]), var
    if not form.takes_halves or first is None or second is None or first.ty.dtype != second.ty.dtype:
        return wide
    if str(value.ty.dtype) != "float32":
        return wide
    reader = block.only_reader(var)
    cast = None if reader is None else call_of(block.values[reader], "astype")
    is_half = cast is not None and cast.ty.dtype == first.ty.dtype
    return (first, second), reader if reader is not None and is_half else var


def found_product(
    factors: Sequence[relax.Expr],
    out_dtype: str,
    form: Form,
    target: tvm.target.Target,
    precision: str,
    assumed: Assumed = MappingProxyType({}),
) -> tuple[Product, Problem] | str:
    """Return the product of factors, and the problem that its kernel solves; the reason where there is no kernel.

    The problem has assumed values for sizes that are known only when the model runs.
    """
    product = _product(factors, out_dtype)
    if isinstance(product, str):
        return product
    if (obstacle := form.obstacle(product)) is not None:
        return obstacle
    try:
        problem = Problem(form.workload(product.at(assumed, ASSUMED_BATCH)), precision=precision)
        if not product.is_open:
            dispatch.templates_for(problem, target)
    except InvalidArgumentError as error:  # such as more elements than kernels have indices for
        return str(error)
    return product, problem


def _product(factors: Sequence[relax.Expr], out_dtype: str) -> Product | str:
    """Return the batched product of matrices that factors make; the reason where they make none."""
    first, second = (factor.ty for factor in factors)
    dtype = str(first.dtype)
    if dtype not in FLOATS or dtype != str(second.dtype):
        return f"{dtype} with {second.dtype} is not supported"
    x, y = sizes_of(first), sizes_of(second)
    if x is None or y is None:
        return f"a shape is known only when the model runs; {GIVE_SIZES}"
    if min(len(x), len(y)) < 2:
        return "a factor is a vector"
    if any(isinstance(size, int) and size == 0 for size in (*x, *y)):
        return "a factor has no elements"
    (*batch, rows, terms), (*others, terms_of_second, columns) = x, y
    if not same_size(terms, terms_of_second):
        return f"{size_text(terms)} and {size_text(terms_of_second)} terms are the same only when the model runs"
    terms = min(terms, terms_of_second, key=lambda size: not isinstance(size, int))
    types = dtype, out_dtype
    if all(same_size(size, 1) for size in others):  # one matrix with the rows of the whole batch
        return Product(1, prod((*batch, rows)), terms, columns, *types)
    if all(same_size(size, 1) for size in batch):
        return Product(prod(others), rows, terms, columns, *types, shares_first=True)
    if len(batch) != len(others) or not all(map(same_size, batch, others)):
        return "a matrix is a factor of several, and not of all"
    return Product(prod(batch), rows, terms, columns, *types)


def _left_to_tvm(name: str, value: relax.Call, obstacle: str) -> Layer:
    """Return the layer of a product that TVM computes."""
    first, second = (argument.ty for argument in value.args)
    description = f"product of {shape_text(first)} times {shape_text(second)} {first.dtype} to {value.ty.dtype}"
    factor, shape = static_shape(first), static_shape(value.ty)
    flops = None if factor is None or shape is None else 2 * prod(shape) * factor[-1]
    is_too_open = factor is None or static_shape(second) is None
    convolution = Convolution(name, description, "", flops, None, obstacle, is_too_open=is_too_open)
    return Layer(convolution, "TVM", None, obstacle)


def _rows(
    operands: Factors, in_larger: InLargerTensors, padding: int, workload: ConvWorkload, kernel: NetworkKernel
) -> relax.Expr:
    """Return the expression that multiplies with a kernel; it has `padding` elements of padding in each row."""
    shapes = {name: shape for name, (shape, _) in workload.operands.items()}
    shapes |= {name: (position.elements,) for name, position in in_larger.positions.items()}
    factors = [
        relax.op.reshape(in_larger.tensors.get(name, operand), shapes[name])
        for name, operand in zip("xw", operands, strict=True)
    ]
    *others, columns = in_larger.output.ty.shape
    return relax.op.reshape(output_of(kernel, workload, factors, shapes["output"]), (*others, columns + padding))


class OpenProducts:
    """The kernels of a module for products of open sizes; products of equal known sizes and types share one."""

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

        Where a permutation that swaps the last two axes makes the second factor, the kernel reads the permutation's
        operand.

        Before: `y = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`, with q and k of (n, 12, s, 64).
        After: `y = R.reshape(R.call_tir(tvmconv_product_0, (R.reshape(q, (n * 12, s, 64)), R.reshape(k, ...))), ...)`.
        """
        first, second = factors
        swapped = transposed(second, block)
        is_swapped = isinstance(swapped, relax.Var)  # otherwise it would have to be computed
        key = tuple(each if isinstance(each, (int, str)) else None for each in product), is_swapped
        if key not in self._functions:
            name = f"tvmconv_product_{len(self._functions)}"
            func = self._kernel(product, is_swapped, self._target, name)
            self._functions[key] = self._builder.add_func(func, name)
        batch, rows, terms, columns = product[:4]
        matrices = (batch, columns, terms) if is_swapped else (batch, terms, columns)
        operands = [
            relax.op.reshape(first, (1 if product.shares_first else batch, rows, terms)),
            relax.op.reshape(swapped if is_swapped else second, matrices),
        ]
        result = relax.TensorType((batch, rows, columns), product.out_dtype)
        function = self._functions[key]
        call = relax.op.reshape(relax.call_tir(function, operands, result), output.ty.shape)
        return call, str(function.name_hint)
