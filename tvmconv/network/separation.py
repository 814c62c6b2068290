"""A pass that keeps operators apart from others with which TVM would compute them wrongly."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from ..lowering import OPAQUE
from .convolutions import OPERATORS
from .faults import tvm_at_work
from .graph import operator_name
from .norms import CPU_LOWERINGS

REVERSING = ("relax.flip", "relax.strided_slice")
"""Operators that may reverse axes."""


def separate_operators(mod: tvm.IRModule, on_gpu: bool) -> tvm.IRModule:
    """Return the module with what reverses axes, and for a GPU convolutions, as functions that TVM fuses with nothing.

    On a GPU TVM 0.27 schedules a fused grouped convolution (dlight's Reduction, where a thread owns several outputs) so
    that the operators behind it read registers of other threads: results are wrong and differ from run to run. Indices
    that fall, of an axis that is divided, as behind a reshape, TVM simplifies to others (in FlattenBuffer).
    Raises `Refused` for an operator that TVM cannot lower.

    Before: `y = R.nn.conv2d(x, w)`. After: `y = R.call_tir(conv2d, (x, w))`, where `conv2d` has an opaque pattern.
    """
    lowered = []

    def lower(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        result = call.op.get_attr("FLegalize")(builder, call)
        if operator_name(call) != "relax.strided_slice" or _is_reversed(call):
            lowered.append(result)
        return result

    with tvm_at_work():
        # LegalizeOps lowers all other operators as well.
        others = {} if on_gpu else CPU_LOWERINGS
        names = (*OPERATORS, *REVERSING) if on_gpu else REVERSING
        mod = relax.transform.LegalizeOps({**others, **dict.fromkeys(names, lower)})(mod)
    for call in lowered:
        if operator_name(call) == "relax.call_tir":
            mod[call.args[0]] = mod[call.args[0]].with_attr("op_pattern", OPAQUE)
    return mod


def _is_reversed(cut: relax.Call) -> bool:
    """Return whether a slice goes backwards along an axis."""
    steps = cut.args[4].fields if len(cut.args) > 4 else ()
    return any(isinstance(step, tirx.IntImm) and int(step) < 0 for step in steps)
