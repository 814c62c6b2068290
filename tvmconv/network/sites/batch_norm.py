"""Batch norms of inference: their factors and offsets, and a pass that turns the remaining ones into arithmetic."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvmconv.problem.dtypes import NARROW

from ..graph.constants import Array, constant_value
from ..graph.graph import Block, blocks_of, operator_name, rebind


def scale_and_shift(value: relax.Expr) -> tuple[Array, Array] | None:
    """Return the factor and the offset of each channel in a batch norm, (K,) in float64; None for anything else.

    It has to be one of inference, over axis 1, with parameters that are constants.
    """
    if operator_name(value) != "relax.nn.batch_norm":
        return None
    attrs = value.attrs
    parameters = [array.astype(np.float64) for array in map(constant_value, value.args[1:]) if array is not None]
    if attrs.training or attrs.axis != 1 or len(parameters) < 4:
        return None
    gamma, beta, mean, variance = parameters
    scale = (gamma if attrs.scale else 1.0) / np.sqrt(variance + attrs.epsilon)
    return scale, (beta if attrs.center else 0.0) - mean * scale


def normalized(var: relax.Var, block: Block) -> relax.Var | None:
    """Return the variable for the first of a batch norm's three results, if the others are not read."""
    first = block.only_reader(var)
    if first is None or not isinstance(block.values[first], relax.TupleGetItem) or block.values[first].index != 0:
        return None
    return first


def simplify_batch_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with each batch norm as a multiplication and an addition, which TVM can fuse.

    As one operator with three results, a batch norm is a separate kernel that also copies its statistics.

    Before: `y = R.nn.batch_norm(x, gamma, beta, mean, variance)`, `z = y[0]`.
    After: `y = R.multiply(x, scale)`, `z = R.add(y, shift)`.

    In a narrow type, with parameters that are no constants, TVM's result would be in float32: the norm is computed in
    float32, and cast back.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if operator_name(value) != "relax.nn.batch_norm" or (first := normalized(var, block)) is None:
                continue
            if (factors := scale_and_shift(value)) is not None:
                x = value.args[0]
                shape = (-1,) + (1,) * (x.ty.ndim - 2)
                scale, shift = (relax.const(factor.reshape(shape), x.ty.dtype) for factor in factors)
                values[first] = relax.op.add(relax.op.multiply(x, scale), shift)
            elif not value.attrs.training and str(value.args[0].ty.dtype) in NARROW:
                values[first] = _by_way_of_float32(value)
    return rebind(mod, values)


def _by_way_of_float32(norm: relax.Call) -> relax.Expr:
    """Return the first result of a batch norm, computed in float32."""
    attrs, ndim = norm.attrs, norm.args[0].ty.ndim
    shape = [-1 if axis == attrs.axis % ndim else 1 for axis in range(ndim)]
    arrays = norm.args[0], *(relax.op.reshape(each, shape) for each in norm.args[1:])
    x, gamma, beta, mean, variance = (relax.op.astype(each, "float32") for each in arrays)
    spread = relax.op.sqrt(relax.op.add(variance, relax.const(float(attrs.epsilon), "float32")))
    y = relax.op.divide(relax.op.subtract(x, mean), spread)
    if attrs.scale:
        y = relax.op.multiply(y, gamma)
    if attrs.center:
        y = relax.op.add(y, beta)
    return relax.op.astype(y, norm.args[0].ty.dtype)
