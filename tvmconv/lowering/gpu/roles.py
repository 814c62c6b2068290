"""Kernels whose warps have roles, as `specialization` makes them: the pass after TVM has inserted barriers."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmconv.compute.annotations import ROLE
from tvmconv.targets.device_code import function, included

from .device_code import called

ROLES = included("lowering/gpu/roles.cuh")
"""The source of the functions of blocks whose warps have roles."""


def with_roles_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of kernels in which roles are the branches of a test, and barriers are those of a team.

    Before: `for own in range(thread >= 256): copies` and `for own in range(thread < 256): products; barrier()`.
    After: `if thread >= 256: copies` and `else: products; team_barrier()`. Only in the branches of a test does `ptxas`
    rely on the registers that the warps of a role have taken; else, where an asynchronous product has a factor in
    registers, it waits for each instruction.
    """
    return tvm.IRModule({name: _with_roles_apart(func) for name, func in mod.functions.items()}, attrs=mod.attrs)


def _with_roles_apart(func: tirx.PrimFunc) -> tirx.PrimFunc:
    threads: list[Any] = []

    def note(call: tvm.ir.Call) -> None:
        if called(call) == function("begin"):
            threads.append(call.args[4])

    def barrier(call: tvm.ir.Call) -> tvm.ir.Call:
        if not str(getattr(call.op, "name", "")).endswith("tvm_storage_sync"):
            return call
        return cuda_func_call(function("team_barrier"), threads[0], source_code=ROLES)

    def tested(steps: tirx.SeqStmt) -> tirx.Stmt:
        roles = [at for at, step in enumerate(steps.seq) if isinstance(step, tirx.For) and ROLE in step.annotations]
        if not roles:
            return steps
        (first, second), seq = roles, list(steps.seq)
        test = tirx.IfThenElse(seq[first].extent > 0, seq[first].body, seq[second].body)
        return tirx.SeqStmt([*seq[:first], test, *seq[second + 1 :]])

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, note)])
    if not threads:
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, [(tvm.ir.Call, barrier), (tirx.SeqStmt, tested)]))
