"""A tensor intrinsic that transposes a small matrix in vector registers.

LLVM by itself moves one element at a time.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx import PrimFunc


def has_transposition(rows: int, lanes: int) -> bool:
    """Whether there is an intrinsic for a matrix of `rows` vectors of `lanes`."""
    return 1 < rows <= lanes and lanes.bit_count() == 1


def transposition(rows: int, lanes: int) -> str:
    """The name of the intrinsic that copies a float32 matrix of `rows` vectors of `lanes`, transposed."""
    name = f"tvmconv_transposition_{rows}x{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        description = _description(rows, lanes)
        TensorIntrin.register(name, description, _implementation(description, rows, lanes))
    return name


def _description(rows: int, lanes: int) -> PrimFunc:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]  # TVM has no types for it
    def description(a: T.handle, b: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        t0 = T.int32()
        t1 = T.int32()
        A = T.match_buffer(a, (rows, lanes), "float32", strides=[s0, s1], offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, rows), "float32", strides=[t0, t1], offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(A[0:rows, 0:lanes])
            T.writes(B[0:lanes, 0:rows])
            for i, j in T.grid(lanes, rows):
                with T.sblock("copy"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vj, vi]

    return description


def _implementation(description: PrimFunc, rows: int, lanes: int) -> PrimFunc:
    """Swaps blocks of half the lanes between vectors that are as far apart, then blocks of a quarter, and so on."""
    matrix, transposed = description.params
    vector_type = f"float32x{lanes}"
    statements: list[tirx.Stmt] = []

    def bind(value: tirx.PrimExpr) -> tirx.Var:
        vector = tirx.Var("vector", vector_type)
        statements.append(tirx.Bind(vector, value))
        return vector

    vectors = [bind(matrix.vload([row, 0], vector_type)) for row in range(rows)]
    vectors += [vectors[-1]] * (lanes - rows)  # what comes of these is not stored
    distance = lanes // 2
    while distance:
        for low in range(lanes):
            if low & distance:
                continue
            a, b = vectors[low], vectors[low + distance]
            for place, start in ((low, 0), (low + distance, distance)):
                # Lanes of a, then those of b, which Shuffle counts on from a's.
                chosen = [start + (lane & ~distance) + (lanes if lane & distance else 0) for lane in range(lanes)]
                vectors[place] = bind(tirx.Shuffle([a, b], chosen))
        distance //= 2
    for lane, vector in enumerate(vectors):
        part = vector if rows == lanes else tirx.Shuffle([vector], list(range(rows)))
        statements.append(transposed.vstore([lane, 0], part))
    block = description.body.block
    body = SBlock([], block.reads, block.writes, block.name_hint, tirx.SeqStmt(statements))
    return PrimFunc(description.params, SBlockRealize([], True, body))
