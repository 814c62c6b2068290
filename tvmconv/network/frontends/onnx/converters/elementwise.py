"""Converters of elementwise operators, where Relax's importer has another dtype, another range, or loses digits."""

from __future__ import annotations

from functools import reduce

import numpy as np
from tvm import relax

from tvmconv.network.graph.faults import Refused

from ..node import Node


def _like(x: relax.Expr, value: float) -> relax.Expr:
    """Return a number as a constant in the dtype of x."""
    return relax.const(value, x.ty.dtype)


def _is_float(x: relax.Expr) -> bool:
    return "float" in str(x.ty.dtype)


def add_up(node: Node) -> relax.Expr:
    """Convert Sum, pair by pair, so that kernels can take it in; Relax's importer would stack all operands."""
    return reduce(lambda x, y: node.builder.normalize(relax.op.add(x, y)), node.operands)


def prelu(node: Node) -> relax.Expr:
    """Convert PRelu with slopes in any shape that broadcasts to x; one for each channel before opset 7."""
    x, slope = node.operands[:2]
    if node.opset < 7 and slope.ty.ndim == 1 and x.ty.ndim > 1:
        slope = node.emit(relax.op.reshape(slope, [-1] + [1] * (x.ty.ndim - 2)))
    return relax.op.where(relax.op.less(x, _like(x, 0)), relax.op.multiply(x, slope), x)


def elu(node: Node) -> relax.Expr:
    """Convert Elu: alpha * (exp(x) - 1) where x is negative, and x elsewhere."""
    return _elu(node, node.attributes.get("alpha", 1.0), 1.0)


def selu(node: Node) -> relax.Expr:
    """Convert Selu: Elu times gamma."""
    alpha = node.attributes.get("alpha", 1.67326319217681884765625)
    return _elu(node, alpha, node.attributes.get("gamma", 1.05070102214813232421875))


def _elu(node: Node, alpha: float, gamma: float) -> relax.Expr:
    x = node.operands[0]
    # exp is large where it is not taken, so it gets nothing that is.
    curve = relax.op.subtract(relax.op.exp(relax.op.minimum(x, _like(x, 0))), _like(x, 1))
    y = relax.op.where(relax.op.less(x, _like(x, 0)), relax.op.multiply(_like(x, alpha), curve), x)
    return y if gamma == 1 else relax.op.multiply(_like(x, gamma), y)


def thresholded_relu(node: Node) -> relax.Expr:
    """Convert ThresholdedRelu: x where it is larger than alpha, and 0 elsewhere."""
    x = node.operands[0]
    alpha = _like(x, node.attributes.get("alpha", 1.0))
    return relax.op.where(relax.op.greater(x, alpha), x, _like(x, 0))


def mish(node: Node) -> relax.Expr:
    """Convert Mish, x * tanh(log(1 + exp(x))), as x * n / (n + 2) with n = exp(x) * (exp(x) + 2): no digit is lost."""
    x = node.operands[0]
    e = node.emit(relax.op.exp(relax.op.minimum(x, _like(x, 5 if str(x.ty.dtype) == "float16" else 20))))
    n = node.emit(relax.op.multiply(e, relax.op.add(e, _like(x, 2))))
    return relax.op.multiply(x, relax.op.divide(n, relax.op.add(n, _like(x, 2))))


def softplus(node: Node) -> relax.Expr:
    """Convert Softplus, log(1 + exp(x)), without losing digits where exp(x) is small."""
    x = node.operands[0]
    e = node.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
    one = _like(x, 1)
    u = node.emit(relax.op.add(one, e))
    # What u has lost of e, the quotient makes up for.
    logarithm = relax.op.divide(relax.op.multiply(relax.op.log(u), e), relax.op.subtract(u, one))
    return relax.op.add(relax.op.maximum(x, _like(x, 0)), relax.op.where(relax.op.equal(u, one), e, logarithm))


def sign(node: Node) -> relax.Expr:
    """Convert Sign; the sign of NaN is NaN."""
    x = node.operands[0]
    y = relax.op.sign(x)
    return relax.op.where(relax.op.isnan(x), x, y) if _is_float(x) else y


def is_inf(node: Node) -> relax.Expr:
    """Convert IsInf, for either sign or for one."""
    x, found = node.operands[0], []
    for attribute, sign in (("detect_negative", -np.inf), ("detect_positive", np.inf)):
        if node.attributes.get(attribute, 1):
            found.append(relax.op.equal(x, _like(x, sign)))
    return reduce(relax.op.logical_or, found) if found else relax.op.zeros(x.ty.shape, "bool")


def power(node: Node) -> relax.Expr:
    """Convert Pow, in the dtype of its base; TVM has no powers of integers."""
    base, exponent = node.operands[:2]
    if _is_float(base):
        return relax.op.power(base, node.builder.cast(exponent, str(base.ty.dtype)))
    powers = node.emit(relax.op.power(*(node.builder.cast(each, "float64") for each in (base, exponent))))
    return relax.op.astype(powers, base.ty.dtype)


def modulo(node: Node) -> relax.Expr:
    """Convert Mod, with the sign of the divisor, or of the dividend where fmod is set."""
    x, y = node.operands[:2]
    if node.attributes.get("fmod", 0):
        return relax.op.mod(x, y)
    if not _is_float(x):
        return relax.op.floor_mod(x, y)
    rest = node.emit(relax.op.mod(x, y))
    zero = _like(x, 0)
    # Booleans have no not_equal.
    differs = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(y, zero))
    wrong = relax.op.logical_and(relax.op.not_equal(rest, zero), differs)
    return relax.op.where(wrong, relax.op.add(rest, y), rest)


def bit_shift(node: Node) -> relax.Expr:
    """Convert BitShift; a shift by all bits of a number or more leaves nothing of it."""
    x, y = node.operands[:2]
    bits = np.dtype(str(x.ty.dtype)).itemsize * 8
    shifts_left = node.text("direction", "LEFT") == "LEFT"
    shifted = (relax.op.left_shift if shifts_left else relax.op.right_shift)(x, y)
    beyond = relax.op.greater_equal(y, _like(y, bits))
    rest = _like(x, 0)
    if str(x.ty.dtype).startswith("int"):
        beyond = relax.op.logical_or(beyond, relax.op.less(y, _like(y, 0)))
        if not shifts_left:
            rest = relax.op.where(relax.op.less(x, _like(x, 0)), _like(x, -1), _like(x, 0))
    return relax.op.where(beyond, rest, shifted)


def dropout(node: Node) -> relax.Expr:
    """Convert Dropout in eval mode, and its mask, which then keeps every element."""
    x = node.operands[0]
    training = node.constant(2, "training_mode")
    if training is not None and training.any():
        raise Refused("it is in training mode", "export the model in eval mode")
    if node.outputs == 1:
        return x
    return relax.Tuple([x, node.emit(relax.op.ones(x.ty.shape, "bool"))])
