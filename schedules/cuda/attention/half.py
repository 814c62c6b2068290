"""The products of attention in half precision."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.statements import INDEX, index_variable, loop, sequence, shuffled_xor
from tvmconv.problem.dtypes import NARROW

from .block import AttentionBlock
from .fragments import EIGHT, FRAGMENT, address, load_matrices, multiply, pair
from .products import Products


class HalfProducts(Products):
    """Products in half precision, to which powers are rounded."""

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__(block)
        self.columns = block.buffer("columns", 4, "uint32")
        self.shares = block.buffer("shares", self.fragments * 4, "uint32")
        self.words = block.buffer("words", 3, "uint32")

    def scored(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        block = self.block
        step, group, fragment, side = (index_variable(name) for name in ("step", "group", "fragment", "side"))
        product = multiply(
            self.attention.dtype,
            address(block.scores, block.score(fragment, group * 2 + side, 0)),
            address(block.factor, (fragment * block.steps + step) * 4),
            address(self.columns, side * 2),
        )
        load = load_matrices(address(self.columns, 0), self.keys(turn, step, group))
        body = sequence([load, loop(fragment, self.fragments, loop(side, 2, product))])
        return [
            block.filled(block.scores, self.fragments * self.tile.keys // 2, 0),
            loop(step, block.steps, loop(group, groups, body)),
        ]

    def added(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        block, dtype = self.block, self.attention.dtype
        group, fragment, step, side, half, row = (
            index_variable(name) for name in ("group", "fragment", "step", "side", "half", "row")
        )
        first = block.score(fragment, group * 2 + half, row * 2)
        share = pair(dtype, block.scores[first], block.scores[first + 1])
        store = tirx.BufferStore(self.shares, share, [fragment * 4 + half * 2 + row])
        shares = loop(fragment, self.fragments, loop(half, 2, loop(row, 2, store)))
        key = group * FRAGMENT + tirx.floormod(block.lane, 16)
        column = step * FRAGMENT + tirx.floordiv(block.lane, 16) * EIGHT
        load = load_matrices(address(self.columns, 0), self.value(turn, key, column), transposed=True)
        product = multiply(
            dtype,
            address(block.sums, block.result(fragment, step * 2 + side, 0)),
            address(self.shares, fragment * 4),
            address(self.columns, side * 2),
        )
        products = sequence([load, loop(fragment, self.fragments, loop(side, 2, product))])
        return [loop(group, groups, sequence([shares, loop(step, block.width // FRAGMENT, products)]))]

    def stored(self, fragment: Expr, row: Expr, step: Expr) -> list[tirx.Stmt]:
        """Return the statements that store sixteen columns of a row: two words by each of four threads, 32 bytes.

        In half precision a thread has a word in each eight columns: neighbours exchange one, so that each has two
        adjacent words.
        """
        if self.attention.out_dtype not in NARROW:
            return super().stored(fragment, row, step)
        lane = self.block.lane
        first, second, given = (self.words[register] for register in range(3))
        is_odd = tirx.EQ(lane % 2, tirx.const(1, INDEX))
        column = step * FRAGMENT + lane % 2 * EIGHT + tirx.floordiv(lane % 4, 2) * 4
        words = tirx.Select(is_odd, given, first), tirx.Select(is_odd, second, given)
        return [
            *(
                tirx.BufferStore(self.words, pair(self.attention.out_dtype, *numbers), [eight])
                for eight, numbers in enumerate(self.numbers(fragment, row, step))
            ),
            tirx.BufferStore(self.words, shuffled_xor(tirx.Select(is_odd, first, second), 1), [2]),
            self.store(fragment, row, column, *words),
        ]
