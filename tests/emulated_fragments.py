"""The functions of `tvmconv.network.gpu.fragments` on an emulated machine: fragments of matrices in a warp's registers.

They are those of the PTX ISA: what a lane has of a matrix, and in which register.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from emulated_machine import WARP, Machine
from emulated_memory import VECTOR, Pointer

from tvmconv.dtypes import STORAGE_TYPES

TYPES = {"f16": "float16", "bf16": "bfloat16"}

LANE = np.arange(WARP)


def fragment_function(machine: Machine, name: str) -> Callable[..., Any] | None:
    """Return what a function of a name does; None for a name of no such function."""
    name = name.removeprefix("tvmconv_")
    operation, _, kind = name.rpartition("_")
    if kind in TYPES and operation in ("mma", "pair"):
        dtype = np.dtype(STORAGE_TYPES[TYPES[kind]].numpy)
        return partial(_multiply, machine, dtype) if operation == "mma" else partial(_pair, dtype)
    found: dict[str, Callable[..., Any]] = {
        "load_four": partial(_load_matrices, machine, False),
        "load_transposed": partial(_load_matrices, machine, True),
        "word": lambda pointer: machine.load(pointer.memory, pointer.address, np.dtype(np.uint32)),
        "word_of": lambda number: number.astype(np.float32).view(np.uint32),
        "store_words": partial(_store_words, machine),
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
    """Add a product of 16x16 and 16x8 numbers to sums in float32."""
    _of_whole_warps(machine)
    a, b = (_registers(machine, each, count).view(dtype) for each, count in ((first, 4), (second, 2)))
    c = _registers(machine, sums, 4, np.float32)
    warps, line, pair = len(c), LANE[:, None] // 4, LANE[:, None] % 4 * 2 + np.arange(2)
    rows, columns = (np.empty((warps, size, 16), np.float32) for size in (16, 8))
    for register in range(4):
        rows[:, line + register % 2 * 8, pair + register // 2 * 8] = a[..., register * 2 : register * 2 + 2]
    for register in range(2):
        columns[:, line, pair + register * 8] = b[..., register * 2 : register * 2 + 2]
    with np.errstate(invalid="ignore", over="ignore"):
        product = rows @ columns.swapaxes(1, 2)
        added = [c[..., each * 2 : each * 2 + 2] + product[:, line + each * 8, pair] for each in range(2)]
    _set_registers(machine, sums, np.concatenate(added, -1))


def _store_words(machine: Machine, place: Pointer, first: np.ndarray, second: np.ndarray) -> None:
    assert not (place.address[machine.active] % 8).any(), "a store that is not aligned"
    _set_registers(machine, place, np.concatenate([first, second], -1))


def _pair(dtype: np.dtype[Any], first: Any, second: Any) -> np.ndarray:
    both = np.concatenate(np.broadcast_arrays(first, second), -1)
    return both.astype(dtype).view(np.uint32)


def reciprocal(x: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):  # of threads that are not active, too
        return np.float32(1) / x
