"""Parts of tensors, as the queries, keys and values of attention are."""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.constants import constant_value, sizes_of
from ...graph.graph import blocks_of, call_of, rebind


def slice_parts(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with slices instead of `take` of one index of an axis, which reads the index from a table.

    Before: `y = R.take(x, 2, axis=1)`. After: `y = R.squeeze(R.strided_slice(x, [1], [2], [3]), axis=[1])`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if (take := call_of(value, "take")) is None or take.attrs.axis is None:
                continue
            place, sizes = constant_value(take.args[1]), sizes_of(take.args[0].ty)
            if place is None or place.ndim or sizes is None:
                continue
            axis = int(take.attrs.axis) % len(sizes)
            if isinstance(size := sizes[axis], int) and 0 <= (begin := int(place)) < size:
                part = relax.op.strided_slice(take.args[0], [axis], [begin], [begin + 1], [1])
                values[var] = relax.op.squeeze(part, [axis])
    return rebind(mod, values)
