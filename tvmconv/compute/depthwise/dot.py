"""Depthwise convolution of integers, as sums of products of a few neighbouring columns at a time.

`O[n, c, h, w] = sum over r, s of X[n, c, h*sh + r*dh, w*sw + s] * F[c, r, s] - zero * sum over r, s of F[c, r, s]`,
where X is x in the type of an instruction's first factor, and zero the number in it that stands for zero.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.layout import data_layout
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import DotInstruction

from ..dense.dot import as_term, padded_factors, zero_of
from ..dense.packing import weighted_zero
from ..epilogue import epilogue, epilogue_operands


def row_instructions(workload: ConvWorkload, terms: int) -> int:
    """Return the number of instructions for a row of the kernel, of `terms` taps each."""
    return -(-workload.kernel[1] // terms)


def neighbours(workload: ConvWorkload, terms: int) -> int:
    """Return the number of adjacent outputs that are computed from the same columns: these have all their windows."""
    return (row_instructions(workload, terms) * terms - workload.kernel[1]) // workload.stride[1] + 1


def depthwise_dot(workload: ConvWorkload, instruction: DotInstruction, tile: tuple[int, int]) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "packed", "offsets", "depthwise", "sums" and "output".

    Returns the operands in the order of `workload.operands`. "pad" is x as factors, in blocks of the instruction's
    lanes, with the number that stands for zero around planes. "packed" has each row of a filter once for each of the
    neighbouring outputs that are computed from the same columns: shifted to that output's window, with zeros around
    it. "offsets", (K,), is there where the number that stands for zero is not 0. `tile` rounds the rows and columns of
    "depthwise" up to whole tiles; the columns of a tile are a multiple of `neighbours`.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.storage.weight, name="w")
    operands = epilogue_operands(workload)
    lanes, terms = instruction.lanes, instruction.terms
    steps, side_by_side = row_instructions(workload, terms), neighbours(workload, terms)
    rows, columns = (-(-size // step) * step for size, step in zip(workload.output_size, tile, strict=True))
    (sh, sw), dh, (kernel_rows, kernel_columns) = workload.stride, workload.dilation[0], workload.kernel
    blocks, windows = workload.out_channels // lanes, columns // side_by_side
    size = workload.read_by((rows, 1))[0], (windows - 1) * side_by_side * sw + steps * terms
    source = padded_factors(x, workload, instruction, data_layout(f"NCHW{lanes}c"), size, channels=1)

    def weight(b: tirx.Var, o: tirx.Var, r: tirx.Var, g: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
        s = g * terms + j - o * sw
        zero = tirx.const(0, instruction.second)
        return tirx.if_then_else(tirx.all(s >= 0, s < kernel_columns), w[b * lanes + i, 0, r, s], zero)

    packed = te.compute((blocks, side_by_side, kernel_rows, steps, lanes, terms), weight, name="packed")
    r, g, j = (
        te.reduce_axis((0, size), name=name) for name, size in zip("rgj", (kernel_rows, steps, terms), strict=True)
    )

    def accumulate(n: tirx.Var, b: tirx.Var, h: tirx.Var, v: tirx.Var, o: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        element = source[n, b, h * sh + r * dh, v * side_by_side * sw + g * terms + j, i]
        factors = (element, instruction.first), (packed[b, o, r, g, i, j], instruction.second)
        first, second = (as_term(factor, dtype, instruction.sums) for factor, dtype in factors)
        return te.sum(first * second, axis=[r, g, j])

    accumulated = te.compute((workload.batch, blocks, rows, windows, side_by_side, lanes), accumulate, name="depthwise")
    zero = zero_of(workload, instruction.first)
    offsets = weighted_zero(w, workload, zero) if zero else None

    def summed(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        y = accumulated[n, k // lanes, h, v // side_by_side, v % side_by_side, k % lanes]
        return y if offsets is None else y - offsets[k]

    sums = te.compute((workload.batch, workload.out_channels, rows, columns), summed, name="sums")
    return [x, w, *operands.values(), epilogue(sums, workload, operands)]
