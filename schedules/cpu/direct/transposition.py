"""A tensor intrinsic that transposes a small matrix in vector registers, in square blocks of a vector's lanes.

LLVM by itself moves one element at a time.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from ..vector_code import Bind, VectorCode, description


def has_transposition(rows: int, lanes: int) -> bool:
    """Return whether there is an intrinsic for a matrix of `rows` vectors of `lanes`."""
    return rows > 1 and lanes > 1 and lanes.bit_count() == 1


def transposition(rows: int, lanes: int, dtype: str = "float32") -> str:
    """Return the name of the intrinsic that copies a matrix of `rows` vectors of `lanes`, transposed."""
    name = f"tvmconv_transposition_{rows}x{lanes}_{dtype}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        described = _description(rows, lanes, dtype)
        TensorIntrin.register(name, described, _implementation(described, rows, lanes))
    return name


def _description(rows: int, lanes: int, dtype: str) -> PrimFunc:
    """Return the copy in plain loops."""
    strides = [tirx.Var(name, "int32") for name in ("s0", "s1", "t0", "t1")]
    a = tirx.decl_buffer((rows, lanes), dtype, "a", strides=strides[:2], offset_factor=1)
    b = tirx.decl_buffer((lanes, rows), dtype, "b", strides=strides[2:], offset_factor=1)
    return description((a, b), (lanes, rows), "SS", lambda i, j: ((i, j), a[j, i]))


def _implementation(described: PrimFunc, rows: int, lanes: int) -> PrimFunc:
    """Return the intrinsic's code: it transposes rows by the lanes of a vector at a time, then the remaining rows."""
    matrix, transposed = described.params
    code = VectorCode(f"{matrix.ty.dtype}x{lanes}")
    for first in range(0, rows, lanes):
        count = min(lanes, rows - first)
        vectors = [code.bind(matrix.vload([first + row, 0], code.vector_type)) for row in range(count)]
        vectors += [vectors[-1]] * (lanes - count)  # what comes of these is not stored
        for lane, vector in enumerate(_transposed(vectors, code.bind)):
            part = vector if count == lanes else tirx.Shuffle([vector], list(range(count)))
            code.statements.append(transposed.vstore([lane, first], part))
    return code.implementing(described)


def _transposed(vectors: list[tirx.Var], bind: Bind) -> list[tirx.Var]:
    """Return a square block transposed: vectors swap halves of their lanes, then quarters, and so on."""
    vectors, lanes = [*vectors], len(vectors)
    distance = lanes // 2
    while distance:
        for low in range(lanes):
            if low & distance:
                continue
            a, b = vectors[low], vectors[low + distance]
            for index, start in ((low, 0), (low + distance, distance)):
                # Lanes of a, then those of b, which Shuffle counts on from a's.
                chosen = [start + (lane & ~distance) + (lanes if lane & distance else 0) for lane in range(lanes)]
                vectors[index] = bind(tirx.Shuffle([a, b], chosen))
        distance //= 2
    return vectors
