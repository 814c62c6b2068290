"""The arithmetic of operators that no kernel has taken in: sums in wider types than TVM's, and powers by square roots.

TVM adds up in the dtype of the operands. It calls the C library's pow for each element, which takes ten times as long
as the rest of a local response normalization.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax

from tvmconv.problem.dtypes import NARROW
from tvmconv.targets import backend_of

from ..graph.constants import constant_value
from ..graph.convolutions import is_convolution
from ..graph.graph import blocks_of, call_of, operator_name, rebind

SUMMING = frozenset(
    (
        "mean", "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "nn.avg_pool1d",
        "nn.avg_pool2d", "nn.avg_pool3d", "nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.log_softmax",
        "nn.rms_norm", "nn.safe_softmax", "nn.softmax", "std", "sum", "variance",
    )
)  # fmt: skip
"""Operators of Relax that add up many elements of their operands, beside convolutions and products."""

POOLING = frozenset(("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"))
"""Operators of Relax that use vector instructions, which a CPU has for float32 but not for bfloat16."""


def sum_in_float32(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with operators that add up float16 or bfloat16, or on a CPU pool bfloat16, in float32.

    A running sum, which has to add one number after the other, is in float64 on a CPU: the last of a million numbers in
    float32 would be off by 2e-5. On a GPU it is computed along the last axis, between permutations of axes.

    In float16 the mean of a plane of 112x112 is a third of what it should be: from 2048 on, adding 1 changes nothing.

    Before: `y = R.mean(x, axis=[2, 3])`. After: `y = R.astype(R.mean(R.astype(x, "float32"), axis=[2, 3]), "float16")`.
    """
    on_gpu, values = backend_of(target).on_gpu, {}
    mod = _with_pooling_first(mod) if on_gpu else mod
    pooling = frozenset() if on_gpu else POOLING
    for block in blocks_of(mod):
        for var, value in block.values.items():
            name = (operator_name(value) or "").removeprefix("relax.")
            if not isinstance(value.ty, relax.TensorType):
                continue
            if name == "cumsum":
                values[var] = _cumsum_along_last_axis(value) if on_gpu else _in_float64(value)
            if str(value.ty.dtype) not in NARROW:
                continue
            if name == "matmul":  # it sums in float32 without a cast of its operands
                wider = relax.op.matmul(*value.args, out_dtype="float32")
            elif name in SUMMING or is_convolution(value) or (name in pooling and value.ty.dtype == "bfloat16"):
                wider = relax.Call(value.op, [_in_float32(each) for each in value.args], value.attrs)
            else:
                continue
            values[var] = relax.op.astype(wider, value.ty.dtype)
    return _with_casts_first(rebind(mod, values))


def _in_float64(call: relax.Call) -> relax.Expr:
    """Return the running sum of floating-point numbers in float64, and of others as it is."""
    if "float" not in str(call.ty.dtype):
        return call
    wider = relax.op.cumsum(*call.args, call.attrs.axis, "float64", call.attrs.exclusive)
    return relax.op.astype(wider, call.ty.dtype)


def _cumsum_along_last_axis(call: relax.Call) -> relax.Expr:
    """Return a running sum along the last axis, the only one for which TVM has a GPU's kernel of open sizes."""
    dtype, rank = str(call.ty.dtype), int(call.ty.ndim)
    if rank == 0:
        return call
    axes = [axis for axis in range(rank) if axis != int(call.attrs.axis) % rank]
    order = [*axes, int(call.attrs.axis) % rank]
    x = call.args[0] if order == sorted(order) else relax.op.permute_dims(call.args[0], order)
    sums = relax.op.cumsum(x, rank - 1, "float32" if dtype in NARROW else dtype, call.attrs.exclusive)
    sums = relax.op.astype(sums, dtype) if dtype in NARROW else sums
    return sums if order == sorted(order) else relax.op.permute_dims(sums, [order.index(axis) for axis in range(rank)])


def _with_pooling_first(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with max pooling before casts from half precision, which leave numbers in their order.

    Before: `y = R.nn.max_pool2d(R.astype(x, "float32"))`. After: `y = R.astype(R.nn.max_pool2d(x), "float32")`.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            name = (operator_name(value) or "").removeprefix("relax.")
            cast = call_of(block.values.get(value.args[0]), "astype") if name in POOLING else None
            if cast is not None and str(cast.args[0].ty.dtype) in NARROW:
                pooled = relax.Call(value.op, [cast.args[0]], value.attrs)
                values[var] = relax.op.astype(pooled, value.ty.dtype)
    return rebind(mod, values)


def _with_casts_first(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with casts before reshapes: a kernel casts what it computes, and the reshape is a view.

    Before: `y = R.astype(R.reshape(R.mean(x, axis=[1, 2]), [1, 8, 1, 1]), "float16")`.
    After: `y = R.reshape(R.astype(R.mean(x, axis=[1, 2]), "float16"), [1, 8, 1, 1])`.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            cast = call_of(value, "astype")
            reshaped = None if cast is None else call_of(block.values.get(cast.args[0]), "reshape")
            if cast is not None and reshaped is not None and block.only_reader(cast.args[0]) is not None:
                inner = relax.op.astype(reshaped.args[0], str(cast.ty.dtype))
                values[var] = relax.op.reshape(inner, cast.ty.shape)
    return rebind(mod, values)


def _in_float32(argument: relax.Expr) -> relax.Expr:
    is_half = isinstance(argument.ty, relax.TensorType) and str(argument.ty.dtype) in NARROW
    return relax.op.astype(argument, "float32") if is_half else argument


def simplify_powers(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with square roots instead of powers to 1/2 and 3/4.

    Before: `y = R.power(x, R.const(0.75))`. After: `r = R.sqrt(x)`, `s = R.multiply(x, r)`, `y = R.sqrt(s)`.
    """
    values = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if operator_name(value) != "relax.power" or (exponent := constant_value(value.args[1])) is None:
                continue
            x, root = value.args[0], relax.op.sqrt(value.args[0])
            if exponent.size != 1 or not tvm_ffi.structural_equal(value.ty, x.ty):  # it may give x more axes
                continue
            if exponent.item() == 0.5:
                values[var] = root
            elif exponent.item() == 0.75:
                values[var] = relax.op.sqrt(relax.op.multiply(x, root))
    return rebind(mod, values)
