"""The shared memory and the registers of a block that computes attention, and its copies and loads to them."""

from __future__ import annotations

import operator
from functools import reduce
from math import inf
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.statements import COPIES, INDEX, cuda_call, index_variable, loop, sequence, tested
from tvmconv.problem import Problem
from tvmconv.targets.device_code import function
from tvmconv.targets.devices import WARP

from .fragments import EIGHT, FRAGMENT, address, word
from .tiles import (
    COPY_BYTES,
    Config,
    attention_of,
    padded,
    pitch,
    split_bytes,
    stage_bytes,
    tf32_parts_of,
    turns_of,
    vector,
)


class AttentionBlock:
    """A block of threads that computes attention for a tile of queries."""

    def __init__(self, problem: Problem, tile: Config) -> None:
        self.attention, self.tile, self.tf32_parts = attention_of(problem), tile, tf32_parts_of(problem)
        attention = self.attention
        self.vector = vector(attention)
        """The elements of a copy to shared memory."""
        self.terms = 2 * self.vector
        """The terms that an instruction adds up, which are 32 bytes."""
        self.depth, self.width = padded(attention.depth), padded(attention.width)
        self.turns = turns_of(attention, tile)
        self.ahead = self.turns if self.turns <= tile.stages else tile.stages - 1
        """The turns that copies are ahead."""
        self.blocks = -(-attention.queries // tile.queries)
        """The blocks of a matrix."""
        self.strided_rows = attention.strided_rows
        self.named = {name: tirx.decl_buffer(*operand, name) for name, operand in attention.operands.items()}
        self.buffers: list[Any] = []
        count = tile.fragments
        self.stage = stage_bytes(attention, tile) // attention.itemsize
        """The elements of the keys and values of a turn."""
        self.ring = self.buffer("ring", tile.stages * self.stage, attention.dtype, "shared.dyn")
        self.steps = self.depth // self.terms
        """The steps in which instructions add up the terms of a score."""
        self.factor = self.buffer("factor", count * self.steps * 4, "uint32")
        self.scores = self.buffer("scores", count * tile.keys // 2, "float32")
        self.sums = self.buffer("sums", count * self.width // 2, "float32")
        self.largest, self.total, self.previous = (
            self.buffer(each, count * 2, "float32") for each in ("most", "total", "last")
        )
        if tile.splits > 1:
            self.other = self.buffer("other", count * 2, "float32")
            self.split_sums = self.buffer("parts", split_bytes(attention, tile) // 4, "float32", "shared.dyn")
        self.block, self.thread = index_variable("block"), index_variable("thread")
        self.lane = tirx.floormod(self.thread, WARP)
        self.matrix = tirx.floordiv(self.block, self.blocks)
        # In a matrix's last block only some warps have queries: these differ from matrix to matrix, to spread over the
        # quarters of a multiprocessor.
        self.warp = tirx.floormod(tirx.floordiv(self.thread, WARP) + self.matrix, tile.warps)
        self.split = tirx.floordiv(self.thread, WARP * tile.warps)
        """The number of a warp among those that share queries."""
        first = tirx.floormod(self.block, self.blocks) * tile.queries
        self.first = first + self.warp * (tile.fragments * FRAGMENT)
        """The first query of a warp."""

    def buffer(self, name: str, size: int, dtype: str, scope: str = "local") -> Any:
        buffer = tirx.decl_buffer((size,), dtype, name, scope=scope)
        self.buffers.append(buffer)
        return buffer

    def where_queries(self, steps: list[tirx.Stmt]) -> tirx.Stmt:
        """Return statements that only the warps with queries run."""
        exists = self.attention.queries % self.tile.queries == 0
        return tested([] if exists else [self.first < self.attention.queries], sequence(steps))

    def in_ring(self, turn: Expr) -> tuple[Expr, Expr]:
        """Return the offsets in shared memory where the keys and the values of a turn begin."""
        begin = tirx.floormod(turn, self.tile.stages) * self.stage
        return begin, begin + self.tile.turn * pitch(self.attention, self.attention.depth)

    def copied(self, turn: Expr) -> tirx.Stmt:
        """Return the statement that begins copies of a turn, with zeros past the last key and the last column."""
        steps = []
        sizes = self.attention.depth, self.attention.width
        for name, begin, columns in zip("kv", self.in_ring(turn), sizes, strict=True):
            threads = self.tile.threads
            step, vectors = index_variable("step"), padded(columns) // self.vector
            number = step * threads + self.thread
            row, column = tirx.floordiv(number, vectors), tirx.floormod(number, vectors) * self.vector
            key = turn * self.tile.turn + row
            tests = [key < self.attention.keys] if self.attention.keys % self.tile.turn else []
            tests += [column < columns] if columns % FRAGMENT else []
            inside = reduce(operator.and_, (test.astype("int32") for test in tests), tirx.const(1, "int32"))
            target = address(self.ring, begin + row * pitch(self.attention, columns) + column)
            source = tirx.address_of(self.named[name][self.strided_rows[name].at(self.matrix, key, column)])
            copy = cuda_call(function("copy", COPY_BYTES), COPIES, target, source, inside)
            count = self.tile.turn * vectors
            exists = [] if count % threads == 0 else [number < count]
            steps.append(loop(step, -(-count // threads), tested(exists, copy)))
        return sequence([*steps, cuda_call(function("commit"), COPIES)])

    def begun(self) -> list[tirx.Stmt]:
        """Return the statements that load the queries of a thread, and initialize sums."""
        fragment, step, half, row = (index_variable(name) for name in ("fragment", "step", "half", "row"))
        first = step * self.terms + half * self.vector
        query = tirx.min(self.query(fragment, row), tirx.const(self.attention.queries - 1, INDEX))
        index = self.strided_rows["q"].at(self.matrix, query, first + tirx.floormod(self.lane, 4) * (self.vector // 4))
        value = word(tirx.address_of(self.named["q"][index]))
        if self.attention.depth % FRAGMENT:
            value = tirx.if_then_else(first < self.attention.depth, value, tirx.const(0, "uint32"))
        at = (fragment * self.steps + step) * 4 + half * 2 + row
        load = loop(half, 2, loop(row, 2, tirx.BufferStore(self.factor, value, [at])))
        count = self.tile.fragments
        return [
            loop(fragment, count, loop(step, self.steps, load)),
            self.filled(self.largest, count * 2, -inf),
            self.filled(self.total, count * 2, 0),
            self.filled(self.sums, count * self.width // 2, 0),
        ]

    def pair(self) -> Expr:
        """Return the first of a thread's two columns among eight."""
        return tirx.floormod(self.lane, 4) * 2

    def query(self, fragment: Expr, row: Expr) -> Expr:
        """Return the query of a thread's first or second row of a fragment."""
        return self.first + fragment * FRAGMENT + row * EIGHT + tirx.floordiv(self.lane, 4)

    def filled(self, buffer: Any, count: int, value: float) -> tirx.Stmt:
        at = index_variable("at")
        return loop(at, count, tirx.BufferStore(buffer, tirx.const(value, "float32"), [at]))

    def score(self, fragment: Expr, eight: Expr, corner: Expr | int) -> Expr:
        """Return the index of a score among a thread's registers; `corner` is 2 * row + column, of two in 8 keys."""
        return (fragment * (self.tile.keys // EIGHT) + eight) * 4 + corner

    def result(self, fragment: Expr, eight: Expr, corner: Expr | int) -> Expr:
        """Return the index of a sum among a thread's registers; `corner` is 2 * row + column, of two in 8 columns."""
        return (fragment * (self.width // EIGHT) + eight) * 4 + corner
