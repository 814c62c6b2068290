"""Functions for ranges of an open batch, joined to one that runs the kernel for the batch of its call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.s_tir.stmt import SBlock, SBlockRealize

from ..compute.open_sizes import VARIABLES
from ..substitution import substitute
from ..targets import backend_of
from ..workspace import Array, Growth, Workspace
from .signatures import itemsize

MOST_BYTES = 2**31 - 1
"""The largest number of bytes of an array: TVM counts elements in 32 bits, and bytes where it copies asynchronously."""


class Part(NamedTuple):
    """The function for a range of batches, its workspace taken out, and the range's least batch."""

    least: int
    func: tirx.PrimFunc
    workspace: Workspace


def join(parts: Sequence[Part], own_weights: Sequence[int] = ()) -> tuple[tirx.PrimFunc, Workspace]:
    """Return one function, and the workspace, for parts whose operands are the same but for, maybe, their weights.

    Where each part has so many arrays of its own in the place of the weight, all of them are parameters. Parts share
    arrays of their workspaces, and an array is no larger than for the largest batch of the parts that use it.

    Before: `def kernel(x, w, output): A` and, for batches from 8 on, `def kernel(x, w, output, sums): B`.
    After: `def kernel(x, w, output, sums): for _ in range(batch < 8): A; for _ in range(8 <= batch): B`.
    The loops are of one turn or none: TVM puts no barriers into kernels that stand behind a condition.
    """
    if len(parts) == 1:
        return parts[0].func, parts[0].workspace
    first = parts[0].func
    counts = own_weights or [1] * len(parts)
    weights, others = [], []
    for part, count in zip(parts, counts, strict=True):
        x, *params = part.func.params
        weights.append(params[:count])
        others.append([x, *params[count : len(params) - len(part.workspace.parameters)]])
    ends = [*(part.least for part in parts[1:]), None]
    most = {each: end and end - 1 for part, end in zip(parts, ends, strict=True) for each in _told_apart(part)}
    workspace = Workspace.passed(
        (spec, growth and Growth(growth.axis, images)) for ((spec, growth), _), images in most.items()
    )
    sized = zip(most, workspace.sized(VARIABLES["batch"]), strict=True)
    memory = {each: tirx.decl_buffer(*spec, f"workspace_{place}") for place, (each, spec) in enumerate(sized)}
    steps = []
    for part, own, other, end in zip(parts, weights, others, ends, strict=True):
        shared = dict(zip(other, others[0], strict=True))
        if not own_weights:
            shared.update(zip(own, weights[0], strict=True))
        arrays = part.func.params[len(own) + len(other) :]
        shared.update(zip(arrays, map(memory.__getitem__, _told_apart(part)), strict=True))
        steps.append(_in_range(substitute(part.func.body, shared), part.least, end))
    body = SBlockRealize([], True, SBlock([], [], [], first.body.block.name_hint, tirx.SeqStmt(steps)))
    x, *rest = others[0]
    params = [x, *(each for own in (weights if own_weights else weights[:1]) for each in own), *rest, *memory.values()]
    return tirx.PrimFunc(params, body, first.ret_type, attrs=first.attrs), workspace


def _told_apart(part: Part) -> list[tuple[Array, int]]:
    """Return the arrays of a part's workspace, each with the number of those before it that are alike."""
    arrays = part.workspace.arrays
    return [(array, arrays[:place].count(array)) for place, array in enumerate(arrays)]


def limited(func: tirx.PrimFunc, workspace: Workspace, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a function, with its workspace, that refuses open batches whose arrays TVM could not count in 32 bits.

    Of a CPU's functions it is the same one: callers limit elements, and bytes are counted in 64 bits there.
    Before: `def kernel(x, w, output): A`. After: `def kernel(x, w, output): assert batch <= 1000; A`.
    """
    if not backend_of(target).on_gpu:
        return func
    operands = func.params[: len(func.params) - len(workspace.parameters)]
    of_an_image = [
        prod(map(int, operand.ty.shape[1:])) * itemsize(operand.ty.dtype)
        for operand in operands
        if not isinstance(operand.ty.shape[0], tirx.IntImm)
    ]
    for (shape, dtype), growth in workspace.arrays:
        nbytes = prod(shape) * itemsize(dtype)
        if growth and (growth.most is None or growth.most * nbytes > MOST_BYTES):
            of_an_image.append(nbytes)
    if not of_an_image:
        return func
    most = MOST_BYTES // max(of_an_image)
    kind, message = map(StringImm, ("ValueError", f"batch is too large: at most {most} images go through this kernel"))
    # TVM's constructor has another order than its documentation.
    check = tirx.AssertStmt(VARIABLES["batch"] <= most, kind, [message])
    root = func.body.block
    body = SBlock([], [], [], root.name_hint, tirx.stmt_seq(check, root.body), alloc_buffers=root.alloc_buffers)
    return func.with_body(SBlockRealize([], True, body))


def _in_range(body: tirx.Stmt, least: int, end: int | None) -> tirx.Stmt:
    """Return a statement that runs for batches from the least one up to the end, if there is one, alone."""
    batch = VARIABLES["batch"]
    inside = batch >= least if end is None else batch < end if least == 1 else tirx.all(batch >= least, batch < end)
    return tirx.For(tirx.Var("turn", "int32"), 0, inside.astype("int32"), tirx.ForKind.SERIAL, body)
