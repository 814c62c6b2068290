"""The functions of `schedules.cuda.attention.fragments` on an emulated machine: fragments of matrices in registers.

They are those of the PTX ISA: what a lane has of a matrix, and in which register.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.emulated.machine import WARP, Machine
from tests.emulated.memory import VECTOR, Pointer
from tvmconv.problem.dtypes import STORAGE_TYPES

TYPES = {"F16": "float16", "BF16": "bfloat16", "TF32": "float32"}

CUT_OFF, HALF_UNIT = np.uint32(0x1FFF), np.uint32(0x1000)
"""The bits of a float32 number that a TF32 number lacks, and half of what the last one that it has stands for."""

LANE = np.arange(WARP)


def fragment_function(machine: Machine, name: str, parameters: list[str]) -> Callable[..., Any] | None:
    """Return what a function of a name and template parameters does; None for a name of no such function."""
    if name == "store_matrices":
        return partial(_store_matrices, machine, *map(int, parameters))
    if name in ("mma", "pair"):
        dtype = np.dtype(STORAGE_TYPES[TYPES[parameters[0]]].numpy)
        return partial(_multiply, machine, dtype) if name == "mma" else partial(_pair, dtype)
    found: dict[str, Callable[..., Any]] = {
        "load_four": partial(_load_matrices, machine, parameters == ["1"]),
        "word": lambda pointer: machine.load(pointer.memory, pointer.address, np.dtype(np.uint32)),
        "word_of": lambda number: number.astype(np.float32).view(np.uint32),
        "store_words": partial(_store_words, machine),
        "load_columns": partial(_load_columns, machine),
        "to_tf32": _nearest,
        "in_parts": partial(_in_parts, machine),
        "rest_of": lambda bits: _rest(bits, bits & ~CUT_OFF),
    }
    return found.get(name)


def _registers(machine: Machine, pointer: Pointer, count: int, dtype: Any = np.uint32) -> np.ndarray:
    """Return so many registers from an address on, of a type with 32 bits: (warps, lanes, count)."""
    found = machine.load(pointer.memory, pointer.address[:, :1] + 4 * np.arange(count), np.dtype(dtype))
    return found.reshape(-1, WARP, count)


def _set_registers(machine: Machine, pointer: Pointer, values: np.ndarray) -> None:
    """Set the registers of active threads: (warps, lanes, count)."""
    values = values.reshape(len(machine.lane), -1)
    address = pointer.address[:, :1] + 4 * np.arange(values.shape[1])
    machine.store(Pointer(pointer.memory, address, values.dtype), values)


def _of_whole_warps(machine: Machine) -> None:
    active = machine.active.reshape(-1, WARP)
    assert (active.all(1) == active.any(1)).all(), "an instruction of a warp that some of its threads leave out"


def _store_matrices(machine: Machine, count: int, row_bytes: int, tile: Pointer, registers: Pointer) -> None:
    """Store so many pairs of matrices of half precision transposed: their columns become rows of a tile.

    A thread of eight by four has pairs of neighbouring columns of a row of the first matrix of each pair, then those of
    the second ones.
    """
    _of_whole_warps(machine)
    words = _registers(machine, registers, 2 * count).reshape(-1, 2 * count)
    row, column = machine.lane % WARP // 4, machine.lane % 4 * 2
    first = tile.address[:, :1] - column * row_bytes - 2 * row
    assert not (first[machine.active] % VECTOR).any(), "a row that is not aligned"
    assert row_bytes % VECTOR == 0, "a row that is not aligned"
    matrix, pair, element = np.meshgrid(np.arange(2), np.arange(count), np.arange(2), indexing="ij")
    offset = ((pair * 8 + element) * row_bytes + matrix * 16).reshape(1, -1)
    address = first + column * row_bytes + 2 * row + offset
    machine.store(Pointer(tile.memory, address, np.dtype(np.uint16)), np.ascontiguousarray(words).view(np.uint16))


def _load_matrices(machine: Machine, transposed: bool, target: Pointer, row: Pointer) -> None:
    """Load four matrices of eight rows of 16 bytes, whose addresses are those of eight lanes each."""
    _of_whole_warps(machine)
    address = np.where(machine.active, row.address, row.address.min())
    assert not (address % VECTOR).any(), "a row that is not aligned"
    rows = machine.load(row.memory, address, np.dtype((np.void, VECTOR))).view(np.uint16).reshape(-1, 4, 8, 8)
    matrices = rows.swapaxes(2, 3) if transposed else rows
    pairs = matrices[:, :, LANE[:, None] // 4, LANE[:, None] % 4 * 2 + np.arange(2)]
    words = np.ascontiguousarray(pairs).view(np.uint32)[..., 0]
    _set_registers(machine, target, words.swapaxes(1, 2))


def _multiply(machine: Machine, dtype: np.dtype[Any], sums: Pointer, first: Pointer, second: Pointer) -> None:
    """Add a product of 16 rows and 8 columns, of 32 bytes each, to sums in float32."""
    _of_whole_warps(machine)
    a, b = (_factor(_registers(machine, each, count), dtype) for each, count in ((first, 4), (second, 2)))
    c = _registers(machine, sums, 4, np.float32)
    warps, line, own = len(c), LANE[:, None] // 4, a.shape[-1] // 4
    column = LANE[:, None] % 4 * own + np.arange(own)
    rows, columns = (np.empty((warps, size, 8 * own), np.float32) for size in (16, 8))
    for register in range(4):
        registers = slice(register * own, register * own + own)
        rows[:, line + register % 2 * 8, column + register // 2 * 4 * own] = a[..., registers]
    for register in range(2):
        columns[:, line, column + register * 4 * own] = b[..., register * own : register * own + own]
    pair = LANE[:, None] % 4 * 2 + np.arange(2)
    with np.errstate(invalid="ignore", over="ignore"):
        product = rows @ columns.swapaxes(1, 2)
        added = [c[..., each * 2 : each * 2 + 2] + product[:, line + each * 8, pair] for each in range(2)]
    _set_registers(machine, sums, np.concatenate(added, -1))


def _factor(registers: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the numbers of a factor, of one in float32 those whose last bits are cut off."""
    return (registers & ~CUT_OFF if dtype == np.float32 else registers).view(dtype)


