"""The pass that gives products of two computed tensors, as attention has them, kernels of tvmconv."""

from __future__ import annotations

from math import prod

import msgspec
import tvm
from tvm import relax

from .. import dispatch
from ..dtypes import FLOATS
from ..errors import InvalidArgumentError
from ..precision import DEFAULT, HALVES
from ..problem import Problem
from .constants import constant_value, static_shape
from .convolutions import GIVE_SIZES, is_linear, shape_text
from .graph import Block, blocks_of, call_of, rebind
from .kernels import NetworkKernel, add_kernel, output_of, reason_of
from .layers import Convolution, Layer
from .product_forms import Form, Product, form_for


def use_products(
    mod: tvm.IRModule, target: tvm.target.Target, precision: str = DEFAULT
) -> tuple[tvm.IRModule, tuple[Layer, ...]]:
    """Return the module with kernels of tvmconv for batched products, and what runs each of these.

    The products are those that `use_kernels` has left, of two tensors of floating-point numbers, of which all sizes are
    known. A factor may be the same for the whole batch. On a GPU a `precision` of half has the factors in it and the
    product in float32, as frameworks' autocast does. What has no kernel is TVM's, with the reason in its layer.

    Before: `scores = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))`.
    After: `scores = R.reshape(R.call_tir(tvmconv_product_0f3a91c2d47b, (R.reshape(q, ...), R.reshape(k, ...))), ...)`.
    """
    form = form_for(target)
    builder = relax.BlockBuilder(mod)
    kernels: dict[Product, NetworkKernel] = {}
    calls: dict[relax.Var, relax.Expr] = {}
    layers = []
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if call_of(value, "matmul") is None:
                continue
            found = _found(value, form, target, precision)
            if isinstance(found, str):
                if not _is_linear_layer(value):
                    layers.append(_left_to_tvm(str(var.name), value, found))
                continue
            product, problem = found
            ranges = dispatch.select_ranges(problem, target)
            if product not in kernels:
                kernels[product] = add_kernel(builder, ranges, target, "product", constant=False)
            calls[var] = _call(value, product, kernels[product], form, block)
            selection = ranges[0].selection
            workload = problem.workload
            convolution = Convolution(str(var.name), str(product), workload.layout, workload.flops, workload, None)
            config = msgspec.to_builtins(selection.config)
            layers.append(Layer(convolution, f"tvmconv {selection.name}", config, reason_of(ranges)))
    return rebind(builder.get(), calls), tuple(layers)


def has_open_products(mod: tvm.IRModule) -> bool:
    """Return whether a module has products of sizes that are known only when it runs, which no kernel takes."""
    values = (value for block in blocks_of(mod) for value in block.values.values())
    return any(
        static_shape(factor.ty) is None
        for value in values
        if call_of(value, "matmul") is not None and not _is_linear_layer(value)
        for factor in value.args
    )


def _is_linear_layer(value: relax.Call) -> bool:
    """Return whether a product is a linear layer, of which `use_kernels` has said what computes it."""
    return is_linear(value) and constant_value(value.args[1]) is not None


def _found(value: relax.Call, form: Form, target: tvm.target.Target, precision: str) -> tuple[Product, Problem] | str:
    """Return what a value multiplies, and the problem that its kernel solves; the reason where it gets none."""
    product = _product(value, form, precision)
    if isinstance(product, str):
        return product
    if (obstacle := form.obstacle(product)) is not None:
        return obstacle
    try:
        problem = Problem(form.workload(product), precision=DEFAULT if precision in HALVES else precision)
        dispatch.templates_for(problem, target)
    except InvalidArgumentError as error:  # such as more elements than kernels have indices for
        return str(error)
    return product, problem


def _product(value: relax.Call, form: Form, precision: str) -> Product | str:
    """Return what a value multiplies; the reason where that is no batched product of matrices."""
    first, second = (argument.ty for argument in value.args)
    dtype = str(first.dtype)
    if dtype not in FLOATS or dtype != str(second.dtype):
        return f"{dtype} with {second.dtype} is not supported"
    shapes = [static_shape(each) for each in (first, second)]
    if None in shapes:
        return f"a size is known only when the model runs; {GIVE_SIZES}"
    x, y = (shape or () for shape in shapes)
    if min(len(x), len(y)) < 2:
        return "a factor is a vector"
    if 0 in (*x, *y):
        return "a factor has no elements"
    (*batch, rows, terms), (*others, _, columns) = x, y
    types = form.dtype(dtype, precision), str(value.ty.dtype)
    if prod(others) == 1:  # all rows are those of one matrix
        return Product(1, prod(batch) * rows, terms, columns, *types)
    if prod(batch) == 1:
        return Product(prod(others), rows, terms, columns, *types, one_first=True)
    if batch != others:
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


def _call(value: relax.Call, product: Product, kernel: NetworkKernel, form: Form, block: Block) -> relax.Expr:
    """Return the expression that multiplies with a kernel."""
    workload = form.workload(product)
    *batch, rows, _ = value.ty.shape
    operands = []
    for name, factor in zip("xw", form.operands(value, product, block), strict=True):
        shape, dtype = workload.operands[name]
        narrow = factor if str(value.args[0].ty.dtype) == dtype else relax.op.astype(factor, dtype)
        operands.append(relax.op.reshape(narrow, shape))
    columns = prod(workload.output_shape) // (product.batch * product.rows)
    output = relax.op.reshape(output_of(kernel, workload, operands), (*batch, rows, columns))
    if columns == product.columns:
        return output
    return relax.op.strided_slice(output, [len(batch) + 1], [0], [product.columns])
