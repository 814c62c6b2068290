"""Binding of constants to a skeleton: each becomes an immediate operand, and a zero in the weight leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvmconv.compute.annotations import SHARES
from tvmconv.compute.substitution import substitute
from tvmconv.problem.constants import Constants, require_finite
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload

from .skeleton import Skeleton, declares, first_lane, is_thread
from .steps import Always, Loop, PerOutput, Products, Staging, Step

Choices = Sequence[Sequence[Sequence[int]]]
"""Lists of blocks of output channels: a thread runs the blocks of one list in order."""

PRODUCTS_OF_A_LAUNCH = 32768
"""The number of multiply-adds up to which blocks share a launch; compilers would take unduly long over more.

Over this number they take a sixth longer than over two halves of it.
"""

STACK_BYTES = 1024
"""The bytes of the largest buffer that TVM keeps on the stack; it allocates larger ones until their last use."""


def bind(skeleton: Skeleton, constants: Constants, blocks: Sequence[Sequence[int]]) -> tirx.PrimFunc:
    """Return the skeleton's function with constants, the result of `expanded`, in it instead of as parameters.

    Each of `blocks`, lists of output channels, has separate code; on a GPU blocks are numbered by blockIdx.y, and a
    kernel takes as many of them as have `PRODUCTS_OF_A_LAUNCH` together: one launch then follows the other.
    """
    names = (*constants, skeleton.sums.name)
    outlined = _can_outline(skeleton)

    def body(block: Sequence[int]) -> tirx.Stmt:
        stmt = tirx.stmt_seq(*_body(skeleton, skeleton.steps, constants, block))
        # A separate function in the tasks of a CPU, since LLVM takes longer over one large function than over many.
        return tirx.AttrStmt(0, "compute_scope", tvm.ir.StringImm("block"), stmt) if outlined else stmt

    def thread(choices: Choices, number: tirx.PrimExpr) -> tirx.Stmt:
        bodies = [tirx.stmt_seq(*map(body, choice)) for choice in choices]
        return tirx.stmt_seq(*skeleton.common, _choose(number, bodies))

    def bound(root: tirx.Stmt, chosen: Choices, number: tirx.PrimExpr) -> tirx.Stmt:
        def sequence(stmt: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
            if is_thread(stmt):
                return thread(chosen, number)
            return tirx.stmt_seq(*(mutator.mutate(part) for part in stmt.seq if not declares(part, names)))

        def launch(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
            if not _is_launch(stmt):
                return mutator.default_mutate(stmt)
            return tirx.stmt_seq(*(one_launch(stmt, group) for group in groups))

        def loop(stmt: tirx.For, mutator: Any) -> tirx.Stmt:
            return shared(stmt) if SHARES in stmt.annotations else mutator.default_mutate(stmt)

        return tvm_ffi.structural_mutate(root, [(tirx.SeqStmt, sequence), (tirx.AttrStmt, launch), (tirx.For, loop)])

    def shared(stmt: tirx.For) -> tirx.Stmt:
        task, shares = tirx.Var("task", "int32"), min(int(stmt.annotations[SHARES]), len(blocks))
        body = bound(stmt.body, [blocks[share::shares] for share in range(shares)], task % shares)
        body = substitute(body, {stmt.loop_var: task // shares})
        return tirx.For(task, 0, stmt.extent * shares, stmt.kind, body)

    def one_launch(stmt: tirx.AttrStmt, group: Sequence[Sequence[int]]) -> tirx.Stmt:
        number = tirx.Var("block", "int32")
        axis = tirx.IterVar((0, len(group)), number, tirx.IterVar.ThreadIndex, "blockIdx.y")
        body = bound(stmt.body, [[block] for block in group], number)
        inner = tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
        return tirx.AttrStmt(axis, "thread_extent", tirx.IntImm("int32", len(group)), inner)

    groups = _launches(blocks, np.count_nonzero(constants["w"], axis=(1, 2, 3)) * skeleton.pixels)
    func = skeleton.func
    root = bound(func.body, [blocks], tirx.Var("block", "int32"))
    params = [param for param in func.params if param.name not in constants]
    return tirx.PrimFunc(params, root, func.ret_type, attrs=func.attrs)


def _can_outline(skeleton: Skeleton) -> bool:
    """Return whether the code of each block can be a separate function.

    LLVM refuses TVM's debug information for statements after such a function, except releases of memory in the
    iterations of a parallel loop; and TVM makes no loop of a single iteration.
    """
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(skeleton.func.body, (tirx.For, loops.append))
    parallel = (loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL)
    turns = [loop.extent * int(loop.annotations.get(SHARES, 1)) for loop in parallel]
    tasks = any(not isinstance(count, tirx.IntImm) or int(count) > 1 for count in turns)
    return tasks and any(_nbytes(buffer) > STACK_BYTES for buffer in _private(skeleton))


def _nbytes(buffer: tirx.Buffer) -> int:
    return np.dtype(str(buffer.dtype)).itemsize * int(buffer.shape[0])


def _private(skeleton: Skeleton) -> list[tirx.Buffer]:
    """Return the buffers in which a task stages its input and keeps its sums."""
    return [stmt.buffer for stmt in skeleton.common if isinstance(stmt, tirx.AllocBuffer)]


def _is_launch(stmt: tirx.AttrStmt) -> bool:
    return bool(stmt.attr_key == "thread_extent" and stmt.node.thread_tag == "blockIdx.x")


def _launches(blocks: Sequence[Sequence[int]], products: np.ndarray) -> list[list[Sequence[int]]]:
    """Return the blocks grouped by launch; `products` is the number of multiply-adds of each output channel."""
    launches: list[list[Sequence[int]]] = []
    room = 0
    for block in blocks:
        size = int(products[list(block)].sum())
        if size > room or not launches:
            launches.append([])
            room = PRODUCTS_OF_A_LAUNCH
        launches[-1].append(block)
        room -= size
    return launches


def expanded(workload: ConvWorkload, constants: Constants) -> Constants:
    """Return the constants with the weight as (K, C, R, S) in float32, with zeros for the channels of other groups.

    A weight with NaN or infinity is refused: its products are NaN or infinite for any input, padding included, which a
    kernel that leaves out zeros would not reproduce.
    """
    weight = constants["w"]
    if weight.shape != workload.w_shape:
        raise InvalidArgumentError("weight", weight.shape, f"the shape {workload.w_shape} of {workload}")
    require_finite("weight", weight)
    grouped = np.asarray(weight, np.float32).reshape(workload.groups, workload.multiplier, -1, *workload.kernel)
    dense = np.zeros((workload.groups, workload.multiplier, workload.groups, *grouped.shape[2:]), np.float32)
    every = np.arange(workload.groups)
    dense[every, :, every] = grouped
    return {**constants, "w": dense.reshape(workload.out_channels, workload.in_channels, *workload.kernel)}


def _choose(number: tirx.Var, bodies: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Return a statement that runs the body whose index is `number`."""
    chosen = bodies[-1]
    for index in reversed(range(len(bodies) - 1)):
        chosen = tirx.IfThenElse(number == index, bodies[index], chosen)
    return chosen


