"""Tensor intrinsics for the transforms of Winograd's convolution: `M D Mt` for a matrix M of constants, in vectors.

They are described by the sums of the definition. Their code multiplies by M from one side and then from the other, and
what belongs to a point and to its negative shares what both have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from tvmconv.compute.dense.winograd import Matrix, transformed, transforms

from ..vector_code import Bind, VectorCode, description

ROW, COLUMN, LANE, UNIT = "rci1"
"""The letters for the axes of an operand, as in "rc1i": its row, its column, one of length one, and its lane."""


def input_transform(outputs: int, lanes: int) -> str:
    """Return the name of the intrinsic for a tile of input, of `lanes` channels side by side."""
    return _registered("input", outputs, lanes, "rci", "rc11i")


def weight_transform(outputs: int, lanes: int) -> str:
    """Return the name of the intrinsic for the taps of `lanes` output channels, which become neighbours."""
    return _registered("weight", outputs, lanes, "i1rc", "rc1i")


def output_transform(outputs: int, lanes: int) -> str:
    """Return the name of the intrinsic for a tile of products' sums, of `lanes` channels side by side."""
    return _registered("output", outputs, lanes, "rc1i", "rci")


def _registered(kind: str, outputs: int, lanes: int, read: str, written: str) -> str:
    """Return the name of an intrinsic for one of the matrices, made once, that has operands of these axes."""
    name = f"tvmconv_winograd_{kind}_{outputs}x{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        matrix: Matrix = getattr(transforms(outputs), kind)
        described = _description(matrix, read, written, lanes)
        TensorIntrin.register(name, described, _implementation(described, matrix, read, written, lanes))
    return name


def _description(matrix: Matrix, read: str, written: str, lanes: int) -> PrimFunc:
    """Return the transform as one expression of an element."""
    rows, points = len(matrix), len(matrix[0])
    x_shape, y_shape = (_element_index(axes, size, size, lanes, 1) for axes, size in ((read, points), (written, rows)))
    x = tirx.decl_buffer(
        x_shape, "float32", "x", strides=_strides("x", len(x_shape)), data_alignment=4, offset_factor=1
    )
    y = tirx.decl_buffer(y_shape, "float32", "y", strides=_strides("y", len(y_shape)), offset_factor=1)

    def element(p: tirx.Var, q: tirx.Var, i: tirx.Var) -> tuple[tuple[Any, ...], tirx.PrimExpr]:
        return _element_index(written, p, q, i), transformed(matrix, p, q, _elements(x, read, i))

    return description((x, y), (rows, rows, lanes), "SSS", element)


def _elements(buffer: Any, axes: str, lane: tirx.PrimExpr) -> Callable[[int, int], tirx.PrimExpr]:
    """Return a function of the row and the column of an element."""
    return lambda row, column: buffer[_element_index(axes, row, column, lane)]


def _element_index(axes: str, row: Any, column: Any, lane: Any, unit: int = 0) -> tuple[Any, ...]:
    """Return the values for the axes of an operand."""
    values = {ROW: row, COLUMN: column, LANE: lane, UNIT: unit}
    return tuple(values[axis] for axis in axes)


def _strides(name: str, dimensions: int) -> list[tirx.PrimExpr]:
    """Return strides that are variables, except the last one, which is 1."""
    return [*(tirx.Var(f"{name}{axis}", "int32") for axis in range(dimensions - 1)), 1]


def _implementation(described: PrimFunc, matrix: Matrix, read: str, written: str, lanes: int) -> PrimFunc:
    """Return the intrinsic's code."""
    x, y = described.params
    rows, points = range(len(matrix)), range(len(matrix[0]))
    code = VectorCode(f"float32x{lanes}")

    def vector(row: int, column: int) -> tirx.PrimExpr:
        """Return the lanes of an element, which lie side by side where they are the last axis."""
        if read.endswith(LANE):
            return x.vload(_element_index(read, row, column, 0), code.vector_type)
        lanes_of = [x[_element_index(read, row, column, lane)] for lane in range(lanes)]
        return tirx.Shuffle(lanes_of, list(range(lanes)))

    half = []
    for s in points:
        column = [code.bind(vector(r, s)) for r in points]
        half.append(_multiplied(matrix, column, code.bind))
    for p in rows:
        for q, value in enumerate(_multiplied(matrix, [column[p] for column in half], code.bind)):
            code.statements.append(y.vstore(_element_index(written, p, q, 0), value))
    return code.implementing(described)


def _multiplied(matrix: Matrix, vectors: Sequence[tirx.PrimExpr], bind: Bind) -> list[tirx.PrimExpr]:
    """Return the matrix times a column of vectors; see `Transforms` for its order."""
    if len(matrix) < len(vectors):  # columns belong to points: sums and differences of each pair serve all rows
        values = [*vectors]
        for plus in range(1, len(vectors) - 1, 2):
            values[plus : plus + 2] = bind(vectors[plus] + vectors[plus + 1]), bind(vectors[plus] - vectors[plus + 1])
        return [bind(_combined(_of_pairs(row, number), values)) for number, row in enumerate(matrix)]
    first, *pairs, last = matrix
    results = [bind(_combined(first, vectors))]
    for row in pairs[::2]:
        even, odd = (
            bind(
                _combined([value if column % 2 == parity else Fraction(0) for column, value in enumerate(row)], vectors)
            )
            for parity in (0, 1)
        )
        results += [bind(even + odd), bind(even - odd)]
    return [*results, bind(_combined(last, vectors))]


def _of_pairs(row: Sequence[Fraction], power: int) -> list[Fraction]:
    """Return a row of the output's matrix for sums and differences: powers of a pair are equal, or differ in sign."""
    factors = [*row]
    for plus in range(1, len(row) - 1, 2):
        factors[plus : plus + 2] = (Fraction(0), row[plus]) if power % 2 else (row[plus], Fraction(0))
    return factors


def _combined(factors: Sequence[Fraction], vectors: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """Return the sum of the vectors times their factors, without those whose factor is zero."""
    total = None
    for factor, vector in zip(factors, vectors, strict=True):
        if factor:
            term = vector if factor == 1 else vector * tirx.const(float(factor), vector.ty.dtype)
            total = term if total is None else total + term
    return total
