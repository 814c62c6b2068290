"""Direct convolution as a matrix product: `O[k, p] = sum over c, r, s of F[k, c, r, s] * I[c, r, s, p]`.

p counts the output pixels of all images, and I[c, r, s, p] is the input that pixel p reads under tap (r, s): what
im2col stores, here a stage that a schedule computes tile by tile where it is needed.
"""

from __future__ import annotations

from math import prod

from tvm import te, tirx

from ..workload import ConvWorkload
from .epilogue import epilogue, epilogue_operands
from .packing import packed_weight
from .padding import padded_input


def implicit_gemm(workload: ConvWorkload, tile: tuple[int, int] = (1, 1), parts: int = 1) -> list[te.Tensor]:
    """The TE definition, in six stages: "pad", "columns", "packed", "direct", "planes" and "output".

    Operands and result are those of `direct`. `tile` rounds the output channels and the pixels of all images up to
    whole tiles, so that the product needs no bounds tests: "packed" is zero there, the last pixel is computed again,
    and "planes", which gives the product the shape of the output, leaves the surplus out. "packed" is the weight in
    blocks of the tile's channels, as `packed_weight` says.

    "direct" has shape (parts, output channels, pixels): each part is the sum over as many input channels,
    which `parts` has to divide, and "planes" adds them up.
    """
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    operands = epilogue_operands(workload)
    block, tile_pixels = tile
    padded, _ = padded_input(x, workload, workload.output_size)
    packed = packed_weight(w, workload, block)
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    channels, plane, width = workload.w_shape[1], prod(workload.output_size), workload.output_size[1]
    pixels = workload.batch * plane
    rounded = -(-pixels // tile_pixels) * tile_pixels

    def column(g: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var, p: tirx.Var) -> tirx.PrimExpr:
        p = p if rounded == pixels else tirx.min(p, pixels - 1)
        return padded[p // plane, g * channels + c, p % plane // width * sh + r * dh, p % width * sw + s * dw]

    columns = te.compute((workload.groups, *workload.w_shape[1:], rounded), column, name="columns")
    c = te.reduce_axis((0, channels // parts), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(part: tirx.Var, k: tirx.Var, p: tirx.Var) -> tirx.PrimExpr:
        group = k // workload.multiplier if workload.groups > 1 else 0
        channel = part * (channels // parts) + c
        element = columns[group, channel, r, s, p].astype("float32")
        return te.sum(packed[k // block, channel, r, s, k % block].astype("float32") * element, axis=[c, r, s])

    product = te.compute((parts, packed.shape[0] * block, rounded), accumulate, name="direct")
    part = te.reduce_axis((0, parts), name="part")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        p = n * plane + h * width + v
        return product[0, k, p] if parts == 1 else te.sum(product[part, k, p], axis=part)

    planes = te.compute(workload.output_shape, gather, name="planes")
    return [x, w, *operands.values(), epilogue(planes, workload, operands)]
