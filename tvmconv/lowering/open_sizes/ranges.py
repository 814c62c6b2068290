"""Functions for ranges of open sizes, joined to one that runs the function for the sizes of its call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.annotations import MAX_COLUMNS
from tvmconv.compute.open_sizes import COLUMNS, VARIABLES
from tvmconv.compute.substitution import factors, substitute
from tvmconv.targets import backend_of

from ..signatures import itemsize
from ..workspace import SYMBOLS, Spec, Workspace

MAX_BLOCKS = 2**16 - 1
"""The largest number of blocks of a grid along its second and its third axis (CUDA C++ programming guide)."""

MAX_BYTES = 2**31 - 1
"""The largest number of bytes of an array: TVM counts elements in 32 bits, and bytes where it copies asynchronously."""


class RangeFunction(NamedTuple):
    """The function for a range of sizes, its workspace taken out, and the least product of open sizes in the range."""

    least: int
    func: tirx.PrimFunc
    workspace: Workspace


def join(functions: Sequence[RangeFunction], weight_counts: Sequence[int] = ()) -> tuple[tirx.PrimFunc, Workspace]:
    """Return one function, and its workspace, for functions with equal operands; only their weights may differ.

    Ranges are of the product of the output's open sizes: the batch, or the pixels of all images. `weight_counts` has
    for each function the number of arrays that are its weight, and all of them are parameters; without it functions
    share one weight. Functions share arrays of their workspaces, and an array that grows with the product is no larger
    than for the largest product of the functions that use it.

    Before: `def kernel(x, w, output): A` and, for batches from 8 on, `def kernel(x, w, output, sums): B`.
    After: `def kernel(x, w, output, sums): for _ in range(batch < 8): A; for _ in range(8 <= batch): B`. The loops are
    of one turn or none: TVM puts no barriers into kernels that stand behind a condition.
    """
    if len(functions) == 1:
        return functions[0].func, functions[0].workspace
    first = functions[0].func
    counts = weight_counts or [1] * len(functions)
    weights, others = [], []
    for function, count in zip(functions, counts, strict=True):
        x, *params = function.func.params
        weights.append(params[:count])
        others.append([x, *params[count : len(params) - len(function.workspace.parameters)]])
    opened = [size for size in others[0][-1].ty.shape if isinstance(size, tvm.ir.Var)]
    ends = [*(function.least for function in functions[1:]), None]
    ends_by_array = {
        each: end for function, end in zip(functions, ends, strict=True) for each in _numbered_arrays(function)
    }
    workspace = Workspace.passed(_limited_array(end, spec, opened) for (spec, _), end in ends_by_array.items())
    sized = zip(ends_by_array, workspace.with_sizes(SYMBOLS), strict=True)
    memory = {each: tirx.decl_buffer(*spec, f"workspace_{number}") for number, (each, spec) in enumerate(sized)}
    steps = []
    for function, weight, other, end in zip(functions, weights, others, ends, strict=True):
        shared = dict(zip(other, others[0], strict=True))
        if not weight_counts:
            shared.update(zip(weight, weights[0], strict=True))
        arrays = function.func.params[len(weight) + len(other) :]
        shared.update(zip(arrays, map(memory.__getitem__, _numbered_arrays(function)), strict=True))
        steps.append(_in_range(substitute(function.func.body, shared), prod(opened), function.least, end))
    body = SBlockRealize([], True, SBlock([], [], [], first.body.block.name_hint, tirx.SeqStmt(steps)))
    x, *rest = others[0]
    params = [
        x,
        *(each for weight in (weights if weight_counts else weights[:1]) for each in weight),
        *rest,
        *memory.values(),
    ]
    return tirx.PrimFunc(params, body, first.ret_type, attrs=first.attrs), workspace


def _numbered_arrays(function: RangeFunction) -> list[tuple[Spec, int]]:
    """Return the arrays of a function's workspace, each with the number of equal arrays before it."""
    arrays = function.workspace.parameters
    return [(array, arrays[:index].count(array)) for index, array in enumerate(arrays)]


def _limited_array(end: int | None, array: Spec, opened: Sequence[tvm.ir.Var]) -> Spec:
    """Return an array whose sizes that grow with the product of open sizes are limited to products below `end`."""
    ((shape, dtype),) = Workspace(0, (array,)).with_sizes(SYMBOLS)
    return (shape if end is None else tuple(_least_of(size, opened, end - 1) for size in shape)), dtype


