"""Folding of expressions of constants in networks."""

from __future__ import annotations

import numpy as np
from network_graph import operators
from tvm import relax

from tvmconv.network.constants import fold_constants


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