def _load_columns(machine: Machine, target: Pointer, row: Pointer, following: Pointer) -> None:
    """Load the words of two rows in a column, and in the eighth one behind it."""
    found = []
    for each in (row, following):
        address = np.where(machine.active, each.address[:, :1], each.address.min())
        assert not (address % 4).any(), "words that are not aligned"
        found.append(machine.load(each.memory, address + np.array([0, 32]), np.dtype(np.uint32)))
    _set_registers(machine, target, np.stack(found, -1))


def _nearest(bits: np.ndarray) -> np.ndarray:
    """Return the nearest TF32 number, of two the larger one."""
    return bits.astype(np.uint32) + HALF_UNIT & ~CUT_OFF


def _in_parts(machine: Machine, large: Pointer, small: Pointer, bits: np.ndarray) -> None:
    found = _nearest(bits)
    machine.store(large, found)
    machine.store(small, _rest(bits, found))


def _rest(bits: np.ndarray, large: np.ndarray) -> np.ndarray:
    """Return what a number is more than its large part."""
    with np.errstate(invalid="ignore"):  # of what threads have that are not active
        rest: np.ndarray = bits.view(np.float32) - large.view(np.float32)
    return rest.view(np.uint32)


def _store_words(machine: Machine, target: Pointer, first: np.ndarray, second: np.ndarray) -> None:
    assert not (target.address[machine.active] % 8).any(), "a store that is not aligned"
    _set_registers(machine, target, np.concatenate([first, second], -1))


def _pair(dtype: np.dtype[Any], first: Any, second: Any) -> np.ndarray:
    both = np.concatenate(np.broadcast_arrays(first, second), -1)
    return both.astype(dtype).view(np.uint32)


def reciprocal(x: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):  # of threads that are not active, too
        return np.float32(1) / x