def _body(skeleton: Skeleton, steps: Sequence[Step], constants: Constants, block: Sequence[int]) -> Iterator[tirx.Stmt]:
    """Yield the statements of the steps for a block of output channels.

    A sum is a new variable after each product, not an array element: compilers take a tenth of the time over it.
    """
    filters = constants["w"][list(block)]
    read = set(np.flatnonzero(filters.any(axis=(0, 2, 3))).tolist())
    rows = filters.reshape(len(block), -1)
    nonzero = rows != 0
    sums: dict[int, tirx.PrimExpr] = {}
    private = _private(skeleton)
    analyzer = Analyzer()
    number = count()  # in the names of variables: TVM would take long to tell apart thousands of one name

    def known(load: TensorLoad) -> tirx.PrimExpr:
        if load.source.same_as(skeleton.sums):
            return sums.get(index_of(load), _constant(0.0, load))
        if load.source.name in constants:
            return _constant(float(constants[load.source.name][index_of(load)]), load)
        return load

    def index_of(load: TensorLoad) -> int:
        return int(analyzer.simplify(first_lane(load.indices[0])))

    for step in steps:
        match step:
            case Always(stmt):
                yield stmt
            case Staging(channel, stmt):
                if channel in read:
                    yield stmt
            case Products(weight_index):
                chosen = np.flatnonzero(nonzero[:, weight_index])
                if chosen.size:
                    element = tirx.Var(f"x{next(number)}", step.element.ty)
                    yield tirx.Bind(element, step.element)
                for row, weight in zip(chosen.tolist(), rows[chosen, weight_index].tolist(), strict=True):
                    index = step.first + block[row] * step.step
                    total = tirx.Var(f"y{next(number)}", element.ty)
                    product = tirx.Mul(element, _constant(weight, element))
                    yield tirx.Bind(total, tirx.Add(sums[index], product) if index in sums else product)
                    sums[index] = total
            case PerOutput():
                for position, k in enumerate(block):
                    stmt = _with_fresh_variables(_at_block_position(step, position, private))
                    yield tvm_ffi.structural_map(substitute(stmt, {step.k: k}), (TensorLoad, known))
            case Loop(loop, inner):
                repeated = tirx.stmt_seq(*_body(skeleton, inner, constants, block))
                yield tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, repeated)


