"""Arrays beside memory that nothing may touch: code that reads or writes past them dies at once."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from tvmconv.support import system


def guarded(array: np.ndarray[Any, Any], at_end: bool, alignment: int = 1) -> np.ndarray[Any, Any]:
    """Return a copy of an array that ends where memory without access begins, or begins where such memory ends.

    It begins at a multiple of `alignment` bytes, and so it may end up to that number of bytes before that memory. TVM's
    own instrumentation, `tirx.instrument_bound_checkers`, finds nothing in version 0.27.
    """
    inside = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, inside + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + mmap.PAGESIZE + inside):
        system.forbid(guard, mmap.PAGESIZE)
    offset = mmap.PAGESIZE + ((inside - array.nbytes) // alignment * alignment if at_end else 0)
    copy: np.ndarray[Any, Any] = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy
