"""The kernel of attention for a GPU: scores and their softmax stay in registers."""

from __future__ import annotations

from math import inf
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.annotations import MIN_BLOCKS
from tvmconv.compute.approximations import LOG2_E, exp, exp2, quotient
from tvmconv.compute.statements import (
    COPIES,
    INDEX,
    barrier,
    cuda_call,
    exchange,
    index_variable,
    launched,
    loop,
    sequence,
    tested,
)
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.targets.device_code import function
from tvmconv.targets.devices import WARP

from .block import AttentionBlock
from .fragments import EIGHT, FRAGMENT
from .half import HalfProducts
from .tf32 import Tf32Products
from .tiles import Config, least_resident


def attention_kernel(problem: Problem, tile: Config) -> tirx.PrimFunc:
    """Return the function of attention, with a block for each tile of queries, and the softmax of the keys so far.

    Before: `s = q k^T * scale`, `y = softmax(s) v`.
    After: `for tile of keys: wait; copy the next tile; s = q k^T; m, before = max(m, s), m; p = 2^(s - m);
    sum = sum * 2^(before - m) + p; y = y * 2^(before - m) + p v`, and `y / sum` at the end.
    """
    return AttentionLoops(problem, tile).function()


class AttentionLoops(AttentionBlock):
    """The loops of a block over keys, and the statements that store its results."""

    def __init__(self, problem: Problem, tile: Config) -> None:
        super().__init__(problem, tile)
        self.least_resident = least_resident(problem, tile)
        self.products = HalfProducts(self) if self.attention.dtype in NARROW else Tf32Products(self)

    def function(self) -> tirx.PrimFunc:
        """Return the function of the kernel."""
        turn = index_variable("turn")
        whole, rest = divmod(self.attention.keys, self.tile.turn)
        steps = [
            *(self.copied(tirx.const(number, INDEX)) for number in range(min(self.ahead, self.turns))),
            *self.begun(),
        ]
        if whole:
            steps.append(loop(turn, whole, sequence(self._turn(turn, self.tile.turn)), tirx.ForKind.SERIAL))
        if rest:
            steps += self._turn(tirx.const(whole, INDEX), rest)
        body = sequence([*steps, *self._ended()])
        threads, grid = self.tile.threads, self.attention.matrices * self.blocks
        together = {MIN_BLOCKS: self.least_resident}
        root = launched(body, {self.thread: threads, self.block: grid}, self.buffers, together)
        return tirx.PrimFunc(list(self.named.values()), root).with_attrs({"tirx.noalias": True, "s_tir": True})

    def _turn(self, turn: Expr, keys: int) -> list[tirx.Stmt]:
        """Return the statements of a turn with `keys` keys; the barrier frees the memory of the last turn."""
        left = self.turns - 1 - turn
        pending = tirx.min(tirx.const(self.ahead - 1, INDEX), left).astype("int32")
        copied = tested([turn + self.ahead < self.turns], self.copied(turn + self.ahead))
        steps = [*self._scored(turn, keys), *self._weighed(turn, min(keys, self.tile.keys))]
        ready, work = cuda_call(function("ready"), COPIES, pending), self.where_queries(steps)
        if keys <= self.tile.keys * (self.tile.splits - 1):  # the last warps have no keys
            work = tested([self.split * self.tile.keys < keys], work)
        return [ready, copied, work]

    def _scored(self, turn: Expr, keys: int) -> list[tirx.Stmt]:
        """Return the statements that multiply queries by the `keys` keys of a turn, and scale and mask the scores."""
        groups = -(-min(keys, self.tile.keys) // FRAGMENT)
        return [*self.products.scored(turn, groups), *self._biased(turn, groups), *self._masked(keys)]

    @property
    def _is_scaled_ahead(self) -> bool:
        """Return whether scores are multiplied by their scale before the largest is found."""
        return bool(self.attention.biases) or not 0 < self.attention.scale < inf

    def _biased(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        """Return the statements that scale scores and add the biases."""
        if not self._is_scaled_ahead:
            return []
        fragment, eight, row, side = (index_variable(name) for name in ("fragment", "eight", "row", "side"))
        at = self.score(fragment, eight, row * 2 + side)
        value = self.scores[at] * tirx.const(self.attention.scale, "float32")
        query = tirx.min(self.query(fragment, row), tirx.const(self.attention.queries - 1, INDEX))
        key = turn * self.tile.turn + self.split * self.tile.keys + eight * EIGHT + self.pair() + side
        key = tirx.min(key, tirx.const(self.attention.keys - 1, INDEX))
        for number, rows in enumerate(self.attention.biases):
            value = value + self.named[f"bias_{number}"][rows.at(self.matrix, query, key)]
        store = tirx.BufferStore(self.scores, value, [at])
        body = loop(row, 2, loop(side, 2, store))
        return [loop(fragment, self.tile.fragments, loop(eight, groups * 2, body))]

    def _masked(self, keys: int) -> list[tirx.Stmt]:
        """Return the statements that set the scores of keys past the last one to -inf."""
        fragment, eight, row, side = (index_variable(name) for name in ("fragment", "eight", "row", "side"))
        last = keys % self.tile.keys  # the keys of the last warp that has some
        if last == 0 or (last % FRAGMENT == 0 and keys == last):
            return []
        first = last // EIGHT
        behind = -(-min(keys, self.tile.keys) // FRAGMENT) * 2 - first
        at = self.score(fragment, eight + first, row * 2 + side)
        there = self.split * self.tile.keys + (eight + first) * EIGHT + self.pair() + side < keys
        value = tirx.Select(there, self.scores[at], tirx.const(-inf, "float32"))
        body = loop(row, 2, loop(side, 2, tirx.BufferStore(self.scores, value, [at])))
        return [loop(fragment, self.tile.fragments, loop(eight, behind, body))]

    def _weighed(self, turn: Expr, keys: int) -> list[tirx.Stmt]:
        """Return the statements that make powers of scores, rescale the sums, and add powers times values."""
        groups = -(-keys // FRAGMENT)
        fragment, row, eight, side = (index_variable(name) for name in ("fragment", "row", "eight", "side"))
        of_row = fragment * 2 + row
        largest, total, previous = (buffer[of_row] for buffer in (self.largest, self.total, self.previous))
        score = self.score(fragment, eight, row * 2 + side)
        result = self.result(fragment, eight, row * 2 + side)

        def each(count: int, body: tirx.Stmt) -> tirx.Stmt:
            return loop(eight, count, loop(side, 2, body))

        def stored(buffer: Any, value: Expr, at: Expr = of_row) -> tirx.Stmt:
            return tirx.BufferStore(buffer, value, [at])

        scaled = [
            stored(self.previous, self._shrinking(previous, largest)),
            stored(self.total, total * previous),
            each(self.width // EIGHT, stored(self.sums, self.sums[result] * previous, result)),
        ]
        rows = sequence(
            [
                stored(self.previous, largest),
                each(groups * 2, stored(self.largest, tirx.max(largest, self.scores[score]))),
                *(exchange(self.largest, tirx.max, distance, of_row) for distance in (2, 1)),
                *(scaled if self.turns > 1 else []),
                each(groups * 2, stored(self.scores, self._power(self.scores[score], largest), score)),
                each(groups * 2, stored(self.total, total + self.scores[score])),
            ]
        )
        return [loop(fragment, self.tile.fragments, loop(row, 2, rows)), *self.products.added(turn, groups)]

    def _power(self, score: Expr, largest: Expr) -> Expr:
        """Return the power of a score; all powers are zero where the largest score is -inf."""
        largest = _or_zero(largest)
        if self._is_scaled_ahead:  # a mask may be the lowest number, whose multiples are infinite
            return exp(score - largest)
        return exp2(score * self._factor - largest * self._factor)

    def _shrinking(self, previous: Expr, largest: Expr) -> Expr:
        """Return the factor of earlier sums if the largest score was `previous`: exactly one where it is the same."""
        less = previous - _or_zero(largest)
        return exp(less) if self._is_scaled_ahead else exp2(less * self._factor)

    @property
    def _factor(self) -> Expr:
        return tirx.const(self.attention.scale * LOG2_E, "float32")

    def _ended(self) -> list[tirx.Stmt]:
        """Return the statements that store results, by the first of the warps that share queries."""
        if self.tile.splits == 1:
            return [self.where_queries(self._stored())]
        first = tirx.EQ(self.split, tirx.const(0, INDEX))
        return [
            barrier(),
            tested([tirx.Not(first)], self.where_queries(self._handed_over())),
            barrier(),
            tested([first], self.where_queries([self._joined(), *self._stored()])),
        ]

    def _split_index(self, split: Expr | int, at: Expr) -> Expr:
        """Return the index in `split_sums` where a thread of a split leaves its number `at` for the first split."""
        threads = self.tile.warps * WARP
        return at * (self.tile.threads - threads) + (split - 1) * threads + self.thread % threads

    def _handed_over(self) -> list[tirx.Stmt]:
        """Return the statements that store a thread's numbers in shared memory, for the first split to read."""
        at, rows = index_variable("at"), self.tile.fragments * 2
        kept = ((self.largest, 0, rows), (self.total, rows, rows), (self.sums, 2 * rows, rows * self.width // 4))
        return [
            loop(at, size, tirx.BufferStore(self.split_sums, buffer[at], [self._split_index(self.split, begin + at)]))
            for buffer, begin, size in kept
        ]

    def _joined(self) -> tirx.Stmt:
        """Return the statement that adds the sums of other splits to those of the first one."""
        fragment, row, eight, side = (index_variable(name) for name in ("fragment", "row", "eight", "side"))
        of_row, rows, steps = fragment * 2 + row, self.tile.fragments * 2, list[tirx.Stmt]()
        largest, total, previous, other = (
            buffer[of_row] for buffer in (self.largest, self.total, self.previous, self.other)
        )
        result = self.result(fragment, eight, row * 2 + side)
        for split in range(1, self.tile.splits):
            theirs = self.split_sums[self._split_index(split, of_row)]
            larger = tirx.max(largest, theirs)
            added = (
                self.split_sums[self._split_index(split, rows + of_row)],
                self.split_sums[self._split_index(split, 2 * rows + result)],
            )
            sums = tirx.BufferStore(self.sums, self.sums[result] * previous + added[1] * other, [result])
            steps += [
                tirx.BufferStore(self.previous, self._shrinking(largest, larger), [of_row]),
                tirx.BufferStore(self.other, self._shrinking(theirs, larger), [of_row]),
                tirx.BufferStore(self.largest, larger, [of_row]),
                tirx.BufferStore(self.total, total * previous + added[0] * other, [of_row]),
                loop(eight, self.width // EIGHT, loop(side, 2, sums)),
            ]
        return loop(fragment, self.tile.fragments, loop(row, 2, sequence(steps)))

    def _stored(self) -> list[tirx.Stmt]:
        """Return the statements that divide sums by the sums of powers, and store them."""
        fragment, row, step = (index_variable(name) for name in ("fragment", "row", "step"))
        of_row, zero = fragment * 2 + row, tirx.const(0, "float32")
        totals = [exchange(self.total, lambda one, other: one + other, distance, of_row) for distance in (2, 1)]
        share = quotient(tirx.const(1, "float32"), self.total[of_row])
        if self.attention.safe:
            share = tirx.Select(tirx.EQ(self.total[of_row], zero), zero, share)
        stored = loop(step, self.width // FRAGMENT, sequence(self.products.stored(fragment, row, step)))
        steps = sequence([*totals, tirx.BufferStore(self.total, share, [of_row]), stored])
        return [loop(fragment, self.tile.fragments, loop(row, 2, steps))]


def _or_zero(score: Expr) -> Expr:
    """Return a score, or zero for -inf, as -inf minus -inf is NaN."""
    lowest = tirx.const(-inf, "float32")
    return tirx.Select(tirx.EQ(score, lowest), tirx.const(0, "float32"), score)
