"""Convolution as a matrix product: `O[k, p] = sum over c, r, s of F[k, c, r, s] * I[c, r, s, p]`.

p counts the output pixels of all images, and I[c, r, s, p] is the input that pixel p reads under tap (r, s): what
im2col stores, here a stage that a schedule computes tile by tile where it is needed.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands, with_flat_pixels
from ..open_sizes import is_whole, pixel_tiles
from ..padding import padded_input
from .direct import input_elements
from .packing import packed_weight
from .tiles import Elements


def implicit_gemm(
    workload: ConvWorkload,
    tile: tuple[int, int, int] = (1, 1, 1),
    split_k: int = 1,
    elements: Elements = input_elements,
) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "columns", "packed", "product", "sums", "planes" and "output".

    Operands and result are those of `direct`. `tile` rounds the output channels of a group, the pixels of all images
    and the input channels of a part up to whole tiles, so that the product needs no bounds tests: past the last
    channel "packed" and "columns" are zero, the last pixel is computed again, and "sums" leaves the surplus out.
    "packed" is the weight in blocks of the tile's channels, as `packed_weight` says.

    "sums" has shape (parts, groups, output channels of a group, pixels): each part sums over an equal share of the
    input channels, and "planes" adds the parts up. `elements` makes the function that reads the input: with im2win's
    there is a stage "windows" after "pad".
    """
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    sum_type = workload.storage.sums
    flat = with_flat_pixels(workload)
    operands = epilogue_operands(flat)
    block, tile_pixels, tile_channels = tile
    channels, (height, width) = workload.w_shape[1], workload.output_size
    share = -(-channels // (split_k * tile_channels)) * tile_channels  # input channels of a part
    pixels = workload.batch * height * width
    rounded = pixel_tiles(workload, tile_pixels) * tile_pixels
    element = elements(workload, padded_input(x, workload, workload.output_size)[0], height)
    packed = packed_weight(w, workload, block, split_k * share)
    blocks = packed.shape[0] // workload.groups  # of a group

    def column(g: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var, p: tirx.Var) -> tirx.PrimExpr:
        p = p if is_whole(pixels, tile_pixels) else tirx.min(p, pixels - 1)
        pixel_index = (p // width // height, g * channels + c, p // width % height, p % width)
        value = element(*pixel_index, r, s)
        return value if split_k * share == channels else tirx.if_then_else(c < channels, value, tirx.const(0, x.dtype))

    columns = te.compute((workload.groups, split_k * share, *workload.kernel, rounded), column, name="columns")
    c = te.reduce_axis((0, share), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(part: tirx.Var, g: tirx.Var, q: tirx.Var, p: tirx.Var) -> tirx.PrimExpr:
        factor = packed[g * blocks + q // block, part * share + c, r, s, q % block].astype(sum_type)
        return te.sum(factor * columns[g, part * share + c, r, s, p].astype(sum_type), axis=[c, r, s])

    product = te.compute((split_k, workload.groups, blocks * block, rounded), accumulate, name="product")
    exact = (split_k, workload.groups, workload.multiplier, pixels)
    sums = te.compute(exact, lambda *index: product[index], name="sums")
    part = te.reduce_axis((0, split_k), name="part")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        g, q, p = k // workload.multiplier, k % workload.multiplier, n * flat.width + v
        return sums[0, g, q, p] if split_k == 1 else te.sum(sums[part, g, q, p], axis=part)

    planes = te.compute(flat.output_shape, gather, name="planes")
    return [x, w, *operands.values(), epilogue(planes, flat, operands)]
