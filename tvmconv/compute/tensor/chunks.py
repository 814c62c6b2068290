"""The chunks of a reduction on tensor cores, and how operands lie in memory to be copied in chunks.

A chunk is `ROW_BYTES` of each row of both factors, of consecutive channels. Operands whose channels are not contiguous
are copied to such a layout first.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from msgspec import structs

from tvmconv.problem.workload import ConvWorkload

ROW_BYTES = 128
"""The bytes of a chunk of the reduction in a row of shared memory: what eight threads copy with 16 bytes each."""

COPY_BYTES = 16
"""The bytes of the widest asynchronous copy."""

STEP_BYTES = 32
"""The bytes of a row of a chunk that are the terms of one instruction of tensor cores."""

PERMUTED = (32, 64, ROW_BYTES)
"""The bytes of rows whose vectors the copy engine of sm_90 swizzles for `wgmma`, each in a different way."""

STEPS = ROW_BYTES // STEP_BYTES
"""The number of steps of a chunk; a step has the terms of one instruction."""

VECTORS = ROW_BYTES // COPY_BYTES
"""The number of copies of a row of a chunk."""


def copied_elements(workload: ConvWorkload) -> int:
    """Return the number of elements of an asynchronous copy."""
    return COPY_BYTES // workload.itemsize


def depth(workload: ConvWorkload) -> int:
    """Return the number of input channels of a group, rounded up to whole copies."""
    return -(-workload.w_shape[1] // copied_elements(workload)) * copied_elements(workload)


def has_channels_last(workload: ConvWorkload) -> bool:
    """Return whether the channels of a pixel are contiguous in the input: of one pixel they are in every layout."""
    blocks = workload.x_layout.block == workload.w_shape[1]
    return workload.layout == "NHWC" or blocks or (workload.height == workload.width == 1)


def has_separate_groups(workload: ConvWorkload) -> bool:
    """Return whether the input has its channels in blocks of one group each, which are separate images in memory."""
    in_blocks = 1 < workload.x_layout.block == workload.w_shape[1]
    return in_blocks and prod((workload.height, workload.width)) > 1


def lays_out_input(workload: ConvWorkload) -> bool:
    """Return whether the input is first copied: from NCHW, to whole copies of channels, or where it `pads_input`."""
    return not has_channels_last(workload) or depth(workload) != workload.w_shape[1] or pads_input(workload)


def pads_input(workload: ConvWorkload) -> bool:
    """Return whether padding is written with the copy of the input: where it is not 0, which asynchronous copies write.

    So it is, too, where outputs read nothing but padding: TVM finds that the input is not read then, and raises a
    `ScheduleError` where a stage behind it is inlined.
    """
    return any(workload.padding) and (workload.zero_point != 0 or _reads_padding_alone(workload))


@lru_cache(maxsize=64)
def _reads_padding_alone(workload: ConvWorkload) -> bool:
    """Return whether outputs read no row, or no column, of the input itself, as where a stride steps over it.

    With open sizes it is False, since TVM proves no such thing of them.
    """

    def is_read(axis: int, size: int) -> bool:
        taps = range(0, workload.kernel[axis] * workload.dilation[axis], workload.dilation[axis])
        first = -workload.padding[axis]
        starts = range(first, first + workload.output_size[axis] * workload.stride[axis], workload.stride[axis])
        return any(0 <= start + tap < size for start in starts for tap in taps)

    sizes = workload.height, workload.width
    return all(isinstance(size, int) for size in sizes) and not all(map(is_read, (0, 1), sizes))


def reads_windows(workload: ConvWorkload) -> bool:
    """Return whether the input is laid out as rows of windows: where its channels are at most half of a copy."""
    has_few_channels = 2 * workload.in_channels <= copied_elements(workload)
    return workload.groups == 1 and workload.kernel[1] > 1 and has_few_channels


def read_image(workload: ConvWorkload) -> ConvWorkload:
    """Return the workload that reads the input as it is laid out: padded already, or as rows of windows."""
    image = workload
    if reads_windows(workload):
        top, _, bottom, _ = workload.padding
        rows, columns = workload.kernel
        image = structs.replace(
            image,
            in_channels=columns * workload.in_channels,
            width=workload.output_size[1],
            kernel=(rows, 1),
            stride=(workload.stride[0], 1),
            dilation=(workload.dilation[0], 1),
            padding=(top, 0, bottom, 0),
        )
    if pads_input(workload):
        height, width = image.padded_input
        image = structs.replace(image, height=height, width=width, padding=(0, 0, 0, 0))
    return image


def image_elements(workload: ConvWorkload) -> int:
    """Return the number of elements of the input as it is laid out."""
    image = read_image(workload)
    return image.batch * image.height * image.width * image.groups * depth(image)


def lays_out_weight(workload: ConvWorkload, split: int) -> bool:
    """Return whether the weight is first copied: to KRSC, which a 1x1 one has, to whole copies, or as it is split."""
    channels_last = workload.w_layout == "KRSC" or prod(workload.kernel) == 1
    return split > 0 or not channels_last or depth(workload) != workload.w_shape[1]


def packed_elements(workload: ConvWorkload) -> int:
    """Return the number of elements of the weight as it is laid out."""
    image = read_image(workload)
    return image.out_channels * prod(image.kernel) * depth(image)


@lru_cache(maxsize=128)  # constraints and counts ask for each of hundreds of configurations
def chunks(workload: ConvWorkload, by_tap: bool = False) -> int:
    """Return the number of chunks of the reduction, the last of which may be filled up with zeros.

    Where the channels are whole chunks each chunk is of one tap, else it goes on with the channels of the next tap;
    with `by_tap` it does not, and the last chunk of each tap may be filled up with zeros.
    """
    if by_tap:
        return prod(read_image(workload).kernel) * chunks_of_tap(workload)
    return -(-packed_elements(workload) // workload.out_channels * workload.itemsize // ROW_BYTES)


def chunks_of_tap(workload: ConvWorkload) -> int:
    """Return the number of chunks of a tap, where no chunk spans two taps."""
    return -(-depth(read_image(workload)) * workload.itemsize // ROW_BYTES)


def last_chunk_steps(workload: ConvWorkload) -> int:
    """Return the number of steps with channels in the last chunk of a tap."""
    last = (depth(read_image(workload)) * workload.itemsize - 1) % ROW_BYTES + 1
    return -(-last // STEP_BYTES)


def row_bytes(steps: int) -> int:
    """Return the bytes of the shortest swizzled row with room for `steps` steps of a chunk."""
    return min(size for size in PERMUTED if size >= steps * STEP_BYTES)


def multiplied_share(workload: ConvWorkload) -> float:
    """Return the share of steps that have channels, where no chunk spans two taps."""
    return 1 - (1 - last_chunk_steps(workload) / STEPS) / chunks_of_tap(workload)
