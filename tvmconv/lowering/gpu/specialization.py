"""Warp specialization: four producer warps copy, the others, consumer warps, multiply, and a block computes many tiles.

Copies go on while sums are stored. Where consumers are two teams, these multiply different tiles, and one stores while
the other one multiplies. A schedule knows nothing of it: its block computes one tile, with all threads in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.expr import TensorRegion
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.annotations import (
    BARRIER_BYTES,
    BULK,
    COPYING_THREADS,
    LAST_PRODUCT,
    PRODUCT,
    ROLE,
    SETTLED,
    SPECIALIZED,
    TILE_ROWS,
    BulkCopy,
)
from tvmconv.compute.substitution import substitute
from tvmconv.targets.device_code import function

from .buffers import Operand, Replacements, with_buffers
from .roles import ROLES
from .tensor_maps import ENCODE, tensor_map


def specialized(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with roles for the warps of blocks whose loop over chunks is annotated with `SPECIALIZED`.

    Before: `for block in tiles: for thread in 128: for chunk in chunks: copies; product` and `output[...] = ...`.
    After: `for block in multiprocessors: for thread in 384:` and in it, for one thread of the last four warps,
    `for tile in own: for chunk in chunks: acquire; copies` and, for each team of the others, `for tile in own:
    for chunk in chunks: arrived; product; release` and `output[...] = ...`.
    """
    if not isinstance(func.body, SBlockRealize):
        return func
    root = func.body.block
    buffers, host = list(root.alloc_buffers), []

    def in_roles(loop: tirx.For) -> tirx.Stmt:
        rings = [each for each in _loops(loop) if SPECIALIZED in each.annotations]
        if _tag(loop) != "blockIdx.x" or not rings:
            return loop
        block = _Block(loop, rings[0], buffers)
        host.extend(block.host)
        return tirx.SeqStmt([*block.host, block.in_roles()])

    body = tvm_ffi.structural_map(root.body, (tirx.For, in_roles))
    if not host:
        return func
    body = tirx.AttrStmt(0, "pragma_import_llvm", tvm.ir.StringImm(ENCODE), body)
    return func.with_body(SBlockRealize([], True, SBlock([], [], [], root.name_hint, body, alloc_buffers=buffers)))


