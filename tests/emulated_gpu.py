"""An emulator of lowered CUDA kernels for tensor cores: all threads of a grid step by step, in NumPy.

It runs what TVM lowers for the GPU, with the functions of `tvmconv.lowering.intrinsics`, and so sees what a serial twin
does not: the places of copies in shared memory, the order of commits, waits and barriers, and the registers that sums
are in. A copy arrives when its group has been waited for, and what is there until then is NaN. An access to shared
memory that no barrier parts from a conflicting one raises `HazardError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import erf, prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from emulated_memory import NEVER, VECTOR, Copies, HazardError, Memory, Pointer
from tvm import tirx

from tvmconv.dtypes import STORAGE_TYPES
from tvmconv.substitution import evaluated

VECTORS = 8
"""The vectors of a row of a chunk."""

WARP = 32
"""The threads of a warp."""

WARPGROUP = 4
"""The warps that work on one `wgmma`."""

BLOCKS, THREADS = (tuple(f"{kind}Idx.{axis}" for axis in "xyz") for kind in ("block", "thread"))
"""The axes of a grid and of a block, the innermost first."""

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Min": np.minimum, "Max": np.maximum, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal, "And": np.logical_and, "Or": np.logical_or,
    "BitwiseAnd": np.bitwise_and, "BitwiseXor": np.bitwise_xor, "Div": np.divide,
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fabs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "floor": np.floor,
    "round": np.rint, "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: np.vectorize(erf, [np.asarray(x).dtype])(x),
}  # fmt: skip
"""The functions of one number or two."""


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """Return the type of a number, of a vector that of its lanes."""
    name, _, _ = str(dtype).partition("x")
    return np.dtype(STORAGE_TYPES[name].numpy if name in STORAGE_TYPES else name)


class Emulator:
    """The run of a kernel on arrays, which are the operands by name; others are made, full of NaN."""

    def __init__(self, func: tirx.PrimFunc, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.values: dict[Any, Any] = {}
        self.memories: dict[Any, Any] = {param: param.name.removesuffix("_ptr") for param in func.params}
        self.extents = dict.fromkeys((*BLOCKS, *THREADS), 1)
        self.barriers = 0
        self.copies, self.groups, self.running = Copies(), list[Copies](), list[Callable[[], None]]()
        self.copied: list[int] = []
        """The number of vectors in each group of copies of a block, all of them to different places."""
        self.under_way: list[int] = []
        """The number of groups of copies under way at each wait for one."""
        self.shared_bytes = 0
        self.bytes_read = 0
        """The bytes that all threads load from operands."""
        _collect_extents(func.body, self.extents)
        self.blocks, self.threads = (prod(map(self.extents.__getitem__, axes)) for axes in (BLOCKS, THREADS))
        lane = np.arange(self.blocks * self.threads)[:, None]
        self.block, self.lane, self.active = lane // self.threads, lane, np.ones_like(lane, bool)
        self.index = {**self.indices(BLOCKS, self.block), **self.indices(THREADS, lane % self.threads)}
        self.run(func.body)
        assert not self.running, "a product is not waited for"
        assert not self.groups, "copies are not waited for"

    def indices(self, axes: tuple[str, ...], number: np.ndarray) -> dict[str, np.ndarray]:
        """Return the index of each thread on axes, the first of which is the innermost, by its number on them."""
        found = {}
        for axis in axes:
            found[axis], number = number % self.extents[axis], number // self.extents[axis]
        return found

    # Statements

    def run(self, stmt: Any) -> None:
        getattr(self, f"run_{type(stmt).__name__}")(stmt)

    def run_SeqStmt(self, stmt: Any) -> None:  # noqa: N802 - the names of TVM's nodes
        for each in stmt.seq:
            self.run(each)

    def run_AttrStmt(self, stmt: Any) -> None:  # noqa: N802
        if stmt.attr_key == "thread_extent":
            self.values[stmt.node.var] = self.index[str(stmt.node.thread_tag)]
        self.run(stmt.body)

    def run_DeclBuffer(self, stmt: Any) -> None:  # noqa: N802
        source = stmt.data.args[0] if isinstance(stmt.data, tvm.ir.Call) else stmt.data
        memory = self.memories[source]
        if isinstance(memory, str):
            dtype = numpy_type(stmt.buffer.dtype)
            size = prod(evaluated(each, {}) for each in stmt.buffer.shape) * dtype.itemsize
            array = self.arrays.setdefault(memory, np.full(size, 255, np.uint8))
            memory = Memory(array.reshape(-1).view(np.uint8)[None], np.zeros_like(self.lane))
        self.memories[stmt.buffer] = memory

    def run_AllocBuffer(self, stmt: Any) -> None:  # noqa: N802
        size = prod(int(extent) for extent in stmt.buffer.shape) * tvm.DataType(stmt.buffer.dtype).itemsize
        shared = str(stmt.buffer.scope()).startswith("shared")
        row = self.block if shared else self.lane
        self.shared_bytes += size if shared else 0
        self.memories[stmt.buffer] = Memory(np.full((row[-1, 0] + 1, size), 255, np.uint8), row, shared)

    def run_Bind(self, stmt: Any) -> None:  # noqa: N802
        self.values[stmt.var] = self.value(stmt.value)

    def run_For(self, stmt: Any) -> None:  # noqa: N802
        first, extent = _uniform(self.value(stmt.min)), _uniform(self.value(stmt.extent))
        for number in range(first, first + extent):
            self.values[stmt.loop_var] = np.int32(number)
            self.run(stmt.body)

    def run_IfThenElse(self, stmt: Any) -> None:  # noqa: N802
        condition = self.value(stmt.condition)
        self.where(condition, lambda: self.run(stmt.then_case))
        if stmt.else_case is not None:
            self.where(np.logical_not(condition), lambda: self.run(stmt.else_case))

    def run_Evaluate(self, stmt: Any) -> None:  # noqa: N802
        self.value(stmt.value)

    def run_BufferStore(self, stmt: Any) -> None:  # noqa: N802
        pointer, value = self.pointer(stmt.buffer, stmt.indices), self.value(stmt.value)
        memory, size = pointer.memory, pointer.dtype.itemsize
        active, address, row, value = np.broadcast_arrays(self.active, pointer.address, memory.row, value)
        row, address = row[active], address[active]
        self.before_write(memory, row, address)
        memory.bytes.view(pointer.dtype)[row, address // size] = value[active].astype(pointer.dtype)
        memory.written[row, address // VECTOR] = self.barriers

    # Expressions: arrays of one row for each thread, with a column for each lane of a vector, or what broadcasts to it

    def value(self, expr: Any) -> Any:
        kind = type(expr).__name__
        if kind in OPERATIONS:
            return OPERATIONS[kind](self.value(expr.a), self.value(expr.b))
        return getattr(self, f"value_{kind}")(expr)

    def value_Var(self, expr: Any) -> Any:  # noqa: N802
        return self.values[expr]

    def value_IntImm(self, expr: Any) -> Any:  # noqa: N802
        return numpy_type(expr.ty.dtype).type(expr.value)

    value_FloatImm = value_IntImm  # noqa: N815

    def value_Cast(self, expr: Any) -> Any:  # noqa: N802
        with np.errstate(over="ignore"):  # of what threads have that are not active
            return np.asarray(self.value(expr.value)).astype(numpy_type(expr.ty.dtype))

    def value_Let(self, expr: Any) -> Any:  # noqa: N802
        self.values[expr.var] = self.value(expr.value)
        return self.value(expr.body)

    def value_Broadcast(self, expr: Any) -> Any:  # noqa: N802
        return self.value(expr.value)

    def value_Ramp(self, expr: Any) -> Any:  # noqa: N802
        return self.value(expr.base) + self.value(expr.stride) * np.arange(int(expr.lanes))[None]

    def value_Not(self, expr: Any) -> Any:  # noqa: N802
        return np.logical_not(self.value(expr.a))

    def value_Select(self, expr: Any) -> Any:  # noqa: N802
        return np.where(*map(self.value, (expr.condition, expr.true_value, expr.false_value)))

    def value_TensorLoad(self, expr: Any) -> Any:  # noqa: N802
        pointer = self.pointer(expr.source, expr.indices)
        return self.load(pointer.memory, np.where(self.active, pointer.address, 0), pointer.dtype)

    def value_Call(self, expr: Any) -> Any:  # noqa: N802
        name, args = str(expr.op.name).removeprefix("tirx.").removeprefix("prim."), expr.args
        if name == "if_then_else":
            return self.chosen(*args)
        if name == "address_of":
            return self.pointer(args[0].source, args[0].indices)
        if name == "tvm_access_ptr":
            source = args[1].args[0] if isinstance(args[1], tvm.ir.Call) else args[1]
            dtype = numpy_type(args[0].ty.dtype)
            return Pointer(self.memories[source], self.value(args[2]) * dtype.itemsize + 0 * self.lane, dtype)
        if name == "tvm_storage_sync":
            return self.barrier()
        if name in FUNCTIONS:
            return FUNCTIONS[name](*map(self.value, args))
        if name == "reinterpret":
            return np.asarray(self.value(args[0])).view(numpy_type(expr.ty.dtype))
        if name == "tvm_warp_activemask":
            return np.uint32(2**WARP - 1)
        if name.startswith("tvm_warp_shuffle"):
            return self.shuffled(self.value(args[1]), self.value(args[2]), name.removeprefix("tvm_warp_"))
        assert name == "cuda.func_call", name
        function = str(args[0].value)
        given = [self.value(each) for each in args[1:-1]]
        if product := re.fullmatch(r"tvmconv_(w?g?mma)_(f16|bf16|tf32x[13]|s8|u8)_(\d+)x(\d+)", function):
            family, kind, *tiles = product.groups()
            goes_on = family == "wgmma" and not kind.startswith("tf32")
            return self.multiply(WARPGROUP if family == "wgmma" else 1, goes_on, [int(each) for each in tiles], *given)
        return getattr(self, function)(*given)

    def chosen(self, condition: Any, first: Any, second: Any) -> Any:
        """Return either value, of which each thread computes its own alone."""
        choice, results = self.value(condition), []
        for holds, expr in ((choice, first), (np.logical_not(choice), second)):
            before, self.active = self.active, self.active & holds
            results.append(self.value(expr))
            self.active = before
        return np.where(choice, *results)

    def shuffled(self, value: Any, number: Any, way: str) -> np.ndarray:
        """Return the value that a lane of each thread's warp has.

        It is the one with a number, the one so many lanes below, or the one whose number differs in these bits.
        """
        assert self.active.all()
        lane = np.arange(WARP)
        value, number = (np.broadcast_to(each, self.lane.shape).reshape(-1, WARP) for each in (value, number))
        below = np.where(lane + number < WARP, lane + number, lane)
        source = {"shuffle": number % WARP, "shuffle_down": below, "shuffle_xor": lane ^ number}[way]
        return np.take_along_axis(value, source, axis=1).reshape(self.lane.shape)

    def pointer(self, buffer: Any, indices: Any) -> Pointer:
        (index,) = indices
        dtype, lanes = numpy_type(buffer.dtype), tvm.DataType(buffer.dtype).lanes
        place = self.value(index) * lanes + np.arange(lanes)[None] if lanes > 1 else self.value(index)
        return Pointer(self.memories[buffer], place * dtype.itemsize + 0 * self.lane, dtype)

    def where(self, condition: Any, then: Callable[[], None]) -> None:
        before, self.active = self.active, self.active & condition
        if self.active.any():
            then()
        self.active = before

    # Memory

    def load(self, memory: Memory, address: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        row, size = memory.row, memory.bytes.shape[1]
        if (address < 0).any() or (address + dtype.itemsize > size).any():
            raise IndexError(f"a read of bytes {address.min()} to {address.max()} of {size}")
        if memory.shared and (memory.written[row, address // VECTOR] >= self.barriers).any():
            raise HazardError("a read of what has not arrived for all threads")
        if memory.shared:
            memory.read[row, address // VECTOR] = self.barriers
        if len(memory.bytes) == 1:
            self.bytes_read += int(np.broadcast_to(self.active, address.shape).sum()) * dtype.itemsize
        loaded: np.ndarray = memory.bytes.view(dtype)[row, address // dtype.itemsize]
        return loaded

    def before_write(self, memory: Memory, row: np.ndarray, address: np.ndarray) -> None:
        if (address < 0).any() or (address >= memory.bytes.shape[1]).any():
            raise IndexError(f"a write of bytes {address.min()} to {address.max()} of {memory.bytes.shape[1]}")
        if memory.shared and (memory.read[row, address // VECTOR] >= self.barriers).any():
            raise HazardError("a write to where threads may still read")

    def barrier(self) -> None:
        assert self.active.all(), "a barrier that threads leave out"
        self.barriers += 1

    # The functions of `tvmconv.lowering.intrinsics`

    tvmconv_barrier = barrier

    def tvmconv_copy(self, target: Pointer, source: Pointer, inside: Any) -> None:
        assert self.active.all()
        memory, origin = target.memory, source.memory
        inside = np.broadcast_to(inside, self.lane.shape).astype(bool)
        start = np.where(inside, source.address, 0)
        for each in (target.address, start):
            assert not (each % VECTOR).any(), "a copy that is not aligned"
        span = np.arange(VECTOR)[None]
        if (start < 0).any() or (start + VECTOR > origin.bytes.shape[1]).any():
            raise IndexError("a copy from past the operand")
        data = np.where(inside, origin.bytes[origin.row, start + span], 0).astype(np.uint8)
        self.before_write(memory, memory.row, target.address)
        memory.bytes[memory.row, target.address + span] = 255
        memory.written[memory.row, target.address // VECTOR] = NEVER
        self.copies.places.append((memory, memory.row, target.address, data))

    def tvmconv_commit(self) -> None:
        places = [np.stack([row[:, 0], address[:, 0]]) for _, row, address, _ in self.copies.places]
        distinct = np.unique(np.concatenate(places, axis=1), axis=1).shape[1]
        assert distinct == len(places) * self.lane.size, "a place is copied to twice"
        self.copied.append(distinct // self.blocks)
        self.groups.append(self.copies)
        self.copies = Copies()

    def tvmconv_ready(self, pending: Any) -> None:
        self.under_way.append(len(self.groups))
        while len(self.groups) > _uniform(pending):
            for memory, row, address, data in self.groups.pop(0).places:
                memory.bytes[row, address + np.arange(VECTOR)[None]] = data
                memory.written[row, address // VECTOR] = self.barriers
        self.barrier()

    tvmconv_ready_for_wgmma = tvmconv_ready

    def tvmconv_done(self, pending: Any) -> None:
        while len(self.running) > _uniform(pending):
            self.running.pop(0)()

    def multiply(
        self, width: int, goes_on: bool, tiles: list[int], sums: Pointer, rows: Pointer, *columns: Pointer
    ) -> None:
        """Add a product to sums: now, or when it is waited for. Its factors are 128 bytes a row, in permuted places.

        The second one may be in several numbers that add up to it. The instruction is one of `width` warps.
        """
        tiles_m, tiles_n = tiles
        i, j, two = np.arange(tiles_m)[None, :, None], np.arange(tiles_n)[None, :, None], np.arange(2)[None, None]
        first = rows.address[..., None] + (i * width * 2 + two) * 1024
        accesses = [(rows, self.vectors(rows, first))]
        for each in columns:
            accesses.append((each, self.vectors(each, each.address[..., None] + j * 1024 + two * 128)))
        if not goes_on:
            return self.add(sums, tiles, accesses)
        for pointer, address in accesses:
            pointer.memory.read[pointer.memory.row, address // VECTOR] = NEVER
        self.running.append(partial(self.add, sums, tiles, accesses))
        return None

    def vectors(self, pointer: Pointer, row: np.ndarray) -> np.ndarray:
        """Return the addresses of the vectors of rows, all in a line for each thread; they have to have arrived."""
        place = np.arange(VECTORS) ^ (row[..., None] >> 7 & 7)
        address = (row[..., None] + place * VECTOR).reshape(len(self.lane), -1)
        if (pointer.memory.written[pointer.memory.row, address // VECTOR] >= self.barriers).any():
            raise HazardError("a product of what has not arrived for all threads")
        return address

    def add(self, sums: Pointer, tiles: list[int], accesses: list[tuple[Pointer, np.ndarray]]) -> None:
        rows, *columns = [self.factor(pointer, address) for pointer, address in accesses]
        product = rows @ sum(columns).transpose(0, 2, 1)
        by_register = product.reshape(-1, tiles[0], 2, tiles[1], 2).transpose(0, 1, 3, 2, 4).reshape(len(self.lane), -1)
        first = int(_uniform(sums.address)) // 4
        # Sums of a chunk of integers are whole numbers that float32 holds.
        added = by_register.astype(sums.dtype)
        sums.memory.bytes.view(sums.dtype)[:, first : first + by_register.shape[1]] += added

    def factor(self, pointer: Pointer, address: np.ndarray) -> np.ndarray:
        """Return the rows of a factor for each thread, given the addresses of their vectors."""
        span = np.arange(0, VECTOR, pointer.dtype.itemsize)
        place = (address[..., None] + span).reshape(len(self.lane), -1)
        loaded = self.load(pointer.memory, place, pointer.dtype).astype(np.float32)
        return loaded.reshape(len(self.lane), address.shape[1] // VECTORS, -1)


def _uniform(value: Any) -> int:
    """Return a number that has to be the same in all threads."""
    first, *others = np.unique(value)
    assert not others, "control flow that differs between threads"
    return int(first)


def _collect_extents(stmt: Any, extents: dict[str, int]) -> None:
    def note(attribute: tirx.AttrStmt) -> None:
        if attribute.attr_key == "thread_extent":
            extents[str(attribute.node.thread_tag)] = evaluated(attribute.value, {})

    tvm_ffi.structural_walk(stmt, [(tirx.AttrStmt, note)])
