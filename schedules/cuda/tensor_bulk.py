"""Bulk copies of the chunks of convolutions on tensor cores, by the copy engine of sm_90 in its im2col mode."""

from __future__ import annotations

from math import prod

from tvmconv.annotations import BulkCopy
from tvmconv.compute.chunks import ROW_BYTES, STEP_BYTES, depth, lays_out_input, read_image
from tvmconv.problem import Problem
from tvmconv.workload import ConvWorkload

MOST_PIXELS = 1024
"""The most pixels that a copy brings (CUDA Driver API, cuTensorMapEncodeIm2col)."""

MOST_STRIDE = 8
"""The longest stride of the engine (CUDA Driver API, cuTensorMapEncodeIm2col)."""

CORNERS, MOST_REACH = range(-128, 128), 255
"""The places where the first and the last window of an image may begin, and how far a tap may be from its corner, in
rows or columns (CUDA Driver API, cuTensorMapEncodeIm2col, and PTX ISA, im2col offsets)."""


def column_copy(workload: ConvWorkload, block_m: int) -> BulkCopy:
    """Return how the chunks of the input are copied."""
    image = read_image(workload)
    channels = depth(image)
    lanes = ROW_BYTES // workload.itemsize
    copy = BulkCopy(3, block_m, lanes, channels * image.groups, group_channels=channels, group_pixels=block_m)
    if reads_all(image):
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
    )


def weight_copy(workload: ConvWorkload, block_n: int, summand: int = 0) -> BulkCopy:
    """Return how the chunks of the weight are copied: those of a channel follow one another as an image's would.

    Behind a tap's last channels are those of the next tap, which are not multiplied. Of a weight that is a sum of
    several, the summands follow one another.
    """
    image = read_image(workload)
    per_group = -(-workload.multiplier // block_n)
    channels = depth(image)
    return BulkCopy(
        2,
        block_n,
        ROW_BYTES // workload.itemsize,
        prod(image.kernel) * channels,
        group_channels=channels,
        group_tiles=per_group,
        group_pixels=workload.multiplier,
        first_pixel=summand * workload.out_channels,
    )


def reads_all(image: ConvWorkload) -> bool:
    """Return whether an output pixel reads the input pixel of the same number."""
    return image.kernel == (1, 1) and image.stride == (1, 1) and not any(image.padding)


MOST_SURPLUS, MOST_SURPLUS_OF_TAPS = 0.2, 0.5
"""The most places of a tap's last chunk behind the channels, as a share of these: of a single tap, and of several ones.
On an H200 in float16, at batch 32, roles made 1x1 convolutions of 224 and 416 channels 1.2 times as fast; with a
share of a third one was 1.3 times as fast, two 0.8 times. That was when all places were multiplied. Below the second
number the estimate decides."""


def is_bulk(problem: Problem) -> bool:
    """Return whether the engine can copy the chunks, each of one tap, of windows that it knows.

    The last chunk of a tap may be in part past the last channel. What the engine brings there may be channels of the
    next group, or weights of the next tap. So channels have to be whole steps of a product, which then leaves it out,
    or of a single group and tap, where it is zeros.
    """
    workload = problem.workload
    image = read_image(workload)
    known = workload.layout == "NHWC" or lays_out_input(workload) or workload.height == workload.width == 1
    of_tap, taps = depth(image) * workload.itemsize, prod(image.kernel)
    most = MOST_SURPLUS if taps == 1 else MOST_SURPLUS_OF_TAPS
    whole_steps = of_tap % STEP_BYTES == 0 or image.groups == taps == 1
    if problem.open_sizes or not known or not whole_steps or -of_tap % ROW_BYTES >= most * of_tap:
        return False
    if reads_all(image):
        return True
    copy = column_copy(workload, 1)
    corners = copy.lower_h, copy.lower_w, copy.upper_h, copy.upper_w
    reach = max((size - 1) * step for size, step in zip(image.kernel, image.dilation, strict=True))
    within = max(image.stride) <= MOST_STRIDE and all(each in CORNERS for each in corners) and reach <= MOST_REACH
    return within and reads_input(image)


def reads_input(image: ConvWorkload) -> bool:
    """Return whether a window reads more than padding: of padding alone TVM makes zeros, and nothing is copied."""
    sizes, before = (image.height, image.width), image.padding[:2]
    axes = zip(image.output_size, image.kernel, image.stride, image.dilation, before, sizes, strict=True)
    return all(
        any(0 <= place * stride + tap * dilation - first < size for place in range(places) for tap in range(taps))
        for places, taps, stride, dilation, first, size in axes
    )
