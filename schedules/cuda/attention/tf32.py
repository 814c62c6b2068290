"""The products of attention in float32, of TF32 numbers.

A product is one of the nearest TF32 numbers, or three: with a = a' + a'' and b = b' + b'' it is a'b' + a'b'' + a''b'',
and the product that is left out is 2^-21 of it. Tensor cores round sums toward zero, which would add up over many keys:
the large products of a tile of keys have separate sums, which the float32 units add to those before. The small products
have sums as well, whose rounding errors are next to nothing.
"""

from __future__ import annotations

import operator
from functools import reduce
from math import gcd
from typing import Any, NamedTuple

from tvm import tirx
from tvm.ir import Expr, Var

from tvmconv.compute.statements import index_variable, loop, sequence

from .block import AttentionBlock
from .fragments import (
    EIGHT,
    FRAGMENT,
    address,
    load_columns,
    load_matrices,
    multiply,
    rest,
    rounded,
    split_tf32,
    word_of,
)
from .products import Products

PAIRS = {1: [(0, 0)], 2: [(1, 0), (0, 0), (0, 1)]}
"""The parts of both factors that are multiplied, by the number of parts: 0 is the large one, and 1 the small one."""

TOGETHER = 2
"""The number of loads of second factors whose products are begun together, so that none waits for the sums of the
last."""


class Registers(NamedTuple):
    """The registers of factors or sums, a buffer for each part, and the index where those of an instruction begin."""

    parts: list[Any]
    first: Expr


class Tf32Products(Products):
    """Products in float32, of one TF32 number or two for each factor.

    The second product sums over keys in the order in which a thread has scores, so that its registers of scores are
    those of the first factor. Lane l has, of eight keys, 2 * (l % 4) and the next one, where instructions number them l
    % 4 and l % 4 + 4.
    """

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__(block)
        self.parts = block.tf32_parts
        count, scores = self.fragments, self.fragments * block.tile.keys // 2
        self.columns = self.registers("columns", TOGETHER * 4, "uint32")
        self.queries = self.registers("queries", count * 4, "uint32")
        self.shares = self.registers("shares", scores, "uint32")
        self.scores = self.registers("part_of_scores", scores, "float32")
        self.sums = self.registers("part_of_sums", count * TOGETHER * 8, "float32")

    def registers(self, name: str, count: int, dtype: str) -> list[Any]:
        """Return a buffer of `count` registers for each part."""
        return [self.block.buffer(f"{name}_{part}", count, dtype) for part in range(self.parts)]

    def scored(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        block, together = self.block, gcd(groups, TOGETHER)
        step, batch, group, fragment, eight, at = (
            index_variable(name) for name in ("step", "batch", "group", "fragment", "eight", "at")
        )
        query, first = block.factor[(fragment * block.steps + step) * 4 + at], batch * together
        queries = self.split(Registers(self.queries, fragment * 4 + at), query)
        sums = Registers(self.scores, block.score(fragment, first * 2 + eight, 0))
        keys = [
            loop(group, together, load_matrices(self.column(group), self.keys(turn, step, first + group))),
            *self.multiplied(sums, Registers(self.queries, fragment * 4), fragment, eight, together),
        ]
        of_step = [
            loop(fragment, self.fragments, loop(at, 4, queries)),
            loop(batch, groups // together, sequence(keys)),
        ]
        count = self.fragments * self.tile.keys // 2
        return [
            *(block.filled(buffer, count, 0) for buffer in self.scores),
            loop(step, block.steps, sequence(of_step)),
            loop(at, count, tirx.BufferStore(block.scores, _total(self.scores, at), [at])),
        ]

    def added(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        block, steps = self.block, self.block.width // FRAGMENT
        together = gcd(steps, TOGETHER)
        keys, fragment, batch, step, eight, half, row, at = (
            index_variable(name) for name in ("keys", "fragment", "batch", "step", "eight", "half", "row", "at")
        )
        power = word_of(block.scores[block.score(fragment, keys, row * 2 + half)])
        shares = self.split(Registers(self.shares, block.score(fragment, keys, half * 2 + row)), power)
        first, key = batch * together, keys * EIGHT + block.pair()
        column = (first + step) * FRAGMENT + tirx.floordiv(block.lane, 4)
        rows = [self.value(turn, key + number, column) for number in (0, 1)]
        sums = Registers(self.sums, (fragment * TOGETHER * 2 + eight) * 4)
        values = [
            loop(step, together, load_columns(self.column(step), *rows)),
            *self.multiplied(sums, Registers(self.shares, block.score(fragment, keys, 0)), fragment, eight, together),
        ]
        result, of_sum = block.result(fragment, first * 2, at), fragment * TOGETHER * 8 + at
        add = tirx.BufferStore(block.sums, block.sums[result] + _total(self.sums, of_sum), [result])
        of_batch = [
            *(block.filled(buffer, self.fragments * TOGETHER * 8, 0) for buffer in self.sums),
            loop(keys, groups * 2, sequence(values)),
            loop(fragment, self.fragments, loop(at, together * 8, add)),
        ]
        return [
            loop(fragment, self.fragments, loop(keys, groups * 2, loop(half, 2, loop(row, 2, shares)))),
            loop(batch, steps // together, sequence(of_batch)),
        ]

    def column(self, load: Expr) -> Expr:
        """Return the address of the registers of a load of second factors."""
        return address(self.columns[0], load * 4)

    def split(self, factors: Registers, bits: Expr) -> tirx.Stmt:
        """Return the statement that splits a first factor into its parts.

        Small parts are of either sign, so that the products of two small parts, which are left out, do not add up.
        """
        if self.parts == 1:
            return tirx.BufferStore(factors.parts[0], rounded(bits), [factors.first])
        large, small = (address(buffer, factors.first) for buffer in factors.parts)
        return split_tf32(large, small, bits)

    def multiplied(
        self, sums: Registers, first: Registers, fragment: Var, eight: Var, together: int
    ) -> list[tirx.Stmt]:
        """Return the statements that split second factors into parts, and add their products to the parts of sums.

        There is a product for each fragment and for each eight columns of `together` loads.
        """
        at, large = index_variable("at"), self.columns[0]
        part = rounded(large[at]) if self.parts == 1 else rest(large[at])
        steps = [loop(at, together * 4, tirx.BufferStore(self.columns[-1], part, [at]))]
        for one, other in PAIRS[self.parts]:
            product = multiply(
                self.attention.dtype,
                address(sums.parts[max(one, other)], sums.first),
                address(first.parts[one], first.first),
                address(self.columns[other], eight * 2),
            )
            steps.append(loop(fragment, self.fragments, loop(eight, together * 2, product)))
        return steps


def _total(parts: list[Any], at: Expr) -> Expr:
    """Return the sum of the parts of a number."""
    return reduce(operator.add, (buffer[at] for buffer in parts))
