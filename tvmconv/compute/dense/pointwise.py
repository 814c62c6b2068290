"""1x1 convolution over planes as rows of pixels: `O[n, k, p] = sum over c of X[n, c, p] * F[k, c]`.

c runs over the C / groups input channels of the group that k belongs to.
"""

from __future__ import annotations

from math import prod

from msgspec import structs
from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from .packing import in_groups, packed_weight


def pointwise(workload: ConvWorkload, block: int = 1, vectors: int = 1, lanes: int = 1) -> list[te.Tensor]:
    """Return the TE definition, in the stages "packed", "pointwise", "pixels", "groups" if there are any, "output".

    Returns the operands in the order of `workload.operands`, with a plane's rows as one: x (N, C, 1, H * W), w (K, C /
    groups, 1, 1), the epilogue's operands, and the output (N, K, 1, H * W). Products are summed in float32.

    "pointwise" has a plane's pixels in vectors of `lanes`, their number rounded up to a multiple of `vectors`, so that
    a schedule that computes tile by tile needs no bounds test in its inner loops. A vector that would reach beyond the
    plane, which has to have at least `lanes` pixels, is moved back to end where the plane ends. "packed" is the weight
    in blocks of `block` output channels.

    A plane whose size is known only when the kernel runs is in T tiles of `vectors * lanes` pixels, where T is a
    variable: x is (N, C, T, vectors * lanes). Lowering maps the tiles to the plane, the last one so that it ends where
    the plane ends (`lowering.open_sizes.pixels.with_open_planes`).
    """
    plane = prod(workload.output_size)
    if isinstance(plane, int):
        row = structs.replace(workload, height=1, width=plane)
    else:
        plane = vectors * lanes
        row = structs.replace(workload, height=tirx.Var("tiles", "int32"), width=plane)
    x = te.placeholder(row.x_shape, row.dtype, name="x")
    w = te.placeholder(row.w_shape, row.dtype, name="w")
    sum_type = workload.storage.sums
    operands = epilogue_operands(row)
    count = -(-plane // (lanes * vectors)) * vectors
    packed = packed_weight(w, row, block)
    channels = int(packed.shape[0]) * block
    c = te.reduce_axis((0, row.w_shape[1]), name="c")

    def first(vector: tirx.PrimExpr) -> tirx.PrimExpr:
        return vector * lanes if count * lanes == plane else te.min(vector * lanes, plane - lanes)

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var, lane: tirx.Var) -> tirx.PrimExpr:
        channel = c if row.groups == 1 else k // (channels // row.groups) * w.shape[1] + c
        element = x[n, channel, h, first(v) + lane].astype(sum_type)
        return te.sum(element * packed[k // block, c, 0, 0, k % block].astype(sum_type), axis=[c])

    accumulated = te.compute((row.batch, channels, row.height, count, lanes), accumulate, name="pointwise")

    def sum_of_pixel(n: tirx.Var, k: tirx.Var, h: tirx.Var, p: tirx.Var) -> tirx.PrimExpr:
        return accumulated[n, k, h, p // lanes, (p - first(p // lanes)) % lanes]

    pixels = te.compute((row.batch, channels, row.height, plane), sum_of_pixel, name="pixels")
    return [x, w, *operands.values(), epilogue(in_groups(pixels, row), row, operands)]
