"""Bulk copies of the chunks of convolutions on tensor cores, by the copy engine of sm_90 in its im2col mode."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tvmconv.compute.annotations import BulkCopy
from tvmconv.compute.tensor.chunks import (
    ROW_BYTES,
    STEP_BYTES,
    chunks_of_tap,
    depth,
    has_separate_groups,
    last_chunk_steps,
    lays_out_input,
    read_image,
    row_bytes,
)
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

MAX_PIXELS = 1024
"""The most pixels that a copy brings (CUDA Driver API, cuTensorMapEncodeIm2col)."""

MAX_STRIDE = 8
"""The longest stride of the engine (CUDA Driver API, cuTensorMapEncodeIm2col)."""

CORNERS, MAX_REACH = range(-128, 128), 255
"""The indices where the first and the last window of an image may begin, and the largest distance of a tap from its
window's corner, in rows or columns (CUDA Driver API, cuTensorMapEncodeIm2col, and PTX ISA, im2col offsets)."""


def column_copy(workload: ConvWorkload, block_m: int, rounds_input: bool = False) -> BulkCopy:
    """Return how the chunks of the input are copied; with `rounds_input` a kernel has rounded the input before."""
    image = read_image(workload)
    channels = depth(image)
    separate_groups = has_separate_groups(workload) and not (rounds_input or lays_out_input(workload))
    all_channels = channels if separate_groups else channels * image.groups
    copy = BulkCopy(3, block_m, *_lanes(workload), all_channels, group_channels=channels, group_pixels=block_m)
    if reads_all(image) and not separate_groups:
        return copy
    (out_height, out_width), (kernel_h, kernel_w) = image.output_size, image.kernel
    (dilation_h, dilation_w), (top, left, bottom, right) = image.dilation, image.padding
    return copy._replace(
        height=image.height,
        width=image.width,
        out_height=out_height,
        out_width=out_width,
        stride_h=image.stride[0],
        stride_w=image.stride[1],
        lower_h=-top,
        lower_w=-left,
        upper_h=bottom - (kernel_h - 1) * dilation_h,
        upper_w=right - (kernel_w - 1) * dilation_w,
        kernel_w=kernel_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
        separate_groups=int(separate_groups),
    )


def weight_copy(workload: ConvWorkload, block_n: int, summand: int = 0) -> BulkCopy:
    """Return how the chunks of the weight are copied: filters follow one another as the pixels of an image would.

    After a tap's last channels come those of the next tap, which are not multiplied. The summands of a split weight
    follow one another.
    """
    image = read_image(workload)
    per_group = -(-workload.multiplier // block_n)
    channels = depth(image)
    return BulkCopy(
        2,
        block_n,
        *_lanes(workload),
        prod(image.kernel) * channels,
        group_channels=channels,
        group_tiles=per_group,
        group_pixels=workload.multiplier,
        first_pixel=summand * workload.out_channels,
    )


def _lanes(workload: ConvWorkload) -> tuple[int, int]:
    """Return the number of channels in a chunk, and in a tap's last chunk, whose rows are as narrow as can be."""
    last = row_bytes(last_chunk_steps(workload)) // workload.itemsize
    return last if chunks_of_tap(workload) == 1 else ROW_BYTES // workload.itemsize, last


def reads_all(image: ConvWorkload) -> bool:
    """Return whether output pixel i reads input pixel i, and no other."""
    return image.kernel == (1, 1) and image.stride == (1, 1) and not any(image.padding)


MAX_SURPLUS = 0.2
"""The most elements after the channels of a single tap in its last row, as a share of these channels: the engine takes
long to bring zeros there. On an H100, at batch 128 in float16, 1x1 convolutions of 24 channels to 144 took 84 µs,
without roles 68; those of 72, whose narrow row ends within a step, 25.5 and 23.5. The rows of several taps are whole
steps, and there the estimate decides."""


@lru_cache(maxsize=64)  # constraints ask for each of hundreds of configurations
def is_bulk(problem: Problem) -> bool:
    """Return whether the engine can copy the chunks, each of one tap.

    Groups that are separate images in memory need images of one row: the pixels after an image would be of the next
    group. Products of matrices in networks have a column of pixels instead, as they may lie in other tensors, which the
    engine does not support.

    The last chunk of a tap may reach past the last channel. There the engine brings channels of the next group, or
    weights of the next tap. So the channels have to be whole steps of a product, which then leaves the rest out, or
    there is a single group and tap, where the rest is zeros.
    """
    workload = problem.workload
    image = read_image(workload)
    of_tap, taps = depth(image) * workload.itemsize, prod(image.kernel)
    in_order = not has_separate_groups(workload) or lays_out_input(workload) or workload.batch == workload.height == 1
    whole_steps = of_tap % STEP_BYTES == 0 or image.groups == taps == 1
    row = row_bytes(last_chunk_steps(workload)) if of_tap % STEP_BYTES == 0 else ROW_BYTES
    filled = taps > 1 or -of_tap % row < MAX_SURPLUS * of_tap
    if problem.open_sizes or not in_order or not whole_steps or not filled:
        return False
    if reads_all(image):
        return True
    copy = column_copy(workload, 1)
    corners = copy.lower_h, copy.lower_w, copy.upper_h, copy.upper_w
    reach = max((size - 1) * step for size, step in zip(image.kernel, image.dilation, strict=True))
    within = max(image.stride) <= MAX_STRIDE and all(each in CORNERS for each in corners) and reach <= MAX_REACH
    return within and reads_input(image)


def reads_input(image: ConvWorkload) -> bool:
    """Return whether a window reads more than padding: for padding alone TVM makes zeros, and copies nothing."""
    sizes, padding = (image.height, image.width), image.padding[:2]
    axes = zip(image.output_size, image.kernel, image.stride, image.dilation, padding, sizes, strict=True)
    return all(
        any(
            0 <= pixel * stride + tap * dilation - padding_before < size
            for pixel in range(pixels)
            for tap in range(taps)
        )
        for pixels, taps, stride, dilation, padding_before, size in axes
    )