def _at_block_position(step: PerOutput, position: int, private: Sequence[tirx.Buffer]) -> tirx.Stmt:
    """Return the statement with accesses to private buffers at the channel's index in its block, not at its number.

    So these buffers are no larger than a block, and stay in a near cache.
    """

    def load(expr: TensorLoad) -> TensorLoad:
        return substitute(expr, {step.k: position}) if expr.source in private else expr

    def store(stmt: tirx.BufferStore) -> tirx.Stmt:
        if stmt.buffer not in private:
            return stmt
        return tirx.BufferStore(
            stmt.buffer, stmt.value, [substitute(each, {step.k: position}) for each in stmt.indices]
        )

    return tvm_ffi.structural_map(step.stmt, [(TensorLoad, load), (tirx.BufferStore, store)])


def _with_fresh_variables(stmt: tirx.Stmt) -> tirx.Stmt:
    """Return the statement with new variables for its activation: TVM refuses two definitions of one variable."""
    bound: list[tirx.Let] = []
    tvm_ffi.structural_walk(stmt, (tirx.Let, bound.append))
    fresh = {let.var: tirx.Var(let.var.name, let.var.ty) for let in bound}
    return substitute(stmt, fresh) if fresh else stmt


def _constant(value: float, like: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return a number, repeated for each lane of the expression `like`."""
    number, lanes = tirx.FloatImm("float32", value), tvm_ffi.dtype(like.ty.dtype).lanes
    return tirx.Broadcast(number, lanes) if lanes > 1 else number


def output_blocks(weight: np.ndarray, channels: int) -> list[list[int]]:
    """Return the output channels of a weight (K, C, R, S) in blocks of at most `channels`, each ascending.

    Blocks have about as many weights each: a channel goes to the one with the fewest so far, largest channels first,
    and among equals to the one that reads most of its input elements already. Where one block has room for all, or
    where they come out no better, channels stay with their neighbours, which are stored side by side.
    """
    nonzero = weight.reshape(len(weight), -1) != 0
    sizes = nonzero.sum(axis=1)
    count = -(-len(weight) // channels)
    neighbours = [list(range(first, min(first + channels, len(weight)))) for first in range(0, len(weight), channels)]
    blocks: list[list[int]] = [[] for _ in range(count)]
    loads, reads = np.zeros(count, int), np.zeros((count, nonzero.shape[1]), bool)
    for k in np.argsort(-sizes, kind="stable").tolist():
        room = [number for number in range(count) if len(blocks[number]) < channels]
        best = min(room, key=lambda number: (loads[number], -int((reads[number] & nonzero[k]).sum())))
        blocks[best].append(k)
        loads[best] += sizes[k]
        reads[best] |= nonzero[k]
    balanced = [sorted(block) for block in blocks]
    return min(neighbours, balanced, key=lambda each: max(int(sizes[block].sum()) for block in each))
