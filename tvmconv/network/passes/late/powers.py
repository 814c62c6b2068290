"""Powers computed by square roots: those of local response normalization, x to the three quarters.

TVM calls the C library's pow for each element, which takes ten times as long as the rest of such a layer.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax

from ...graph.constants import constant_value
from ...graph.graph import blocks_of, operator_name, rebind


def simplify_powers(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with square roots in place of powers to 1/2 and 3/4.

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
