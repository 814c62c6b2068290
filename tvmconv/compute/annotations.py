"""The annotations that schedules put on loops for lowering and sparse templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

MIN_BLOCKS = "tvmconv.min_blocks"
"""The annotation of a loop of CUDA threads: the number of blocks that are to share a multiprocessor and its
registers."""

CHANNELS_LAST = "tvmconv.channels_last"
"""The attribute of a function: the names of parameters in NHWC or KRSC that callers pass in the shape of NCHW or
KCRS."""

MAX_COLUMNS = "tvmconv.max_columns"
"""The attribute of a function for outputs of any width: the largest width for which it counts bytes in 32 bits."""

TO_THE_END = "tvmconv.to_the_end"
"""The annotation of the loop over a row's tiles, with a tile's columns: the last tile is moved to end where the row
does.

That is for a row of open width with at least one tile: columns in two tiles are computed twice, with the same results.
"""

UNROLLED = "tvmconv.unrolled"
"""The annotation of an unrolled loop of a sparse convolution; its value says what the loop runs over.

"k" stands for output channels, "c" for the input channels that are staged, "other" for the rest.
"""

SHARES = "tvmconv.shares"
"""The annotation of the parallel loop of a sparse kernel on a CPU: the number of tasks for each iteration, each with an
equal share of the blocks of output channels."""

COPIED = "tvmconv.copied"
"""The annotation of a loop over staged channels: the number of chunks in shared memory, which are copied ahead."""

COPY = "tvmconv.copy"
"""The annotation of a block that copies 16, 8 or 4 bytes to shared memory, or stores zeros there.

An asynchronous copy replaces it. Its value is true where the eight vectors of a row are swizzled.
"""

PRODUCT = "tvmconv.product"
"""The annotation of a block that adds the product of two chunks in shared memory to sums in registers.

Its value is the name and the CUDA source of the function that replaces it, which gets the addresses of the sums and of
both chunks. With a third item, a number n, the addresses of chunks have index 0 in their last n dimensions, whichever
elements the block reads.
"""

MATRICES = "tvmconv.matrices"
"""The annotation of a block that stores the registers of a thread in the rows of a tile in shared memory.

Its value is the name and the CUDA source of the function that replaces it, which all threads of a warp call, each with
the address of its first element in the tile, and of its registers.
"""

STORE = "tvmconv.store"
"""The annotation of a block that stores a part of the outputs, from shared memory to global memory.

Its value is the name and the CUDA source of the function that replaces it, which gets the address of the block's first
output, that of the same output in the next image, if the block has one, and that of the outputs in shared memory.
"""

TILE_TASK = "tvmconv.tile_task"
"""The annotation of a loop of a CPU whose body multiplies tiles of AMX.

Its value is LLVM code, which has the function of `TILE_PRODUCT`, and the names in it of a function that asks Linux for
tiles, of one that begins to use them and of one that ends it. The first returns 0, or the number of an error.
"""

TILE_PRODUCT = "tvmconv.tile_product"
"""The annotation of a block in such a loop, which sums the products of windows in tiles.

Its value is a list of `TileProduct.to_list`.
"""


class TileProduct(NamedTuple):
    """A function that replaces a block, which adds up (chunk, row, column) of windows for tiles of pixels.

    It gets the addresses of the sums, of the first factor and of the second one, each followed by the bytes of its
    steps: to the next tile and pixel of the sums; to the next tile, pixel, chunk, row and column of the first factor.
    The second factor lies in the order of the steps. Then come the numbers of chunks, rows and columns.

    A step is given by a dimension of the array and the number of elements along it.
    """

    name: str
    chunks: int
    rows: int
    columns: int
    sum_tile: tuple[int, int]
    sum_pixel: tuple[int, int]
    tile: tuple[int, int]
    pixel: tuple[int, int]
    chunk: tuple[int, int]
    row: tuple[int, int]
    column: tuple[int, int]

    def to_list(self) -> list[str | int]:
        """Return the fields as TVM keeps them, without lists inside."""
        return [*self[:4], *(number for step in self[4:] for number in step)]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> TileProduct:
        """Return what `to_list` was made of."""
        name, *numbers = values
        chunks, rows, columns, *steps = map(int, numbers)
        return cls(str(name), chunks, rows, columns, *zip(steps[::2], steps[1::2], strict=True))


CLUSTER_AXIS = "clusterCtaIdx.y"
"""The thread axis of the loop in which the blocks of a cluster read each other's shared memory."""

