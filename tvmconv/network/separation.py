"""A pass that keeps TVM's convolutions apart from operators with which TVM would schedule them wrongly."""

from __future__ import annotations

import tvm
from tvm import relax

from ..lowering import OPAQUE
from .convolutions import OPERATORS
from .faults import tvm_at_work
from .graph import operator_name


def separate_convolutions(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with its convolutions as functions that TVM fuses with nothing.

    On a GPU TVM 0.27 schedules a fused grouped convolution (dlight's Reduction, where a thread owns several outputs) so
    that the operators behind it read registers of other threads: results are wrong and differ from run to run.
    Raises `Refused` for an operator that TVM cannot lower.

    Before: `y = R.nn.conv2d(x, w)`. After: `y = R.call_tir(conv2d, (x, w))`, where `conv2d` has an opaque pattern.
    """
    lowered = []

    def lower(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered.append(call.op.get_attr("FLegalize")(builder, call))
        return lowered[-1]

    with tvm_at_work():
        mod = relax.transform.LegalizeOps(dict.fromkeys(OPERATORS, lower))(mod)
    for call in lowered:
        if operator_name(call) == "relax.call_tir":
            mod[call.args[0]] = mod[call.args[0]].with_attr("op_pattern", OPAQUE)
    return mod
