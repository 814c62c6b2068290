"""Binding a weight to a template: each non-zero becomes an immediate operand, and of a zero nothing is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..errors import InvalidArgumentError
from ..workload import ConvWorkload
from .hoisting import substitute
from .steps import Always, PerOutput, Products, Staging
from .template import Template, is_thread

PRODUCTS_OF_A_LAUNCH = 16384
"""Multiply-adds of the kernels that compilers do not take unduly long over."""


def bind(template: Template, weight: np.ndarray, blocks: Sequence[Sequence[int]]) -> tirx.PrimFunc:
    """The template's function for a weight (K, C, R, S) in float32, whose parameter it loses.

    Each of the blocks, lists of output channels, is code of its own; on a GPU they are numbered by blockIdx.y, and a
    kernel takes as many of them as have `PRODUCTS_OF_A_LAUNCH` together: one launch then follows the other.
    """
    rows, taps = weight.reshape(len(weight), -1), weight.shape[2] * weight.shape[3]
    names = ("w", template.sums.name)

    def thread(chosen: Sequence[Sequence[int]], number: tirx.Var) -> tirx.Stmt:
        bodies = [tirx.stmt_seq(*_body(template, rows, np.asarray(block), taps)) for block in chosen]
        return tirx.stmt_seq(*template.common, *([_choose(number, bodies)] if template.extents else bodies))

    def bound(root: tirx.Stmt, chosen: Sequence[Sequence[int]], number: tirx.Var) -> tirx.Stmt:
        def sequence(stmt: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
            if is_thread(stmt):
                return thread(chosen, number)
            return tirx.stmt_seq(*(mutator.mutate(part) for part in stmt.seq if not _declares(part, names)))

        def launch(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
            if not _is_launch(stmt):
                return mutator.default_mutate(stmt)
            return tirx.stmt_seq(*(one_launch(stmt, group) for group in groups))

        return tvm_ffi.structural_mutate(root, [(tirx.SeqStmt, sequence), (tirx.AttrStmt, launch)])

    def one_launch(stmt: tirx.AttrStmt, group: Sequence[Sequence[int]]) -> tirx.Stmt:
        number = tirx.Var("block", "int32")
        axis = tirx.IterVar((0, len(group)), number, tirx.IterVar.ThreadIndex, "blockIdx.y")
        body = bound(stmt.body, group, number)
        inner = tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
        return tirx.AttrStmt(axis, "thread_extent", tirx.IntImm("int32", len(group)), inner)

    groups = _launches(blocks, np.count_nonzero(rows, axis=1) * template.pixels)
    func = template.func
    body = bound(func.body, blocks, tirx.Var("block", "int32"))
    params = [param for param in func.params if param.name != "w"]
    return tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs)


def _is_launch(stmt: tirx.AttrStmt) -> bool:
    return bool(stmt.attr_key == "thread_extent" and stmt.node.thread_tag == "blockIdx.x")


def _declares(stmt: tirx.Stmt, names: Sequence[str]) -> bool:
    return isinstance(stmt, tirx.DeclBuffer | tirx.AllocBuffer) and stmt.buffer.name in names


def _launches(blocks: Sequence[Sequence[int]], products: np.ndarray) -> list[list[Sequence[int]]]:
    """The blocks by launches, given the multiply-adds of each output channel."""
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


def expanded(workload: ConvWorkload, weight: np.ndarray) -> np.ndarray:
    """The weight `workload.w_shape` as (K, C, R, S) in float32, with zeros for the channels of other groups.

    A weight that is not finite is refused: a product with it is NaN or infinite wherever the input is, padding
    included, and leaving out the zeros beside it would keep none of that.
    """
    if weight.shape != workload.w_shape:
        raise InvalidArgumentError("weight", weight.shape, f"the shape {workload.w_shape} of {workload}")
    if not np.isfinite(weight).all():
        raise InvalidArgumentError("weight", "NaN or infinite in places", "finite numbers: they are compiled in")
    grouped = np.asarray(weight, np.float32).reshape(workload.groups, workload.multiplier, -1, *workload.kernel)
    dense = np.zeros((workload.groups, workload.multiplier, workload.groups, *grouped.shape[2:]), np.float32)
    every = np.arange(workload.groups)
    dense[every, :, every] = grouped
    return dense.reshape(workload.out_channels, workload.in_channels, *workload.kernel)


def _choose(number: tirx.Var, bodies: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The body with a number."""
    chosen = bodies[-1]
    for place in reversed(range(len(bodies) - 1)):
        chosen = tirx.IfThenElse(number == place, bodies[place], chosen)
    return chosen


def _body(template: Template, rows: np.ndarray, block: np.ndarray, taps: int) -> Iterator[tirx.Stmt]:
    """What a thread does for a block of output channels.

    A sum is a new variable after each product, not a place in an array: compilers take a tenth of the time over it.
    """
    own = rows[block]
    nonzero = own != 0
    read = nonzero.any(axis=0).reshape(-1, taps).any(axis=1)
    sums: dict[int, tirx.PrimExpr] = {}
    analyzer = Analyzer()
    number = count()  # TVM itself would take long to tell apart so many variables of one name
    zero = tirx.FloatImm("float32", 0.0)

    def summed(load: TensorLoad) -> tirx.PrimExpr:
        place = load.indices[0]
        return sums.get(int(analyzer.simplify(place)), zero) if load.source.same_as(template.sums) else load

    for step in template.steps:
        match step:
            case Always(stmt):
                yield stmt
            case Staging(channel, stmt):
                if read[channel]:
                    yield stmt
            case Products(place):
                chosen = np.flatnonzero(nonzero[:, place])
                if chosen.size:
                    element = tirx.Var(f"x{next(number)}", "float32")
                    yield tirx.Bind(element, step.element)
                for row, weight in zip(chosen.tolist(), own[chosen, place].tolist(), strict=True):
                    index = step.first + int(block[row]) * step.step
                    total = tirx.Var(f"y{next(number)}", "float32")
                    product = tirx.Mul(element, tirx.FloatImm("float32", weight))
                    yield tirx.Bind(total, tirx.Add(sums[index], product) if index in sums else product)
                    sums[index] = total
            case PerOutput():
                for k in block.tolist():
                    yield tvm_ffi.structural_map(substitute(step.stmt, {step.k: k}), (TensorLoad, summed))
