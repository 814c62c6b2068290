"""Folding of expressions of constants in networks."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.shared.network_graph import operators, relax_module
from tvmconv.network.graph.constants import fold_constants

X = relax.Var("x", relax.TensorType((2, 3), "float32"))


def test_foldable_constants() -> None:
    two, rows = relax.const(np.float32(2)), relax.const(np.arange(6, dtype="float32").reshape(3, 2))

    def function(x: relax.Var) -> list[relax.Expr]:
        spread = relax.op.broadcast_to(two, (2, 3))
        turned = relax.op.multiply(relax.op.permute_dims(rows, [1, 0]), spread)
        checked = relax.op.where(relax.op.isnan(turned), spread, relax.op.sqrt(turned))
        flat = relax.op.astype(relax.op.reshape(checked, (6,)), "float16")
        return [flat, relax.op.add(x, relax.op.full((2, 3), two, "float32"))]

    folded = fold_constants(relax_module(function, X))
    constant, _ = folded["main"].body.blocks[0].bindings[-1].value
    np.testing.assert_array_equal(constant.value.numpy(), np.sqrt([0, 4, 8, 2, 6, 10]).astype("float16"))
    assert operators(folded) == ["relax.add"]


def test_what_constants_choose() -> None:
    """A choice that is the same everywhere is its operand, and a broadcast to the same shape too; others stay."""
    yes, no, some = (relax.const(np.array(row)) for row in ([True] * 3, [False] * 3, [True, False, True]))

    def function(x: relax.Var, y: relax.Var) -> list[relax.Expr]:
        first = relax.op.broadcast_to(relax.op.where(yes, x, y), (2, 3))
        return [relax.op.where(no, y, first), *(relax.op.where(each, y, x) for each in (yes, some))]

    folded = fold_constants(relax_module(function, X, relax.Var("y", relax.TensorType((3,), "float32"))))
    assert operators(folded) == ["relax.where"] * 2
    assert folded["main"].body.blocks[0].bindings[-1].value.fields[0].same_as(folded["main"].params[0])


def test_masks_are_constants() -> None:
    """Those that torch makes of comparisons, as causal attention has them."""
    below = relax.op.less_equal(relax.const(np.arange(-1, 3, dtype="int64")), relax.const(1, "int64"))
    both = relax.op.logical_and(below, relax.const(np.array([True, False, True, True])))
    folded = fold_constants(relax_module(lambda: relax.op.where(both, relax.const(0.0), relax.const(-np.inf))))
    constant = folded["main"].body.blocks[0].bindings[-1].value
    np.testing.assert_array_equal(constant.value.numpy(), [0, -np.inf, 0, -np.inf])
    assert not operators(folded)
