"""The machine that an emulated kernel runs on: all threads of a grid, their memory, and the functions of this library.

The functions are those of `tvmconv.lowering.gpu.intrinsics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np

from tests.emulated.memory import NEVER, VECTOR, Copies, HazardError, Memory, Pointer

VECTORS = 8
"""The vectors of a row of a chunk."""

WARP = 32
"""The threads of a warp."""

BLOCKS, THREADS = (tuple(f"{kind}Idx.{axis}" for axis in "xyz") for kind in ("block", "thread"))
"""The axes of a grid and of a block, the innermost first."""


class Machine:
    """The state of all threads of a grid, whose extents are given by axis, and what a kernel does with it."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents
        self.barriers = 0
        self.copies, self.groups, self.running = Copies(), list[Copies](), list[Callable[[], None]]()
        self.copied: list[int] = []
        """The number of vectors in each group of copies of a block, all of them to different addresses."""
        self.under_way: list[int] = []
        """The number of groups of copies under way at each wait for one."""
        self.shared_bytes = 0
        self.bytes_read = 0
        """The bytes that all threads load from operands."""
        self.blocks, self.threads = (prod(map(extents.__getitem__, axes)) for axes in (BLOCKS, THREADS))
        lane = np.arange(self.blocks * self.threads)[:, None]
        self.block, self.lane = lane // self.threads, lane
        self.active = self.everyone = np.ones_like(lane, bool)
        self.met, self.fetched = 0, -1
        """The barriers up to the last one of clusters, and before the last read of another block's memory."""
        self.index = {**self.indices(BLOCKS, self.block), **self.indices(THREADS, lane % self.threads)}

    def indices(self, axes: tuple[str, ...], number: np.ndarray) -> dict[str, np.ndarray]:
        """Return the index of each thread on axes, the first of which is the innermost, by its number on them."""
        found = {}
        for axis in axes:
            found[axis], number = number % self.extents[axis], number // self.extents[axis]
        return found

    def where(self, condition: Any, then: Callable[[], Any]) -> Any:
        """Return what a function does with the active threads for which a condition holds, if there are any."""
        before, both = self.active, self.active & condition
        if not both.any():
            return None
        self.active = self.everyone if both.all() else both
        result = then()
        self.active = before
        return result

    def chosen(self, choice: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """Return either value, of which each thread computes its own alone."""
        values = self.where(choice, first), self.where(np.logical_not(choice), second)
        one, other = (other if value is None else value for value, other in (values, values[::-1]))
        return np.where(choice, one, other)

    def shuffled(self, value: Any, number: Any, way: str) -> np.ndarray:
        """Return the value that a lane of each thread's warp has.

        It is the one with a number, the one so many lanes below, or the one whose number differs in these bits.
        """
        active = self.active.reshape(-1, WARP)
        assert (active.all(1) == active.any(1)).all(), "an exchange that some threads of a warp leave out"
        lane = np.arange(WARP)
        value, number = (np.broadcast_to(each, self.lane.shape).reshape(-1, WARP) for each in (value, number))
        below = np.where(lane + number < WARP, lane + number, lane)
        source = {"shuffle": number % WARP, "shuffle_down": below, "shuffle_xor": lane ^ number}[way]
        return np.take_along_axis(value, source, axis=1).reshape(self.lane.shape)

    # Memory

    def load_active(self, pointer: Pointer) -> np.ndarray:
        """Return what is where active threads point to; others read what one of them does, for nothing."""
        address = pointer.address
        if self.active is not self.everyone:
            active, address = np.broadcast_arrays(self.active, address)
            address = np.where(active, address, address[active].min())
        return self.load(pointer.memory, address, pointer.dtype)

    def load(self, memory: Memory, address: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        row, size = memory.row, memory.bytes.shape[1]
        if address.min() < 0 or address.max() + dtype.itemsize > size:
            raise IndexError(f"a read of bytes {address.min()} to {address.max()} of {size}")
        if memory.shared:
            piece = address // VECTOR
            if (self.active & (memory.written[row, piece] >= self.barriers)).any():
                raise HazardError("a read of what has not arrived for all threads")
            memory.read[row, piece] = self.barriers
        if len(memory.bytes) == 1:
            self.bytes_read += int(np.count_nonzero(self.active)) * address.shape[1] * dtype.itemsize
        return memory.bytes.view(dtype).reshape(-1).take((memory.start + address) // dtype.itemsize)

    def store(self, pointer: Pointer, value: Any) -> None:
        memory, dtype = pointer.memory, pointer.dtype
        row, address = memory.row, pointer.address
        if self.active is not self.everyone:
            active, row, address, value = np.broadcast_arrays(self.active, row, address, value)
            row, address, value = row[active], address[active], value[active]
        self.before_write(memory, row, address)
        memory.bytes.view(dtype)[row, address // dtype.itemsize] = value.astype(dtype)
        if memory.shared:
            memory.written[row, address // VECTOR] = self.barriers

    def before_write(self, memory: Memory, row: np.ndarray, address: np.ndarray) -> None:
        if address.min() < 0 or address.max() >= memory.bytes.shape[1]:
            raise IndexError(f"a write of bytes {address.min()} to {address.max()} of {memory.bytes.shape[1]}")
        if memory.shared and memory.read[row, address // VECTOR].max() >= self.barriers:
            raise HazardError("a write to where threads may still read")

    def barrier(self) -> None:
        assert self.active.all(), "a barrier that threads leave out"
        self.barriers += 1

    # The functions of `tvmconv.lowering.gpu.intrinsics`

    tvmconv_barrier = barrier

    def copy(self, count: int, target: Pointer, source: Pointer, inside: Any) -> None:
        """Begin the copies of so many bytes of active threads."""
        memory, origin, active = target.memory, source.memory, self.active[:, 0]
        inside = np.broadcast_to(inside, self.lane.shape)[active].astype(bool)
        row, address = memory.row[active], target.address[active]
        start = np.where(inside, source.address[active], 0)
        for each in (address, start):
            assert not (each % count).any(), "a copy that is not aligned"
        span = np.arange(count)[None]
        if (start < 0).any() or (start + count > origin.bytes.shape[1]).any():
            raise IndexError("a copy from past the operand")
        data = np.where(inside, origin.bytes[origin.row[active], start + span], 0).astype(np.uint8)
        self.before_write(memory, row, address)
        memory.bytes[row, address + span] = 255
        memory.written[row, address // VECTOR] = NEVER
        self.copies.writes.append((memory, row, address, data))

    def tvmconv_cluster_barrier(self) -> None:
        self.barrier()
        self.met = self.barriers

    def fetch(self, count: int, own: Pointer, shared: Pointer, rank: Any) -> None:
        """Read numbers of 32 bits from the same address in the memory of the block with a number on the y axis."""
        memory, span = shared.memory, np.arange(4 * count)[None]
        row = self.block + (uniform(rank) - self.index["blockIdx.y"]) * self.extents["blockIdx.x"]
        address = shared.address[:, :1] + span
        assert not (shared.address % (4 * count)).any(), "a read that is not aligned"
        if (memory.written[row, address // VECTOR] >= self.met).any():
            raise HazardError("a read of what another block may still write")
        self.fetched = self.barriers
        own.memory.bytes[own.memory.row, own.address[:, :1] + span] = memory.bytes[row, address]

    def tvmconv_commit(self) -> None:
        addresses = [row * memory.bytes.shape[1] + address for memory, row, address, _ in self.copies.writes]
        distinct = len(np.unique(np.concatenate(addresses))) if addresses else 0
        assert distinct == sum(map(len, addresses)), "an address is copied to twice"
        self.copied.append(distinct // self.blocks)
        self.groups.append(self.copies)
        self.copies = Copies()

    def tvmconv_ready(self, pending: Any) -> None:
        self.under_way.append(len(self.groups))
        while len(self.groups) > uniform(pending):
            for memory, row, address, data in self.groups.pop(0).writes:
                memory.bytes[row, address + np.arange(data.shape[1])[None]] = data
                memory.written[row, address // VECTOR] = self.barriers
        self.barrier()

    tvmconv_ready_for_wgmma = tvmconv_ready

    def tvmconv_done(self, pending: Any) -> None:
        while len(self.running) > uniform(pending):
            self.running.pop(0)()

    def multiply(
        self, width: int, goes_on: bool, tiles: list[int], sums: Pointer, rows: Pointer, *columns: Pointer
    ) -> None:
        """Add a product to sums: now, or when it is waited for. Its factors are 128 bytes a row, in permuted order.

        The second one may be in several numbers that add up to it. The instruction is one of `width` warps.
        """
        tiles_m, tiles_n = tiles
        i, j, two = np.arange(tiles_m)[None, :, None], np.arange(tiles_n)[None, :, None], np.arange(2)[None, None]
        first = rows.address[..., None] + (i * width * 2 + two) * 1024
        accesses = [(rows, self.vectors(rows, first))]
        for each in columns:
            accesses.append((each, self.vectors(each, each.address[..., None] + j * 1024 + two * 128)))
        if not goes_on:
            return self.add(sums, tiles, accesses)
        for pointer, address in accesses:
            pointer.memory.read[pointer.memory.row, address // VECTOR] = NEVER
        self.tvmconv_done(0)  # a product that goes on waits for the one before
        self.running.append(partial(self.add, sums, tiles, accesses))
        return None

    def vectors(self, pointer: Pointer, row: np.ndarray) -> np.ndarray:
        """Return the addresses of the vectors of rows, all in a line for each thread; they have to have arrived."""
        vector = np.arange(VECTORS) ^ (row[..., None] >> 7 & 7)
        address = (row[..., None] + vector * VECTOR).reshape(len(self.lane), -1)
        if (pointer.memory.written[pointer.memory.row, address // VECTOR] >= self.barriers).any():
            raise HazardError("a product of what has not arrived for all threads")
        return address

    def add(self, sums: Pointer, tiles: list[int], accesses: list[tuple[Pointer, np.ndarray]]) -> None:
        rows, *columns = [self.factor(pointer, address) for pointer, address in accesses]
        product = rows @ sum(columns).transpose(0, 2, 1)
        by_register = product.reshape(-1, tiles[0], 2, tiles[1], 2).transpose(0, 1, 3, 2, 4).reshape(len(self.lane), -1)
        first = int(uniform(sums.address)) // 4
        # Sums of a chunk of integers are whole numbers that float32 holds.
        added = by_register.astype(sums.dtype)
        sums.memory.bytes.view(sums.dtype)[:, first : first + by_register.shape[1]] += added

    def multiply_groups(self, shape: list[int], sums: Pointer, pixels: Pointer, weights: Pointer) -> None:
        """Add the products of pixels and weights of a group to sums, of which a thread has neighbouring outputs.

        A pixel's channels are vectors side by side, and lines of pixels are in strips, whose sizes in bytes are given.
        """
        rows, columns, eights, pixel, strip, line, *kernel, sy, sx, dy, dx, channels = shape
        vectors, width = max(1, channels // 8), columns * sx
        r, s, vector = (each.reshape(-1) for each in np.indices((*kernel, vectors)))
        y, x = (each.reshape(-1, 1) for each in np.indices((2 * rows, columns)))
        column = x * sx + s * dx
        offset = (y * sy + r * dy) * line + column // width * strip + column % width * pixel + vector * VECTOR
        pitch = (len(r) | 1) * VECTOR
        offset_of_weight = np.arange(2 * eights)[:, None] * pitch + np.arange(len(r)) * VECTOR
        factors = []
        for pointer, each in ((pixels, offset), (weights, offset_of_weight)):
            address = pointer.address[:, :1] + each.reshape(1, -1)
            loaded = self.load(pointer.memory, address, np.dtype((np.void, VECTOR))).view(pointer.dtype)
            factors.append(loaded.astype(np.float32).reshape(len(self.lane), len(each), len(r), -1))
        if channels < 8:  # of two groups in a vector the other one's channels count for nothing
            own = np.arange(8) // channels == (self.lane >> 1 & 1)
            factors = [np.where(own[:, None, None], factor, 0) for factor in factors]
        first, second = (factor.reshape(*factor.shape[:2], -1) for factor in factors)
        product = (first @ second.transpose(0, 2, 1)).reshape(len(self.lane), -1)
        start = int(uniform(sums.address)) // 4
        sums.memory.bytes.view(sums.dtype)[:, start : start + product.shape[1]] += product

    def multiply_shallow(self, shape: list[int], sums: Pointer, pixels: Pointer, weights: Pointer) -> None:
        """Add the products of windows and weights to sums, of which a thread has vectors of outputs of its pixels.

        The bytes of a line of pixels are given. Two terms are loaded at once, of which the second one may be past the
        end of a row: it counts as zero.
        """
        warps, rows, columns, eights, line, height, width, sy, sx, channels = shape
        warp, lane = self.lane % self.threads // WARP, self.lane % WARP
        terms = width * channels + width * channels % 2
        steps, size = -(-height * terms // 16), weights.dtype.itemsize
        at = np.arange(steps * 16)
        there = (at // terms < height) & (at % terms < width * channels)
        y, x = (each.reshape(-1, 1) for each in np.indices((2 * rows, columns)))
        offset = y * sy * line + x * sx * channels * size
        offset = offset + np.where(at < height * terms, at // terms * line + at % terms * size, 0)
        own = warp // warps * (2 * rows * sy * line) + lane // 4 * (columns * sx * channels * size)
        address = pixels.address[:, :1] + own + offset.reshape(1, -1)
        assert not (address[:, ::2] % (2 * size)).any(), "a word between words"
        loaded = self.load(pixels.memory, address, pixels.dtype).astype(np.float32)
        first = np.where(there, loaded.reshape(len(self.lane), -1, len(at)), 0)
        column, e = (each.reshape(-1, 1) for each in np.indices((eights, 2)))
        offset = (column * 8 + e) * ((2 * steps | 1) * VECTOR) + np.where(at < height * terms, at * size, 0)
        own = (warp % warps * eights * 8 + lane % 4 * 2) * ((2 * steps | 1) * VECTOR)
        loaded = self.load(weights.memory, weights.address[:, :1] + own + offset.reshape(1, -1), weights.dtype)
        second = loaded.astype(np.float32).reshape(len(self.lane), -1, len(at))
        product = (first @ second.transpose(0, 2, 1)).reshape(len(self.lane), -1)
        start = int(uniform(sums.address)) // 4
        sums.memory.bytes.view(sums.dtype)[:, start : start + product.shape[1]] += product

    def multiply_bands(self, shape: list[int], sums: Pointer, lines: Pointer, taps: Pointer) -> None:
        """Add the products of lines and taps to sums, of which a thread has two rows and two columns of each band.

        The bytes of lines, of planes and of rows of taps in both copies are given, and the rows and columns that are
        there.
        """
        images, bands, warps, line, image, of_row, rows, columns, reach, surplus, *box = shape
        first_row, rows_read, first_column, columns_read, *_ = box
        lane, y = self.lane % WARP, self.lane // WARP % warps * 8
        size, two, pair = lines.dtype.itemsize, lane // 4 * 2, lane % 4 * 2
        i, band, e, r, read = (each.reshape(-1) for each in np.indices((images, bands, 2, rows, reach)))
        row, column = y + pair + e + r - first_row, band * 16 + read - first_column
        there = (row >= 0) & (row < rows_read) & (column >= 0) & (column < columns_read)
        address = lines.address[:, :1] + np.where(there, i * image + row * line + column * size, 0)
        pixels = np.where(there, self.load(lines.memory, address, lines.dtype).astype(np.float32), 0)
        odd, r, read = (each.reshape(-1) for each in np.indices((2, rows, reach)))
        s, offset = read - two - odd - surplus, odd * (of_row // 2) + r * of_row + (14 - two + read) * size
        weights = self.load(taps.memory, taps.address[:, :1] + offset, taps.dtype).astype(np.float32)
        weights = np.where((s >= 0) & (s < columns), weights, 0).reshape(len(lane), 1, 1, 2, 1, -1)
        terms = pixels.reshape(len(lane), images, bands, 1, 2, -1)
        product = (np.where(weights == 0, 0, terms) * weights).sum(-1).reshape(len(lane), -1)
        start = int(uniform(sums.address)) // 4
        sums.memory.bytes.view(sums.dtype)[:, start : start + product.shape[1]] += product

    def multiply_planes(self, shape: list[int], sums: Pointer, lines: Pointer, taps: Pointer) -> None:
        """Add the products of whole planes and their taps to sums, of which a thread has two rows and two columns.

        The elements of an image's planes in shared memory are given, and those of a pixel in NHWC, or 1.
        """
        images, together, own, eights, bands, image, pixel, height, width, rows, columns, top, left = shape
        size, last, window = lines.dtype.itemsize, own == 2, rows * columns
        lane = (self.lane % self.threads)[:, None]
        warp, g, j = lane // WARP, lane % WARP // 4, lane % 4
        units = images // together, own, eights, bands, 2, 2
        n, c, eight, band, side, odd = (each.reshape(1, -1, 1) for each in np.indices(units))
        r, s = (each.reshape(1, 1, -1) for each in np.indices((rows, columns)))
        row = eights * (2 * j + odd) + eight - top + r
        column = (g if together == 2 else band * 16 + 2 * g + side) - left + s
        n = 2 * n + side if together == 2 else n
        there = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        first = warp * own + c
        offset = n * image + first * (1 if last else height * width) + (row * width + column) * pixel
        offset = np.where(there, offset * size, 0).reshape(len(lane), -1)
        pixels = self.load(lines.memory, lines.address[:, :1] + offset, lines.dtype).astype(np.float32)
        offset = ((first + 0 * row) * window + r * columns + s).reshape(len(lane), -1) * size
        weights = self.load(taps.memory, taps.address[:, :1] + offset, taps.dtype).astype(np.float32)
        product = np.where(there.reshape(len(lane), -1), pixels, 0) * weights
        product = product.reshape(len(lane), -1, window).sum(-1)
        start = int(uniform(sums.address)) // 4
        sums.memory.bytes.view(sums.dtype)[:, start : start + product.shape[1]] += product
        self.barrier()

    def store_runs(self, shape: list[int], output: Pointer, following: Pointer, staged: Pointer) -> None:
        """Copy runs from shared memory to where they lie apart, in vectors; all is given in bytes."""
        images, runs, run, own_pitch, threads, pitch, count, _ = shape
        assert threads == self.threads
        self.barrier()
        vectors = run // count
        for first in range(0, images * runs * vectors, threads):
            number = first + self.lane % threads
            image, offset = number // (runs * vectors), number % vectors * count + np.arange(count)[None]
            source = staged.address[:, :1] + number // vectors * own_pitch + offset
            next_image = following.address[:, :1] - output.address[:, :1]
            target = output.address[:, :1] + image * next_image + number // vectors % runs * pitch + offset
            for address, size in ((source, gcd(own_pitch, count)), (target, count)):
                assert not (address[:, 0] % size).any(), "a vector that is not aligned"

            def copied(source: np.ndarray = source, target: np.ndarray = target) -> None:
                value = self.load_active(Pointer(staged.memory, source, np.dtype(np.uint8)))
                self.store(Pointer(output.memory, target, np.dtype(np.uint8)), value)

            self.where(number < images * runs * vectors, copied)

    def multiply_diagonals(self, shape: list[int], sums: Pointer, lines: Pointer, given: Pointer) -> None:
        """Add the products of rows of x and of dy to sums, of which a thread has a column of x and two of dy.

        The bytes of rows and of images are given, and the rows of x that are there. A tile of the product has two
        eights of columns of x, of which the first has an even number. Nobody reads the sums of rows that no tap is in.
        """
        block_r, groups, pairs, rows, x_line, x_image, dy_line, dy_image, kernel, first, read, before, *sizes = shape
        count, width, dy_width, *_ = sizes
        warp, lane = self.lane % self.threads // WARP, self.lane % WARP
        own, size = warp // groups * 2 * pairs, lines.dtype.itemsize
        eights = -(-dy_width // 8)
        image, y, eight = (each.reshape(1, -1) for each in np.indices((2 * pairs, rows, eights)))
        address = given.address[:, :1] + (own + image) * dy_image + y * dy_line + (eight * 8 + lane % 4 * 2) * size
        columns = [self.load(given.memory, address + odd * size, given.dtype).astype(np.float32) for odd in range(2)]
        start = int(uniform(sums.address)) // 4
        found = sums.memory.bytes.view(sums.dtype)
        for number, (r, diagonal, half) in enumerate(np.ndindex(block_r, count, 2)):
            row, tap = y + warp % groups * block_r + r - first, warp % groups * block_r + r
            tile = eight + diagonal - before
            column = (tile + half) * 8 + lane // 4
            there = (tile >= 0) & (tile % 2 == 0) & (column < -(-width // 8) * 8) & (tap < kernel)
            there = there & (row >= 0) & (row < read)
            address = lines.address[:, :1] + np.where(there, (own + image) * x_image + row * x_line + column * size, 0)
            factor = np.where(there, self.load(lines.memory, address, lines.dtype).astype(np.float32), 0)
            for odd in range(2):
                found[:, start + 2 * number + odd] += (factor * columns[odd]).sum(-1)

    def factor(self, pointer: Pointer, address: np.ndarray) -> np.ndarray:
        """Return the rows of a factor for each thread, given the addresses of their vectors."""
        vectors = self.load(pointer.memory, address, np.dtype((np.void, VECTOR)))
        loaded = vectors.view(pointer.dtype).astype(np.float32)
        return loaded.reshape(len(self.lane), address.shape[1] // VECTORS, -1)


def uniform(value: Any) -> int:
    """Return a number that has to be the same in all threads."""
    first = int(np.ravel(value)[0])
    assert np.all(value == first), "control flow that differs between threads"
    return first
