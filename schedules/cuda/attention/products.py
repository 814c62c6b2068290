"""The products of attention on tensor cores: of queries and keys, and of powers and values."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.statements import tested

from .block import AttentionBlock
from .fragments import EIGHT, FRAGMENT, address, store_words, word_of
from .tiles import pitch


class Products(ABC):
    """The products of a block; each subclass has different registers for factors."""

    def __init__(self, block: AttentionBlock) -> None:
        self.block, self.attention, self.tile = block, block.attention, block.tile
        self.fragments = block.tile.fragments

    @abstractmethod
    def scored(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        """Return the statements that make scores of queries and `groups` groups of sixteen keys of a turn."""

    @abstractmethod
    def added(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        """Return the statements that add products of powers, in the registers of scores, and values to the sums."""

    def keys(self, turn: Expr, step: Expr, group: Expr) -> Expr:
        """Return the address that a thread passes to load sixteen keys of a warp, at the terms of an instruction."""
        block, lane = self.block, self.block.lane
        begin, _ = block.in_ring(turn)
        row = (
            block.split * self.tile.keys
            + group * FRAGMENT
            + tirx.floormod(lane, EIGHT)
            + tirx.floordiv(lane, 16) * EIGHT
        )
        column = step * block.terms + tirx.floormod(tirx.floordiv(lane, EIGHT), 2) * block.vector
        return address(block.ring, begin + row * pitch(self.attention, self.attention.depth) + column)

    def value(self, turn: Expr, key: Expr, column: Expr) -> Expr:
        """Return the address of a value of a warp's keys."""
        _, begin = self.block.in_ring(turn)
        row = self.block.split * self.tile.keys + key
        return address(self.block.ring, begin + row * pitch(self.attention, self.attention.width) + column)

    def numbers(self, fragment: Expr, row: Expr, step: Expr) -> list[list[Expr]]:
        """Return the results of a thread in sixteen columns of a row: two numbers in each eight."""
        block = self.block
        share = block.total[fragment * 2 + row]
        indices = [[block.result(fragment, step * 2 + eight, row * 2 + side) for side in (0, 1)] for eight in (0, 1)]
        return [[block.sums[index] * share for index in pair] for pair in indices]

    def stored(self, fragment: Expr, row: Expr, step: Expr) -> list[tirx.Stmt]:
        """Return the statements that store sixteen columns of a row, each thread two words in each eight.

        The words are sums in float32, multiplied by the number that `total` has for the row.
        """
        column = step * FRAGMENT + self.block.pair()
        numbers = self.numbers(fragment, row, step)
        return [self.store(fragment, row, column + eight * EIGHT, *map(word_of, numbers[eight])) for eight in (0, 1)]

    def store(self, fragment: Expr, row: Expr, column: Expr, *words: Expr) -> tirx.Stmt:
        """Return the statement that stores words of a row from a column on, if the row and the column exist."""
        block, query = self.block, self.block.query(fragment, row)
        index = block.strided_rows["output"].at(block.matrix, query, column)
        tests = [] if self.attention.queries % FRAGMENT == 0 else [query < self.attention.queries]
        tests += [] if self.attention.width % FRAGMENT == 0 else [column < self.attention.width]
        return tested(tests, store_words(tirx.address_of(block.named["output"][index]), *words))
