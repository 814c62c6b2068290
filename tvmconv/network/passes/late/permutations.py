"""Permutations of axes whose slices are read one by one, as those of queries, keys and values in attention."""

from __future__ import annotations

import tvm
from tvm import relax

from tvmconv.compute.substitution import substitute

from ...graph.graph import blocks_of, calls, rebind


def permute_parts(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with permutations computed anew for each slice that is read, where nothing else is.

    TVM fuses a permutation with its reader if there is one: then each slice is read where it is.

    Before: `p = R.permute_dims(x, [2, 0, 1, 3])`, `q = R.strided_slice(p, [0], [0], [1])`,
    `k = R.strided_slice(p, [0], [1], [2])`.
    After: `q = R.strided_slice(R.permute_dims(x, [2, 0, 1, 3]), [0], [0], [1])`, and k in the same way.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            readers = block.readers(var)
            if not calls(value, "permute_dims") or len(readers) < 2 or not block.is_inner(var):
                continue
            if all(calls(block.values[reader], "strided_slice") for reader in readers):
                for reader in readers:  # which get a call each: one call would be bound to one variable
                    own = relax.Call(value.op, value.args, value.attrs)
                    values[reader] = substitute(block.values[reader], {var: own})
    return rebind(mod, values)
