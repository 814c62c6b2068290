"""Statements with which the threads of a row join the values that each of them has of a reduction."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.statements import ZERO, barrier, exchange, halves, loop
from tvmconv.targets.devices import WARP

from ..stages import Join
from .kernel import Kernel


def joined_along(kernel: Kernel, register: Any, join: Join) -> list[tirx.Stmt]:
    """Return the statements for threads of a row that are one after the other; all of them get the result."""
    threads = kernel.plan.threads
    steps = [exchange(register, join, distance) for distance in halves(min(threads, WARP))]
    if threads <= WARP:
        return steps
    warps = threads // WARP
    shared = kernel.registers("shared", warps * kernel.plan.rows, str(register.ty.dtype), "shared")
    begin = kernel.row * warps
    store = tirx.BufferStore(shared, register[0], [begin + tirx.floordiv(kernel.lane, WARP)])
    load = tirx.BufferStore(register, shared[begin + tirx.floormod(kernel.lane, warps)], [ZERO])
    return [
        *steps,
        tirx.IfThenElse(_is_zero(tirx.floormod(kernel.lane, WARP)), store, None),
        barrier(),
        load,
        *(exchange(register, join, distance) for distance in halves(warps)),
    ]


def joined_across(kernel: Kernel, register: Any, join: Join, init: Expr) -> list[tirx.Stmt]:
    """Return the statements for threads of a row that are as far from each other as a block has rows.

    Each has values of a vector of rows; all of them get the results.
    """
    plan, dtype, element = kernel.plan, str(register.ty.dtype), kernel.element
    together = max(1, min(WARP // plan.rows, plan.threads))
    steps = []
    for distance in halves(together):
        step = exchange(register, join, distance * plan.rows, element)
        steps.append(loop(element, plan.vector, step))
    parts = plan.threads // together
    if parts == 1:
        return steps
    width = plan.rows * plan.vector
    shared = kernel.registers("shared", width * parts, dtype, "shared")
    place = kernel.row * plan.vector + element
    store = tirx.BufferStore(shared, register[element], [tirx.floordiv(kernel.lane, together) * width + place])
    begin = tirx.BufferStore(register, init.astype(dtype), [element])
    update = tirx.BufferStore(register, join(register[element], shared[kernel.step * width + place]), [element])
    stored = loop(element, plan.vector, store)
    if together > 1:
        stored = tirx.IfThenElse(_is_zero(tirx.floormod(kernel.lane, together)), stored, None)
    return [
        *steps,
        stored,
        barrier(),
        loop(element, plan.vector, begin),
        loop(kernel.step, parts, loop(element, plan.vector, update)),
    ]


def _is_zero(value: Expr) -> Expr:
    return tirx.EQ(value, ZERO)