FETCH = "tvmconv.fetch"
"""The annotation of a loop that reads neighbouring elements in the shared memory of a block of the cluster.

The first index of the array that it reads is the number of that block: each block stores one part of the array.
"""

RING = "tvmconv.ring"
"""The annotation of the loop over chunks that `COPY` and `PRODUCT` are in.

Its value is the number of chunks that are copied ahead, 0 where there is a single chunk; 1 if the products are of
`wgmma`, which reads shared memory by another way, else 0; and 1 if products continue while the next chunks are copied,
else 0.
"""

SPECIALIZED = "tvmconv.specialized"
"""The annotation, instead of `RING`, of the loop over chunks of a block whose warps have roles.

Its value is the number of chunks in shared memory, the number of blocks that stay on a GPU, the number of teams that
multiply a tile each, the number of threads of a team, the registers of a thread that copies and of one that multiplies,
and 1 if products continue after their function has returned, else 0.
"""

ROLE = "tvmconv.role"
"""The annotation of a role's loop, which has one iteration for the warps with the role and none for the others."""

LAST_PRODUCT = "tvmconv.last_product"
"""The annotation of a loop with `SPECIALIZED` where the last chunk of each tap has less to multiply.

Its value is the number of chunks of a tap, and the value of `PRODUCT` for the last one, whose rows may be narrower: see
`BulkCopy.last_lanes`.
"""

SETTLED = "tvmconv.settled"
"""The annotation of a loop with `SPECIALIZED` whose complete sums go through a function before they are stored.

Its value is like that of `PRODUCT`, for a function of the sums and of the last chunk's factors, which it does not read.
It keeps the compiler from using sums before they are complete.
"""

COPYING_THREADS = 128
"""The number of threads that copy in a block whose warps have roles: four warps, whose registers change together."""

BARRIER_BYTES = 1024
"""The bytes of shared memory for the barriers of a block whose warps have roles; the chunks behind them are aligned."""

TILE_ROWS = 64
"""The number to whose multiples the pixels of a tile are rounded up that goes through shared memory in a block whose
warps have roles, so that the chunks behind the tile are aligned, too."""

BULK = "tvmconv.bulk"
"""The annotation of a block with `COPY` in such a loop: the copy engine of sm_90 brings the whole chunk.

Its value is a `BulkCopy`.
"""


class BulkCopy(NamedTuple):
    """The copy of a chunk of windows in an array (N, H, W, C): for each pixel a row of channels, under one tap.

    An array with a width of 0 has all of its pixels in one row.
    """

    axes: int
    """The number of axes of the stage that say which chunk it is: 2 for (tile, chunk), 3 for (tile, group, chunk)."""

    pixels: int
    """The number of pixels of a tile."""
    lanes: int
    """The number of channels in a chunk."""
    last_lanes: int
    """The number of channels in the last chunk of a tap, whose rows in shared memory are no longer than that."""
    channels: int
    """The number of channels in the array, C."""
    height: int = 1
    width: int = 0
    out_height: int = 1
    out_width: int = 0
    stride_h: int = 1
    stride_w: int = 1
    lower_h: int = 0
    """The first row of the first window, which is negative with padding; `lower_w` is its first column."""
    lower_w: int = 0
    upper_h: int = 0
    """The first row of the last window, counted from the last row of the image; `upper_w` is its first column,
    likewise."""
    upper_w: int = 0
    kernel_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    group_channels: int = 0
    """The number of channels from a group, or from a tap, to the next; the first chunk of each begins at its first
    channel."""
    group_tiles: int = 1
    """The number of tiles in a group of pixels: tile t begins at t // group_tiles * group_pixels + t % group_tiles *
    pixels."""
    group_pixels: int = 0
    """The number of pixels in such a group; it is `pixels` where tiles are of all pixels."""
    first_pixel: int = 0
    """The first pixel of the first tile."""
    separate_groups: int = 0
    """1 where there is one image, and the channels of each group are a separate array; 0 where a pixel has the channels
    of all groups."""
