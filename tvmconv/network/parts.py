"""Permutations of axes of which parts are read, as the queries, keys and values of attention are."""

from __future__ import annotations

import tvm
from tvm import relax

from ..substitution import substitute
from .graph import blocks_of, calls, rebind

CHOOSING = ("strided_slice", "take")
"""Operators that read a part of a tensor."""


def permute_parts(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with permutations computed anew for each part that is read, and for no other.

    TVM fuses a permutation with its reader if there is one: then each part is read where it is.

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
            if all(calls(block.values[reader], *CHOOSING) for reader in readers):
                for reader in readers:  # which get a call each: one call would be bound to one variable
                    own = relax.Call(value.op, value.args, value.attrs)
                    values[reader] = substitute(block.values[reader], {var: own})
    return rebind(mod, values)
