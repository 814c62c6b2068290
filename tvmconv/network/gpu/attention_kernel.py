"""The loops of one kernel for a GPU of attention in half precision: scores and their softmax stay in registers."""

from __future__ import annotations

import operator
from functools import reduce
from math import e, inf, log2
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from ...annotations import MIN_BLOCKS
from ...compute.approximations import quotient
from ...lowering import as_scheduled, with_launch_bounds
from ...lowering.intrinsics import COMMIT_SOURCE, COPY_SOURCE, READY_SOURCE, cuda_call
from ...schedules.cuda.machine import WARP
from .attention import VECTOR, Attention, Tile, padded, part_bytes, part_size, pitch, resident_blocks, stage_bytes
from .exchanges import exchange
from .fragments import EIGHT, FRAGMENT, exp2, load_matrices, multiply, pair, word
from .plan import INDEX, barrier, index_variable, launched, loop, sequence, tested

LOG2_E = log2(e)
"""The powers of two in one of e."""


def attention_kernel(attention: Attention, tile: Tile, name: str) -> tirx.PrimFunc:
    """Return the function of attention, with a block for each tile of queries, and the softmax of the keys so far.

    Before: `s = q k^T * scale`, `y = softmax(s) v`.
    After: `for tile of keys: wait; copy the next tile; s = q k^T; m, before = max(m, s), m; p = 2^(s - m);
    sum = sum * 2^(before - m) + p; y = y * 2^(before - m) + p v`, and `y / sum` at the end.
    """
    return Loops(attention, tile).function(name)


