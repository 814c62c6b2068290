"""Folding of expressions of constants in networks."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.shared.network_graph import operators
from tvmconv.network.graph.constants import fold_constants


def test_foldable_constants() -> None:
    builder = relax.BlockBuilder()
    x, two = relax.Var("x", relax.TensorType((2, 3), "float32")), relax.const(np.float32(2))
    rows = relax.const(np.arange(6, dtype="float32").reshape(3, 2))
    with builder.function("main", [x]):
        with builder.dataflow():
            spread = builder.emit(relax.op.broadcast_to(two, (2, 3)))
            turned = builder.emit(relax.op.multiply(relax.op.permute_dims(rows, [1, 0]), spread))
            checked = builder.emit(relax.op.where(relax.op.isnan(turned), spread, relax.op.sqrt(turned)))
            flat = builder.emit(relax.op.astype(relax.op.reshape(checked, (6,)), "float16"))
            kept = builder.emit(relax.op.add(x, relax.op.full((2, 3), two, "float32")))
            outputs = builder.emit_output(relax.Tuple([flat, kept]))
        builder.emit_func_output(outputs)
    folded = fold_constants(builder.get())
    constant, _ = folded["main"].body.blocks[0].bindings[-1].value
    np.testing.assert_array_equal(constant.value.numpy(), np.sqrt([0, 4, 8, 2, 6, 10]).astype("float16"))
    assert operators(folded) == ["relax.add"]


def test_what_constants_choose() -> None:
    """A choice that is the same everywhere is its operand, and a broadcast to the same shape too; others stay."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (2, 3)), ("y", (3,))))
    yes, no, some = (relax.const(np.array(row)) for row in ([True] * 3, [False] * 3, [True, False, True]))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            first = builder.emit(relax.op.broadcast_to(relax.op.where(yes, x, y), (2, 3)))
            second = builder.emit(relax.op.where(no, y, first))
            smaller, either = (builder.emit(relax.op.where(each, y, x)) for each in (yes, some))
            outputs = builder.emit_output(relax.Tuple([second, smaller, either]))
        builder.emit_func_output(outputs)
    folded = fold_constants(builder.get())
    assert operators(folded) == ["relax.where"] * 2
    assert folded["main"].body.blocks[0].bindings[-1].value.fields[0].same_as(folded["main"].params[0])


def test_masks_are_constants() -> None:
    """Those that torch makes of comparisons, as causal attention has them."""
    builder = relax.BlockBuilder()
    places = relax.const(np.arange(-1, 3, dtype="int64"))
    with builder.function("main", []):
        with builder.dataflow():
            below = builder.emit(relax.op.less_equal(places, relax.const(1, "int64")))
            both = builder.emit(relax.op.logical_and(below, relax.const(np.array([True, False, True, True]))))
            mask = builder.emit_output(relax.op.where(both, relax.const(0.0), relax.const(-np.inf)))
        builder.emit_func_output(mask)
    folded = fold_constants(builder.get())
    constant = folded["main"].body.blocks[0].bindings[-1].value
    np.testing.assert_array_equal(constant.value.numpy(), [0, -np.inf, 0, -np.inf])
    assert not operators(folded)