class _Block:
    """The rewriting of a loop over the tiles of a grid, with a ring in it, to roles; `buffers` gets the new buffers."""

    def __init__(self, loop: tirx.For, ring: tirx.For, buffers: list[Any]) -> None:
        self.loop, self.ring, self.buffers = loop, ring, buffers
        values = (int(value) for value in ring.annotations[SPECIALIZED])
        self.slots, self.multiprocessors, self.teams, self.threads, *self.registers, self.is_asynchronous = values
        self.multiplying = self.teams * self.threads
        self.block, self.thread = _variable("block"), _variable("thread")
        self.original_buffers = [each for each in buffers if each.scope() in ("shared.dyn", "local")]
        self.barriers = self.new([BARRIER_BYTES // 8], "uint64", "barriers", "shared.dyn")
        *copies, self.product = ring.body.seq
        self.replaced: list[Any] = []
        self.rings: Replacements = {}
        """For each stage of chunks the ring that replaces it, and the axes that say which chunk it is."""
        self.copies, self.host = [], []
        for copy in copies:
            realize = _copied(copy)
            (written,) = realize.block.writes
            bulk = BulkCopy(*map(int, realize.block.annotations[BULK]))
            stage, source = written.source, realize.block.reads[0].source
            axes = list(range(bulk.axes))
            block_values = {each.var: at for each, at in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
            first_index = [substitute(written.region[axis].min, block_values) for axis in axes]
            shape = [1 if axis in axes else extent for axis, extent in enumerate(stage.ty.shape)]
            shape[axes[-1]] = self.slots
            ring_buffer = self.new(shape, stage.ty.dtype, f"{stage.name}_ring", "shared.dyn")
            self.rings[stage] = ring_buffer, axes
            self.replaced.append(stage)
            maps = {}
            for lanes in dict.fromkeys((bulk.lanes, bulk.last_lanes)):
                maps[lanes], statements = tensor_map(source, bulk, lanes, f"{stage.name}_map_{lanes}")
                self.host += statements
            self.copies.append((ring_buffer, maps, bulk, first_index))

    def in_roles(self) -> tirx.Stmt:
        copying, multiplying = self.registers
        copies = _sequence(_registers("copies", copying), self.copy_all())
        multiplies = _sequence(_registers("multiplies", multiplying), self.multiply_all())
        roles = [
            _if(self.thread >= self.multiplying, copies, {ROLE: True}),
            _if(self.thread < self.multiplying, multiplies, {ROLE: True}),
        ]
        self.buffers[:] = [each for each in self.buffers if each not in self.replaced]
        shared = [each for each in self.buffers if each.scope() == "shared.dyn"]
        keep = [_call([_whole(each)], "keep") for each in shared]
        begin = self.call("begin", self.slots, self.teams, self.threads)
        body = tirx.SeqStmt([begin, *keep, *roles, *keep])
        # With a minimum number of blocks, ptxas knows how many registers threads have at first.
        bounded = tirx.AttrStmt(0, "tirx.launch_bounds_min_blocks_per_sm", 1, body)
        threads = _bound(self.thread, self.multiplying + COPYING_THREADS, "threadIdx.x", bounded)
        return _bound(self.block, tirx.min(self.multiprocessors, self.loop.extent), "blockIdx.x", threads)

    def call(self, name: str, *arguments: Any) -> SBlockRealize:
        """Return the call of a function of `roles.cuh` on the barriers."""
        return _call([_whole(self.barriers)], name, *arguments)

    def tiles(self, first: Any, step: int, body: Callable[[tvm.ir.Var], tirx.Stmt]) -> tirx.Stmt:
        """Return a loop over every `step`-th tile, from `first` on."""
        tile = _variable("tile")
        count = tirx.floordiv(self.loop.extent - first + (step - 1), step)
        stmt = substitute(body(tile), {self.loop.loop_var: first + tile * step})
        return tirx.For(tile, 0, count, tirx.ForKind.SERIAL, stmt)

    def copy_all(self) -> tirx.Stmt:
        """Return the loop over tiles and chunks of the one thread that copies."""

        def of_tile(tile: tvm.ir.Var) -> tirx.Stmt:
            slot, turn = self.slot_and_turn(tile * self.ring.extent + self.ring.loop_var)

            def of_chunk(ends_tap: bool) -> tirx.Stmt:
                size, copies = 0, []
                for ring, maps, bulk, first_index in self.copies:
                    lanes = bulk.last_lanes if ends_tap else bulk.lanes
                    size += bulk.pixels * lanes * tvm.DataType(ring.ty.dtype).itemsize
                    copies.append(self.bulk_copy(ring, maps[lanes], bulk, first_index, slot))
                return _sequence(self.call("acquire", slot, turn, size), *copies)

            return self.loop_over_chunks(of_chunk)

        return _if(self.thread == self.multiplying, self.tiles(self.block, self.multiprocessors, of_tile))

    def loop_over_chunks(self, of_chunk: Callable[[bool], tirx.Stmt]) -> tirx.Stmt:
        """Return the loop over the chunks of a tile; with `LAST_PRODUCT` a tap's last chunk has another statement.

        That statement follows a loop over the tap's other chunks.
        """
        chunk, chunks = self.ring.loop_var, self.ring.extent
        if LAST_PRODUCT not in self.ring.annotations:
            each = _variable("chunk")
            return _serial(each, chunks, substitute(of_chunk(False), {chunk: each}))
        count = self.ring.annotations[LAST_PRODUCT][0]
        several, other = _variable("several"), _variable("other")
        others = substitute(of_chunk(False), {chunk: several * count + other})
        last = substitute(of_chunk(True), {chunk: several * count + (count - 1)})
        return _serial(several, chunks // count, _sequence(_serial(other, count - 1, others), last))

    def bulk_copy(self, ring: Any, known: Any, bulk: BulkCopy, first_index: list[Any], slot: Any) -> tirx.Stmt:
        """Return the copy of a chunk, given by (tile, group, chunk) or (tile, chunk), to a slot of the ring."""
        tile, *group, chunk = first_index
        pixel = tile // bulk.group_tiles * bulk.group_pixels + tile % bulk.group_tiles * bulk.pixels + bulk.first_pixel
        per_tap = -(-bulk.group_channels // bulk.lanes)
        tap, channel = chunk // per_tap, chunk % per_tap * bulk.lanes
        column, row, image, tap_w, tap_h = pixel, 0, 0, 0, 0
        if bulk.width:
            tap_w, tap_h = tap % bulk.kernel_w * bulk.dilation_w, tap // bulk.kernel_w * bulk.dilation_h
            column = pixel % bulk.out_width * bulk.stride_w + bulk.lower_w
            row = pixel // bulk.out_width % bulk.out_height * bulk.stride_h + bulk.lower_h
            image = pixel // (bulk.out_width * bulk.out_height)
        else:
            channel += tap * bulk.group_channels
        for each in group:
            if bulk.separate_groups:
                image += each
            else:
                channel += each * bulk.group_channels
        ranges = [tvm.ir.Range.from_min_extent(0, extent) for extent in ring.ty.shape]
        ranges[bulk.axes - 1] = tvm.ir.Range.from_min_extent(slot, 1)
        memory = [TensorRegion(ring, ranges, ring.ty), _whole(self.barriers)]
        coordinates = channel, column, row, image, tap_w, tap_h
        return _call(memory, "bulk_copy", slot, tirx.address_of(known), *coordinates)

    def multiply_all(self) -> tirx.Stmt:
        """Return the loop over the tiles of a team."""
        chunks, team = self.ring.extent, _variable("team")
        cursor = self.new([2], "int32", "place", "local")

        def of_tile(tile: tvm.ir.Var) -> tirx.Stmt:
            of_team = self.slots, team
            alone = self.teams == 1
            begin = [] if alone else [self.call("turn", *of_team, tile)]
            end = [] if alone else [self.call("next", *of_team)]
            first = self.slot_and_turn((tile * self.teams + team) * chunks)
            at_first = [tirx.BufferStore(cursor, value, [index]) for index, value in enumerate(first)]
            last = [self.release(cursor, 0, 1)] if self.is_asynchronous else []
            if SETTLED in self.ring.annotations:
                settled = _with_product(self.product, self.ring.annotations[SETTLED])
                last.append(substitute(with_buffers(settled, self.rings, cursor[0]), {self.ring.loop_var: chunks - 1}))
            ring = _sequence(
                *begin, *at_first, self.loop_over_chunks(partial(self.multiply_chunk, cursor)), *end, *last
            )

            def replaced(each: tirx.For) -> tirx.Stmt:
                return ring if SPECIALIZED in each.annotations else each

            stmt = tvm_ffi.structural_map(self.loop.body, (tirx.For, replaced))
            replacements = {}
            for old, dependent in self.written([stmt], self.loop.loop_var).items():
                axes = [*(axis for axis in dependent if axis), 0]  # a team has one buffer for all parts of a reduction
                shape = [1 if axis in axes else extent for axis, extent in enumerate(old.ty.shape)]
                if old.scope() != "local":
                    shape[0] = self.teams
                    shape[-2] += -shape[-2] % TILE_ROWS
                self.replaced.append(old)
                replacements[old] = self.new(shape, old.ty.dtype, f"{old.name}_of_team", old.scope()), axes
            return self.by_team(with_buffers(stmt, replacements, team))

        number = cuda_func_call(function("team"), self.threads, source_code=ROLES, return_type="int32")
        first, step = self.block + team * self.multiprocessors, self.teams * self.multiprocessors
        return _sequence(tirx.Bind(team, number), self.tiles(first, step, of_tile))

    def multiply_chunk(self, cursor: Any, ends_tap: bool) -> tirx.Stmt:
        """Return a team's statements for the chunk at (slot, turn), which include the step to the next chunk."""
        slot, turn = cursor[0], cursor[1]
        is_last = (slot == self.slots - 1).astype("int32")  # without branches, which separate products to the compiler
        arrived = self.call("arrived", slot, turn)
        product = _with_product(self.product, self.ring.annotations[LAST_PRODUCT][1:]) if ends_tap else self.product
        product = with_buffers(product, self.rings, slot)
        next_turn = tirx.BufferStore(cursor, turn + is_last, [1])
        next_slot = tirx.BufferStore(cursor, slot + 1 - is_last * self.slots, [0])
        if self.is_asynchronous:
            return _sequence(arrived, product, self.release(cursor, 1, self.ring.loop_var > 0), next_turn, next_slot)
        return _sequence(arrived, product, next_turn, next_slot, self.release(cursor, 0, 1))

    def release(self, cursor: Any, *pending: Any) -> tirx.Stmt:
        """Return the statement that declares the slot before the current one empty, if it was used."""
        previous = cursor[0] - 1 + (cursor[0] == 0).astype("int32") * self.slots
        return self.call("release", previous, *pending)

    def slot_and_turn(self, number: Any) -> tuple[Any, Any]:
        return tirx.floormod(number, self.slots), tirx.floordiv(number, self.slots)

    def new(self, shape: list[Any], dtype: Any, name: str, scope: str) -> Any:
        buffer = tirx.decl_buffer(shape, dtype, name, scope=scope)
        self.buffers.append(buffer)
        return buffer

    def written(self, stmts: list[tirx.Stmt], *variables: tvm.ir.Var) -> dict[Any, list[int]]:
        """Return the buffers of a block that statements store to, with the axes whose indices depend on `variables`."""
        axes_of: dict[Any, list[int]] = {}

        def note(realize: SBlockRealize) -> None:
            values = {each.var: value for each, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
            for region in realize.block.writes:
                used = [set(undefined_vars(substitute(each.min, values))) for each in region.region]
                if region.source in self.original_buffers:
                    axes_of[region.source] = [axis for axis, each in enumerate(used) if not each.isdisjoint(variables)]

        for stmt in stmts:
            tvm_ffi.structural_walk(stmt, [(SBlockRealize, note)])
        return axes_of

    def by_team(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """Return a statement with its loops over threads replaced by the number of a thread in its team."""

        def renumbered(loop: tirx.For) -> tirx.Stmt:
            if _tag(loop) != "threadIdx.x":
                return loop
            return substitute(loop.body, {loop.loop_var: tirx.floormod(self.thread, self.threads)})

        return tvm_ffi.structural_map(stmt, (tirx.For, renumbered))


def _loops(stmt: Any) -> list[tirx.For]:
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(stmt, [(tirx.For, loops.append)])
    return loops


def _copied(stmt: tirx.Stmt) -> SBlockRealize:
    """Return the block of a copy."""
    blocks: list[SBlockRealize] = []

    def note(realize: SBlockRealize) -> None:
        if BULK in realize.block.annotations:
            blocks.append(realize)

    tvm_ffi.structural_walk(stmt, [(SBlockRealize, note)])
    return blocks[0]


def _sequence(*steps: tirx.Stmt) -> tirx.Stmt:
    return tirx.SeqStmt(list(steps))


def _registers(role: str, count: int) -> SBlockRealize:
    """Return the statement that gives each thread in the warps of a role `count` registers."""
    return _call([], role, parameters=[count])


def _with_product(stmt: tirx.Stmt, function: list[Any]) -> tirx.Stmt:
    """Return a statement whose product calls another function, given by its name and source."""

    def replaced(block: SBlock) -> SBlock:
        unchanged = block.iter_vars, block.reads, block.writes, block.name_hint, block.body
        return SBlock(*unchanged, annotations={PRODUCT: function}) if PRODUCT in block.annotations else block

    return tvm_ffi.structural_map(stmt, (SBlock, replaced))


def _serial(variable: tvm.ir.Var, count: int, body: tirx.Stmt) -> tirx.For:
    """Return a loop that is not unrolled: products stay in flight from one iteration to the next."""
    return tirx.For(variable, 0, count, tirx.ForKind.SERIAL, body, None, {"disable_unroll": True})


def _tag(loop: tirx.For) -> str:
    return str(loop.thread_binding.thread_tag) if loop.kind == tirx.ForKind.THREAD_BINDING else ""


def _variable(name: str) -> tvm.ir.Var:
    return tvm.ir.Var(name, tvm.ir.PrimType("int32"))


def _bound(var: tvm.ir.Var, extent: Any, tag: str, body: tirx.Stmt) -> tirx.For:
    axis = tirx.IterVar(tvm.ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _if(condition: Any, body: tirx.Stmt, annotations: dict[str, Any] | None = None) -> tirx.Stmt:
    """Return a loop that runs once if a condition holds, and else not at all: TVM puts no barriers behind tests."""
    return tirx.For(_variable("own"), 0, condition.astype("int32"), tirx.ForKind.SERIAL, body, None, annotations)


def _whole(buffer: Any) -> TensorRegion:
    return TensorRegion(buffer, [tvm.ir.Range.from_min_extent(0, extent) for extent in buffer.ty.shape], buffer.ty)


def _call(memory: list[TensorRegion], name: str, *arguments: Any, parameters: Sequence[int] = ()) -> SBlockRealize:
    """Return a block that calls a function of `roles.cuh` with the addresses of its operands in shared memory."""
    operands = [Operand(region) for region in memory]
    pointers = [each.pointer for each in operands]
    call = tirx.Evaluate(cuda_func_call(function(name, *parameters), *pointers, *arguments, source_code=ROLES))
    block = SBlock([], memory, memory, name, call, match_buffers=[each.match for each in operands])
    return SBlockRealize([], tirx.const(True, "bool"), block)
