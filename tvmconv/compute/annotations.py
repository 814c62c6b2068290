"""The annotations that schedules put on loops for lowering and sparse templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

MIN_BLOCKS = "tvmconv.min_blocks"
"""The annotation of a loop of CUDA threads: so many blocks are to share a multiprocessor and its registers."""

CHANNELS_LAST = "tvmconv.channels_last"
"""The attribute of a function: the names of parameters in NHWC or KRSC that are given in the shape of NCHW or KCRS."""

MOST_COLUMNS = "tvmconv.most_columns"
"""The attribute of a function for outputs of any width: the most columns for which it counts bytes in 32 bits."""

TO_THE_END = "tvmconv.to_the_end"
"""The annotation of the loop over a row's tiles, with a tile's columns: the last one ends where the row does.

In a row of open width of at least one tile, that is: columns that two tiles have are computed twice, alike.
"""

UNROLLED = "tvmconv.unrolled"
"""The annotation of an unrolled loop of a sparse convolution; its value says what the loop runs over.

"k" stands for output channels, "c" for the input channels that are staged, "other" for the rest.
"""

SHARES = "tvmconv.shares"
"""The annotation of the parallel loop of a CPU: the number of tasks for each turn, with a share of the blocks each."""

COPIED = "tvmconv.copied"
"""The annotation of a loop over staged channels: the number of chunks in shared memory, which are copied ahead."""

COPY = "tvmconv.copy"
"""The annotation of a block that copies 16, 8 or 4 bytes to shared memory, or zeros.

An asynchronous copy takes its place. Its value is true where the places of a row's eight vectors are permuted.
"""

PRODUCT = "tvmconv.product"
"""The annotation of a block that adds the product of two chunks in shared memory to sums in registers.

Its value is the name and the CUDA source of the function that takes its place, which gets the addresses of the sums and
of both chunks; with a number behind them, of the first place of a chunk in so many of its last dimensions, whatever the
block reads.
"""

MATRICES = "tvmconv.matrices"
"""The annotation of a block that stores what a thread has in registers in the rows of a tile in shared memory.

Its value is the name and the CUDA source of the function that takes its place, which all threads of a warp call, each
with the address of its own first place in the tile, and of its registers.
"""

STORE = "tvmconv.store"
"""The annotation of a block that stores its part of outputs in memory, from shared memory.

Its value is the name and the CUDA source of the function that takes its place, which gets the address of the block's
first output, that of the same one in the next image, if the block has one, and that of what it stores.
"""

TILE_TASK = "tvmconv.tile_task"
"""The annotation of a loop of a CPU whose body multiplies tiles of AMX.

Its value is the code of `TILE_PRODUCT` in LLVM's language, and in it the names of a function that asks Linux for tiles,
of one that begins to use them and of one that ends it. The first returns 0, or the number of an error.
"""

TILE_PRODUCT = "tvmconv.tile_product"
"""The annotation of a block in such a loop, which sums the products of windows in tiles.

Its value is what `TileProduct.to_list` returns.
"""


class TileProduct(NamedTuple):
    """A function in the place of a block that adds up (chunk, row, column) of windows, for tiles of pixels.

    It gets the addresses of the sums, of the first factor and of the second one, each with the bytes from one step to
    the next of what it goes along: tiles and pixels of the sums; tiles, pixels, chunks, rows and columns of the first
    factor. The second factor lies in the order of the steps. Then come the numbers of chunks, rows and columns.

    A step is a dimension of the array, and so many of its elements.
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

The first index of what it reads is the number of that block. Each block has a part of its own of what is read.
"""

RING = "tvmconv.ring"
"""The annotation of the loop over chunks that `COPY` and `PRODUCT` are in.

Its value is the number of chunks that are copied ahead, 0 where there is one chunk alone, 1 if the products are of
`wgmma`, which reads shared memory in a way of its own, and 1 if they go on while the next chunks are copied.
"""

SPECIALIZED = "tvmconv.specialized"
"""The annotation, in place of `RING`, of the loop over chunks of a block whose warps have roles.

Its value is the number of chunks in shared memory, that of the blocks that stay on a GPU, that of the teams that
multiply a tile each, that of the threads of a team, those of the registers of a thread that copies and of one that
multiplies, and 1 if products go on when their function returns, or 0.
"""

ROLE = "tvmconv.role"
"""The annotation of a role's loop, of one turn for the warps that have the role and of none for the others."""

LAST_PRODUCT = "tvmconv.last_product"
"""The annotation of a loop with `SPECIALIZED` where the last one of every so many chunks has less to multiply.

Its value is the number of these chunks, and the value of `PRODUCT` for the last one, whose rows may be narrower: see
`BulkCopy.last_lanes`.
"""

SETTLED = "tvmconv.settled"
"""The annotation of a loop with `SPECIALIZED` whose complete sums go through a function before they are stored.

Its value is that of `PRODUCT` for a function of the sums and of the last chunk's factors, which it does not read. It
keeps the compiler from using sums before they are complete.
"""

COPYING_THREADS = 128
"""The threads of the warps that copy in such a block: as many as change their registers together."""

BARRIER_BYTES = 1024
"""The shared memory of the barriers of such a block: chunks behind them begin where they have to."""

TILE_ROWS = 64
"""The pixels of a tile that goes through shared memory in such a block are rounded up to a multiple of this number, so
that chunks behind it begin where they have to, too."""

BULK = "tvmconv.bulk"
"""The annotation of a block with `COPY` in such a loop: the copy engine of sm_90 brings the whole chunk.

Its value is a `BulkCopy`.
"""


class BulkCopy(NamedTuple):
    """Chunks of windows in an array (N, H, W, C): pixels follow one another, and the channels under a tap are a row.

    An array without a width has all of its pixels in one row.
    """

    axes: int
    """The number of axes of the stage that say which chunk it is: 2 for (tile, chunk), 3 for (tile, group, chunk)."""

    pixels: int
    """The number of pixels of a tile."""
    lanes: int
    """The number of channels in a chunk."""
    last_lanes: int
    """The number of channels in the last chunk under a tap, whose rows are no longer than that in shared memory."""
    channels: int
    """The number of channels in the array, C."""
    height: int = 1
    width: int = 0
    out_height: int = 1
    out_width: int = 0
    stride_h: int = 1
    stride_w: int = 1
    lower_h: int = 0
    """The first row of the first window; like the next three numbers it is 0, or less where there is padding."""
    lower_w: int = 0
    upper_h: int = 0
    """The first row of the last window, from the last row of the image."""
    upper_w: int = 0
    kernel_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    group_channels: int = 0
    """The number of channels of a group, or under a tap, from one to the next; chunks begin with the first one."""
    group_tiles: int = 1
    """The number of tiles after which pixels are counted from `group_pixels` more on."""
    group_pixels: int = 0
    """See `group_tiles`: it is `pixels` where tiles are of all pixels."""
    first_pixel: int = 0
    """The first pixel of the first tile."""
    groups_apart: int = 0
    """1 where there is one image, in which the channels of each group are an array of their own; 0 where a pixel has
    those of all groups."""