def _least_of(size: Any, opened: Sequence[tvm.ir.Var], limit: int) -> Any:
    """Return a multiple of the product of open sizes with the product limited to `limit`; other sizes as they are."""
    rest = [] if isinstance(size, int) else factors(size)
    for var in opened:
        same = [index for index, factor in enumerate(rest) if factor.same_as(var)]
        if not same:
            return size
        del rest[same[0]]
    return prod(rest) * tirx.min(prod(opened), limit)


def limited(func: tirx.PrimFunc, workspace: Workspace, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a function that refuses open sizes with too large a grid for a GPU, or with too large arrays.

    Arrays are too large where TVM could not count their bytes in 32 bits. On a CPU TVM counts the bytes of operands in
    64 bits, and callers limit their elements, so that only arrays for a row of outputs are checked, by `MAX_COLUMNS`.
    Before: `def kernel(x, w, output): A`. After: `def kernel(x, w, output): assert batch * 3136 <= 2**31 - 1; A`.
    """
    checks = _checks_of_bytes(func, workspace) if backend_of(target).limits_open_arrays else _checks_of_columns(func)
    if not checks:
        return func
    root = func.body.block
    body = SBlock([], [], [], root.name_hint, tirx.stmt_seq(*checks, root.body), alloc_buffers=root.alloc_buffers)
    return func.with_body(SBlockRealize([], True, body))


def _checks_of_bytes(func: tirx.PrimFunc, workspace: Workspace) -> list[tirx.AssertStmt]:
    operands = func.params[: len(func.params) - len(workspace.parameters)]
    arrays = [(operand.ty.shape, operand.ty.dtype) for operand in operands]
    fits = [_fits(*array) for array in (*arrays, *workspace.with_sizes(SYMBOLS))]
    names = [name for name, var in VARIABLES.items() if any(var in undefined_vars(fit) for fit in fits)]
    if not names:
        return []
    checks = [
        _check(tirx.all(*fits), f"{', '.join(names)}: too large, an array of this call has over {MAX_BYTES} bytes")
    ]
    if grids := _open_grids(func):
        fits = [extent <= MAX_BLOCKS for extent in grids]
        checks.append(_check(tirx.all(*fits), f"height or width: too large, a grid has over {MAX_BLOCKS} tiles"))
    return checks


def _checks_of_columns(func: tirx.PrimFunc) -> list[tirx.AssertStmt]:
    limit = func.attrs.get(MAX_COLUMNS)
    return [] if limit is None else [_check(limit >= COLUMNS, f"width: too large, an output has over {limit} columns")]


def _check(test: tirx.PrimExpr, wrong: str) -> tirx.AssertStmt:
    # TVM's constructor has another order than its documentation.
    return tirx.AssertStmt(test, StringImm("ValueError"), [StringImm(wrong)])


def _open_grids(func: tirx.PrimFunc) -> list[tirx.PrimExpr]:
    """Return the numbers of blocks along the second and third axes of grids that are known only when they run."""
    extents = []

    def note(loop: tirx.For) -> None:
        axis = None if loop.thread_binding is None else loop.thread_binding.thread_tag
        if axis in ("blockIdx.y", "blockIdx.z") and undefined_vars(loop.extent):
            extents.append(loop.extent)

    tvm_ffi.structural_walk(func.body, [(tirx.For, note)])
    return extents


def _fits(shape: Sequence[Any], dtype: Any) -> tirx.PrimExpr:
    """Return the test that an array has no more than `MAX_BYTES`."""
    sizes = [tirx.const(size, "int64") if isinstance(size, int) else size.astype("int64") for size in shape]
    return Analyzer().simplify(prod(sizes) * itemsize(dtype) <= tirx.const(MAX_BYTES, "int64"))


def _in_range(body: tirx.Stmt, product: tirx.PrimExpr, least: int, end: int | None) -> tirx.Stmt:
    """Return a statement that runs only for products of open sizes from `least` up to below `end`, if there is one."""
    tests = [product >= least] if least > 1 else []
    tests += [] if end is None else [product < end]
    return tirx.For(tirx.Var("turn", "int32"), 0, tirx.all(*tests).astype("int32"), tirx.ForKind.SERIAL, body)
