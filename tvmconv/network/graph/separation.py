"""Operators that are kept apart from others, with which TVM would compute them wrongly."""

from __future__ import annotations

from tvm import relax, tirx

from tvmconv.lowering import OPAQUE

from .convolutions import OPERATORS
from .graph import operator_name


def kept_apart(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return an operator lowered to a function that TVM fuses with nothing, for `LegalizeOps`.

    Before: `y = R.nn.conv2d(x, w)`. After: `y = R.call_tir(conv2d, (x, w))`, where `conv2d` has an opaque pattern.
    """
    lowered = call.op.get_attr("FLegalize")(builder, call)
    if operator_name(lowered) != "relax.call_tir":
        return lowered
    function, *others = lowered.args
    # A function of its own: the builder would not find one that is changed again for an equal operator.
    apart = builder.add_func(builder.get()[function].with_attr("op_pattern", OPAQUE), function.name_hint)
    return relax.Call(lowered.op, [apart, *others], lowered.attrs, lowered.ty_args)


def _slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a slice lowered, and kept apart if it goes backwards along an axis."""
    steps = call.args[4].fields if len(call.args) > 4 else ()
    is_reversed = any(isinstance(step, tirx.IntImm) and int(step) < 0 for step in steps)
    return kept_apart(builder, call) if is_reversed else call.op.get_attr("FLegalize")(builder, call)


REVERSING = {"relax.flip": kept_apart, "relax.strided_slice": _slice}
"""The functions that lower operators which may reverse axes, by name, for `LegalizeOps`.

Indices that fall, of an axis that is divided, as behind a reshape, TVM simplifies to others (in FlattenBuffer).
"""


SEPARATED = {**dict.fromkeys(OPERATORS, kept_apart), **REVERSING}
"""The functions that lower operators which a GPU computes apart from others, by name, for `LegalizeOps`.

TVM 0.27 schedules a fused grouped convolution (dlight's Reduction, where a thread owns several outputs) so that the
operators behind it read registers of other threads: results are wrong and differ from run to run.
"""