class Loops:
    """The parts of the kernel of an attention."""

    def __init__(self, attention: Attention, tile: Tile) -> None:
        self.attention, self.tile = attention, tile
        self.depth, self.width = padded(attention.depth), padded(attention.width)
        self.turns = -(-attention.keys // tile.turn)
        self.ahead = self.turns if self.turns <= tile.stages else tile.stages - 1
        """The turns that copies are ahead."""
        self.blocks = -(-attention.queries // tile.queries)
        """The blocks of a matrix."""
        places = {"q": attention.q, "k": attention.k, "v": attention.v}
        types = {**dict.fromkeys(places, attention.dtype), "output": attention.out_dtype}
        places |= {f"bias_{number}": place for number, place in enumerate(attention.biases)}
        places["output"] = attention.output
        self.places = places
        self.named = {
            name: tirx.decl_buffer((place.elements,), types.get(name, "float32"), name)
            for name, place in places.items()
        }
        self.buffers: list[Any] = []
        count = tile.fragments
        self.ring = self._buffer("ring", tile.stages * stage_bytes(attention, tile) // 2, attention.dtype, "shared.dyn")
        self.factor = self._buffer("factor", count * self.depth // 4, "uint32")
        self.columns = self._buffer("columns", 4, "uint32")
        self.shares = self._buffer("shares", count * 4, "uint32")
        self.scores = self._buffer("scores", count * tile.keys // 2, "float32")
        self.sums = self._buffer("sums", count * self.width // 2, "float32")
        self.most, self.total, self.last = (
            self._buffer(each, count * 2, "float32") for each in ("most", "total", "last")
        )
        self.other = self._buffer("other", 1, "float32")
        self.out = self._buffer("out", 2, attention.out_dtype)
        self.block, self.thread = index_variable("block"), index_variable("thread")
        self.lane = tirx.floormod(self.thread, WARP)
        self.warp = tirx.floormod(tirx.floordiv(self.thread, WARP), tile.warps)
        self.split = tirx.floordiv(self.thread, WARP * tile.warps)
        """The number of a warp among those that share queries."""
        self.matrix = tirx.floordiv(self.block, self.blocks)
        first = tirx.floormod(self.block, self.blocks) * tile.queries
        self.first = first + self.warp * (tile.fragments * FRAGMENT)
        """The first query of a warp."""

    def function(self, name: str) -> tirx.PrimFunc:
        turn = index_variable("turn")
        whole, rest = divmod(self.attention.keys, self.tile.turn)
        steps = [
            *(self._copied(tirx.const(number, INDEX)) for number in range(min(self.ahead, self.turns))),
            *self._begun(),
        ]
        if whole:
            steps.append(loop(turn, whole, sequence(self._turn(turn, self.tile.turn)), tirx.ForKind.SERIAL))
        if rest:
            steps += self._turn(tirx.const(whole, INDEX), rest)
        body = sequence([*steps, *self._ended()])
        threads, grid = self.tile.threads, self.attention.matrices * self.blocks
        together = {MIN_BLOCKS: resident_blocks(self.attention, self.tile)}
        root = launched(body, {self.thread: threads, self.block: grid}, self.buffers, together)
        func = tirx.PrimFunc(list(self.named.values()), root).with_attrs({"tirx.noalias": True, "s_tir": True})
        return as_scheduled(with_launch_bounds(func), name)

    def _buffer(self, name: str, size: int, dtype: str, scope: str = "local") -> Any:
        buffer = tirx.decl_buffer((size,), dtype, name, scope=scope)
        self.buffers.append(buffer)
        return buffer

    def _where_queries(self, steps: list[tirx.Stmt]) -> tirx.Stmt:
        """Return statements for the warps that have queries."""
        there = self.attention.queries % self.tile.queries == 0
        return tested([] if there else [self.first < self.attention.queries], sequence(steps))

    def _turn(self, turn: Expr, keys: int) -> list[tirx.Stmt]:
        """Return the statements for so many keys of a turn; the barrier frees what the turn before has read."""
        left = self.turns - 1 - turn
        pending = tirx.min(tirx.const(self.ahead - 1, INDEX), left).astype("int32")
        copied = tested([turn + self.ahead < self.turns], self._copied(turn + self.ahead))
        steps = [*self._scored(turn, keys), *self._weighed(turn, min(keys, self.tile.keys))]
        ready, own = cuda_call("tvmconv_ready", READY_SOURCE, pending), self._where_queries(steps)
        if keys <= self.tile.keys * (self.tile.splits - 1):  # the last warps have no keys
            own = tested([self.split * self.tile.keys < keys], own)
        return [ready, copied, own]

    # Copies and loads

    def _in_ring(self, turn: Expr) -> tuple[Expr, Expr]:
        """Return where the keys and values of a turn begin in shared memory."""
        begin = tirx.floormod(turn, self.tile.stages) * (stage_bytes(self.attention, self.tile) // 2)
        return begin, begin + self.tile.turn * pitch(self.attention.depth)

    def _copied(self, turn: Expr) -> tirx.Stmt:
        """Return the statement that begins copies of a turn, with zeros behind the last key and the last column."""
        steps = []
        sizes = self.attention.depth, self.attention.width
        for name, begin, columns in zip("kv", self._in_ring(turn), sizes, strict=True):
            step, vectors = index_variable("step"), padded(columns) // VECTOR
            threads = self.tile.threads
            number = step * threads + self.thread
            row, column = tirx.floordiv(number, vectors), tirx.floormod(number, vectors) * VECTOR
            key = turn * self.tile.turn + row
            tests = [key < self.attention.keys] if self.attention.keys % self.tile.turn else []
            tests += [column < columns] if columns % FRAGMENT else []
            inside = reduce(operator.and_, (test.astype("int32") for test in tests), tirx.const(1, "int32"))
            target = _at(self.ring, begin + row * pitch(columns) + column)
            source = tirx.address_of(self.named[name][self.places[name].at(self.matrix, key, column)])
            copy = cuda_call("tvmconv_copy_16", COPY_SOURCE.format(bytes=16, cache="cg"), target, source, inside)
            count = self.tile.turn * vectors
            there = [] if count % threads == 0 else [number < count]
            steps.append(loop(step, -(-count // threads), tested(there, copy)))
        return sequence([*steps, cuda_call("tvmconv_commit", COMMIT_SOURCE)])

    def _begun(self) -> list[tirx.Stmt]:
        """Return the statements that load the queries of a thread, and begin sums."""
        fragment, step, half, row = (index_variable(name) for name in ("fragment", "step", "half", "row"))
        column = step * FRAGMENT + half * EIGHT + self._pair()
        query = tirx.min(self._query(fragment, row), tirx.const(self.attention.queries - 1, INDEX))
        place = self.places["q"].at(self.matrix, query, column)
        value = word(tirx.address_of(self.named["q"][place]))
        if self.attention.depth % FRAGMENT:
            there = step * FRAGMENT + half * EIGHT < self.attention.depth
            value = tirx.if_then_else(there, value, tirx.const(0, "uint32"))
        at = (fragment * (self.depth // FRAGMENT) + step) * 4 + half * 2 + row
        load = loop(half, 2, loop(row, 2, tirx.BufferStore(self.factor, value, [at])))
        count = self.tile.fragments
        return [
            loop(fragment, count, loop(step, self.depth // FRAGMENT, load)),
            self._filled(self.most, count * 2, -inf),
            self._filled(self.total, count * 2, 0),
            self._filled(self.sums, count * self.width // 2, 0),
        ]

    def _pair(self) -> Expr:
        """Return the first of a thread's two columns among eight."""
        return tirx.floormod(self.lane, 4) * 2

    def _query(self, fragment: Expr, row: Expr) -> Expr:
        """Return the query of a thread's first or second row of a fragment."""
        return self.first + fragment * FRAGMENT + row * EIGHT + tirx.floordiv(self.lane, 4)

    def _filled(self, buffer: Any, count: int, value: float) -> tirx.Stmt:
        at = index_variable("at")
        return loop(at, count, tirx.BufferStore(buffer, tirx.const(value, "float32"), [at]))

    # Products and softmax

    def _scored(self, turn: Expr, keys: int) -> list[tirx.Stmt]:
        """Return the statements that multiply queries and keys, for so many keys of a turn, and scale and mask them."""
        begin, _ = self._in_ring(turn)
        groups, count = -(-min(keys, self.tile.keys) // FRAGMENT), self.tile.fragments
        step, group, fragment, side = (index_variable(name) for name in ("step", "group", "fragment", "side"))
        row = (
            self.split * self.tile.keys
            + group * FRAGMENT
            + tirx.floormod(self.lane, EIGHT)
            + tirx.floordiv(self.lane, 16) * EIGHT
        )
        column = step * FRAGMENT + tirx.floormod(tirx.floordiv(self.lane, EIGHT), 2) * EIGHT
        place = begin + row * pitch(self.attention.depth) + column
        load = load_matrices(_at(self.columns, 0), _at(self.ring, place))
        product = multiply(
            self.attention.dtype,
            _at(self.scores, self._score(fragment, group * 2 + side, 0)),
            _at(self.factor, (fragment * (self.depth // FRAGMENT) + step) * 4),
            _at(self.columns, side * 2),
        )
        body = sequence([load, loop(fragment, count, loop(side, 2, product))])
        products = loop(step, self.depth // FRAGMENT, loop(group, groups, body))
        return [
            self._filled(self.scores, count * self.tile.keys // 2, 0),
            products,
            *self._biased(turn, groups),
            *self._masked(keys),
        ]

    def _score(self, fragment: Expr, eight: Expr, place: Expr | int) -> Expr:
        """Return the place of a score among the registers of a thread: of the two rows of eight keys."""
        return (fragment * (self.tile.keys // EIGHT) + eight) * 4 + place

    @property
    def _is_scaled_ahead(self) -> bool:
        """Return whether scores are multiplied by their scale before the largest is found."""
        return bool(self.attention.biases) or not 0 < self.attention.scale < inf

    def _biased(self, turn: Expr, groups: int) -> list[tirx.Stmt]:
        """Return the statements that scale scores and add what is added to them."""
        if not self._is_scaled_ahead:
            return []
        fragment, eight, row, side = (index_variable(name) for name in ("fragment", "eight", "row", "side"))
        at = self._score(fragment, eight, row * 2 + side)
        value = self.scores[at] * tirx.const(self.attention.scale, "float32")
        query = tirx.min(self._query(fragment, row), tirx.const(self.attention.queries - 1, INDEX))
        key = turn * self.tile.turn + self.split * self.tile.keys + eight * EIGHT + self._pair() + side
        key = tirx.min(key, tirx.const(self.attention.keys - 1, INDEX))
        for number, place in enumerate(self.attention.biases):
            value = value + self.named[f"bias_{number}"][place.at(self.matrix, query, key)]
        store = tirx.BufferStore(self.scores, value, [at])
        body = loop(row, 2, loop(side, 2, store))
        return [loop(fragment, self.tile.fragments, loop(eight, groups * 2, body))]

    def _masked(self, keys: int) -> list[tirx.Stmt]:
        """Return the statements that make scores of keys behind the last one -inf."""
        fragment, eight, row, side = (index_variable(name) for name in ("fragment", "eight", "row", "side"))
        last = keys % self.tile.keys  # the keys of the last warp that has some
        if last == 0 or (last % FRAGMENT == 0 and keys == last):
            return []
        first = last // EIGHT
        behind = -(-min(keys, self.tile.keys) // FRAGMENT) * 2 - first
        at = self._score(fragment, eight + first, row * 2 + side)
        there = self.split * self.tile.keys + (eight + first) * EIGHT + self._pair() + side < keys
        value = tirx.Select(there, self.scores[at], tirx.const(-inf, "float32"))
        body = loop(row, 2, loop(side, 2, tirx.BufferStore(self.scores, value, [at])))
        return [loop(fragment, self.tile.fragments, loop(eight, behind, body))]

    def _weighed(self, turn: Expr, keys: int) -> list[tirx.Stmt]:
        """Return the statements that make powers of scores, and add what these weigh to the sums."""
        groups = -(-keys // FRAGMENT)
        fragment, row, eight, side = (index_variable(name) for name in ("fragment", "row", "eight", "side"))
        own = fragment * 2 + row
        most, total, last = (buffer[own] for buffer in (self.most, self.total, self.last))
        score = self._score(fragment, eight, row * 2 + side)
        result = (fragment * (self.width // EIGHT) + eight) * 4 + row * 2 + side

        def each(count: int, body: tirx.Stmt) -> tirx.Stmt:
            return loop(eight, count, loop(side, 2, body))

        def stored(buffer: Any, value: Expr, at: Expr = own) -> tirx.Stmt:
            return tirx.BufferStore(buffer, value, [at])

        larger = [exchange(self.most, tirx.max, distance, own) for distance in (2, 1)]
        rows = sequence(
            [
                stored(self.last, most),
                each(groups * 2, stored(self.most, tirx.max(most, self.scores[score]))),
                *larger,
                stored(self.last, self._power(last, most)),
                stored(self.total, total * last),
                each(groups * 2, stored(self.scores, self._power(self.scores[score], most), score)),
                each(groups * 2, stored(self.total, total + self.scores[score])),
                each(self.width // EIGHT, stored(self.sums, self.sums[result] * last, result)),
            ]
        )
        return [loop(fragment, self.tile.fragments, loop(row, 2, rows)), self._multiplied(turn, groups)]

    def _power(self, score: Expr, most: Expr) -> Expr:
        """Return the power of a score; where the largest one is -inf all are zeros."""
        lowest, zero = tirx.const(-inf, "float32"), tirx.const(0, "float32")
        most = tirx.Select(tirx.EQ(most, lowest), zero, most)
        if self._is_scaled_ahead:  # what masks may be the lowest number, of which no multiple is finite
            return exp2((score - most) * tirx.const(LOG2_E, "float32"))
        factor = tirx.const(self.attention.scale * LOG2_E, "float32")
        return exp2(score * factor - most * factor)

    def _multiplied(self, turn: Expr, groups: int) -> tirx.Stmt:
        """Return the statement that adds products of powers, in half precision, and values to the sums."""
        _, begin = self._in_ring(turn)
        group, fragment, step, side, half, row = (
            index_variable(name) for name in ("group", "fragment", "step", "side", "half", "row")
        )
        dtype, first = self.attention.dtype, self._score(fragment, group * 2 + half, row * 2)
        share = pair(dtype, self.scores[first], self.scores[first + 1])
        store = tirx.BufferStore(self.shares, share, [fragment * 4 + half * 2 + row])
        shares = loop(fragment, self.tile.fragments, loop(half, 2, loop(row, 2, store)))
        key = self.split * self.tile.keys + group * FRAGMENT + tirx.floormod(self.lane, 16)
        column = step * FRAGMENT + tirx.floordiv(self.lane, 16) * EIGHT
        place = begin + key * pitch(self.attention.width) + column
        load = load_matrices(_at(self.columns, 0), _at(self.ring, place), transposed=True)
        product = multiply(
            dtype,
            _at(self.sums, (fragment * (self.width // EIGHT) + step * 2 + side) * 4),
            _at(self.shares, fragment * 4),
            _at(self.columns, side * 2),
        )
        products = sequence([load, loop(fragment, self.tile.fragments, loop(side, 2, product))])
        return loop(group, groups, sequence([shares, loop(step, self.width // FRAGMENT, products)]))

    # Results

    def _ended(self) -> list[tirx.Stmt]:
        """Return the statements that store results, by the first of warps that share queries."""
        if self.tile.splits == 1:
            return [self._where_queries(self._stored())]
        count = self.tile.fragments
        parts = self._buffer("parts", part_bytes(self.attention, self.tile) // 4, "float32", "shared.dyn")
        kept = ((self.most, count * 2), (self.total, count * 2), (self.sums, count * self.width // 2))
        at, fragment, row, result = (index_variable(name) for name in ("at", "fragment", "row", "result"))

        def part(split: Expr | int, buffer: Any, own: Expr) -> Expr:
            """Return the place of what a thread of a split has in a register."""
            begin = sum(size for each, size in kept[: [each is buffer for each, _ in kept].index(True)])
            warp = (split - 1) * self.tile.warps + self.warp
            return (warp * part_size(self.attention, self.tile) + begin + own) * WARP + self.lane

        stored = [
            loop(at, size, tirx.BufferStore(parts, each[at], [part(self.split, each, at)])) for each, size in kept
        ]
        steps = []
        for split in range(1, self.tile.splits):
            own = fragment * 2 + row
            most, total, last = (buffer[own] for buffer in (self.most, self.total, self.last))
            others = parts[part(split, self.most, own)]
            place = (fragment * (self.width // EIGHT) + tirx.floordiv(result, 2)) * 4 + row * 2 + result % 2
            larger = tirx.max(most, others)
            joined = self.sums[place] * last + parts[part(split, self.sums, place)] * self.other[0]
            steps += [
                tirx.BufferStore(self.last, self._power(most, larger), [own]),
                tirx.BufferStore(self.other, self._power(others, larger), [0]),
                tirx.BufferStore(self.most, larger, [own]),
                tirx.BufferStore(self.total, total * last + parts[part(split, self.total, own)] * self.other[0], [own]),
                loop(result, self.width // 4, tirx.BufferStore(self.sums, joined, [place])),
            ]
        added = loop(fragment, count, loop(row, 2, sequence(steps)))
        first = tirx.EQ(self.split, tirx.const(0, INDEX))
        return [
            barrier(),
            tested([tirx.Not(first)], self._where_queries(stored)),
            barrier(),
            tested([first], self._where_queries([added, *self._stored()])),
        ]

    def _stored(self) -> list[tirx.Stmt]:
        """Return the statements that divide sums by those of the powers, and store them."""
        fragment, row, eight, side = (index_variable(name) for name in ("fragment", "row", "eight", "side"))
        own, zero = fragment * 2 + row, tirx.const(0, "float32")
        totals = [exchange(self.total, lambda one, other: one + other, distance, own) for distance in (2, 1)]
        share = quotient(tirx.const(1, "float32"), self.total[own])
        if self.attention.safe:
            share = tirx.Select(tirx.EQ(self.total[own], zero), zero, share)
        query, column = self._query(fragment, row), eight * EIGHT + self._pair()
        result = self.sums[(fragment * (self.width // EIGHT) + eight) * 4 + row * 2 + side] * self.total[own]
        made = tirx.BufferStore(self.out, result.astype(self.attention.out_dtype), [side])
        place = self.places["output"].at(self.matrix, query, column + side)
        store = tirx.BufferStore(self.named["output"], self.out[side], [place])
        both = sequence([loop(side, 2, made), loop(side, 2, store, tirx.ForKind.VECTORIZED)])
        there = [] if self.attention.queries % FRAGMENT == 0 else [query < self.attention.queries]
        stored = tested(there, loop(eight, self.attention.width // EIGHT, both))
        steps = sequence([*totals, tirx.BufferStore(self.total, share, [own]), stored])
        return [loop(fragment, self.tile.fragments, loop(row, 2, steps))]


def _at(buffer: Any, place: Expr | int) -> Expr:
    """Return the address of a place in a buffer, of which TVM then leaves out nothing."""
    return buffer.access_ptr(0, offset=place)
