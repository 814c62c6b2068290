"""One kernel for a GPU of two layers on images of one pixel: the gate of squeeze and excitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.functions import activated
from tvmconv.compute.statements import INDEX, barrier, index_variable, launched, loop, sequence, tested
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu

from ..machine import WARP
from ..statements import exchange, halves
from ..tensor.model import KERNEL

MOST_CHANNELS, MOST_SQUEEZED = 8192, 1024
"""The most channels, and the most between both layers: a block has them in float32 in its shared memory."""

WIDE = 4
"""The elements of a row of the first weight that a thread loads at once."""

PAIR = 2
"""The outputs of a thread, where their number is even."""

UNROLLED = 64
"""The most turns of a loop that is unrolled."""

SMALL = 2**14
"""The products of a layer up to which a block has fewer threads."""

THREADS, FEW_THREADS = 1024, 256
"""The threads of a block, and of one for a small layer."""

WAITING = 3000.0
"""The clocks in which a block waits for its first loads and at its barriers, beside those of a kernel that begins."""

SM_BYTES = 64.0
"""The bytes that a multiprocessor reads in a clock from the L2 cache at most."""

L2_FACTOR = 2.0
"""The number of times as many bytes that the L2 cache moves as memory does, for all multiprocessors."""


@dataclass(frozen=True)
class Gate:
    """Two layers, the second of which alone reads what the first computes."""

    first: ConvWorkload
    second: ConvWorkload

    @property
    def operands(self) -> list[tuple[tuple[int, ...], str]]:
        """The shapes and types of x, the weights (S, C) and (S, K), each with its shift, and the output."""
        squeezed, channels, outputs = self.first.out_channels, self.first.in_channels, self.second.out_channels
        *_, output = self.second.operands.values()
        found: list[tuple[tuple[int, ...], str]] = [((self.first.batch, channels, 1, 1), self.first.dtype)]
        for layer, shape in ((self.first, (squeezed, channels)), (self.second, (squeezed, outputs))):
            found.append((shape, layer.dtype))
            found += [((layer.out_channels,), "float32")] if layer.epilogue.shift else []
        return [*found, ((self.first.batch, outputs, 1, 1), output[1])]


def clocks(gate: Gate, gpu: Gpu) -> float:
    """Return the clocks that the kernel is estimated to take: each image's block reads both weights."""
    first, second = gate.first, gate.second
    weights = first.out_channels * (
        first.in_channels * first.storage.itemsize + second.out_channels * second.storage.itemsize
    )
    blocks = min(first.batch, gpu.multiprocessors)
    rate = min(SM_BYTES, L2_FACTOR * gpu.bytes_per_clock / blocks)
    return KERNEL + ceil(first.batch / gpu.multiprocessors) * (WAITING + weights / rate)


def gate_kernel(gate: Gate, batch: Expr | int) -> tirx.PrimFunc:
    """Return the function of a gate, with a block for each image; all sums are in float32.

    Before: `h = act(conv(x, w) + b)`, `y = act(conv(h, v) + c)`, of images of one pixel.
    After: `for n in blocks: shared x[n]; wait; for s in warps: h[s] = act(sum over lanes of x * w[s] + b[s]); wait; for
    k in threads: y[n, k] = act(sum of h[s] * v[s, k] + c[k])`.
    """
    kernel = _Kernel(gate, batch)
    body = sequence([*kernel.fetched(), barrier(), *kernel.squeezed(), barrier(), *kernel.excited()])
    root = launched(body, {kernel.thread: kernel.threads, kernel.image: batch}, kernel.buffers)
    return tirx.PrimFunc(kernel.params, root).with_attrs({"tirx.noalias": True, "s_tir": True})


class _Kernel:
    """The parts of the kernel of a gate."""

    def __init__(self, gate: Gate, batch: Expr | int) -> None:
        self.gate, self.first, self.second = gate, gate.first, gate.second
        self.channels, self.between, self.outputs = (
            gate.first.in_channels,
            gate.first.out_channels,
            gate.second.out_channels,
        )
        size = max(self.channels, self.outputs) * self.between
        self.threads = FEW_THREADS if size <= SMALL else THREADS
        names = ["x", "w"] + ["b"] * gate.first.epilogue.shift + ["v"] + ["c"] * gate.second.epilogue.shift + ["y"]
        shapes = [((batch, *shape[1:]) if len(shape) == 4 else shape, dtype) for shape, dtype in gate.operands]
        self.params = [tirx.decl_buffer(shape, dtype, name) for name, (shape, dtype) in zip(names, shapes, strict=True)]
        self.named = dict(zip(names, self.params, strict=True))
        self.buffers: list[Any] = []
        self.image, self.thread = index_variable("image"), index_variable("thread")
        self.x = self._buffer("x_shared", -(-self.channels // WIDE) * WIDE, "float32", "shared")
        self.hidden = self._buffer("hidden", self.between, "float32", "shared")

    def _buffer(self, name: str, size: int, dtype: str, scope: str = "local") -> Any:
        buffer = tirx.decl_buffer((size,), dtype, name, scope=scope)
        self.buffers.append(buffer)
        return buffer

    def fetched(self) -> list[tirx.Stmt]:
        """Return the statements that bring an image to shared memory."""
        turn = index_variable("turn")
        place = turn * self.threads + self.thread
        zero = tirx.const(0, INDEX)
        load = self.named["x"][self.image, place, zero, zero].astype("float32")
        store = tirx.BufferStore(self.x, load, [place])
        return [_turns(turn, self.channels, self.threads, place, store)]

    def squeezed(self) -> list[tirx.Stmt]:
        """Return the statements of the first layer: a warp for each of its outputs, whose lanes have parts of a sum."""
        vector = WIDE if self.channels % WIDE == 0 else 1
        turn, step, element = (index_variable(name) for name in ("turn", "step", "element"))
        warps = self.threads // WARP
        output, lane = turn * warps + tirx.floordiv(self.thread, WARP), tirx.floormod(self.thread, WARP)
        place = (step * WARP + lane) * vector
        sums = self._buffer("sums", 1, "float32")
        kept = self._buffer("kept", vector, str(self.named["w"].ty.dtype))
        zero = tirx.const(0, INDEX)
        copy = tirx.BufferStore(kept, self.named["w"].vload([output, place + element]), [element])
        product = kept[element].astype("float32") * self.x[place + element]
        add = tirx.BufferStore(sums, sums[zero] + product, [zero])
        parts = sequence([loop(element, vector, copy, tirx.ForKind.VECTORIZED), loop(element, vector, add)])
        there = tirx.const(True) if self.between % warps == 0 else output < self.between
        summed = tested([there], _turns(step, self.channels, WARP * vector, place, parts))
        joined = [exchange(sums, lambda one, other: one + other, distance) for distance in halves(WARP)]
        result = tirx.BufferStore(self.hidden, self._activated(self.first, "b", sums[zero], output), [output])
        stored = tested([there, tirx.EQ(lane, zero)], result)
        begin = tirx.BufferStore(sums, tirx.const(0, "float32"), [zero])
        body = sequence([begin, summed, *joined, stored])
        return [loop(turn, -(-self.between // warps), body, tirx.ForKind.SERIAL)]

    def excited(self) -> list[tirx.Stmt]:
        """Return the statements of the second layer: each thread has neighbouring outputs."""
        vector = PAIR if self.outputs % PAIR == 0 else 1
        turn, step, element = (index_variable(name) for name in ("turn", "step", "element"))
        place = (turn * self.threads + self.thread) * vector
        sums, output = self._buffer("totals", vector, "float32"), self.named["y"]
        kept = self._buffer("row", vector, str(self.named["v"].ty.dtype))
        out = self._buffer("out", vector, str(output.ty.dtype))
        zero = tirx.const(0, INDEX)
        copy = tirx.BufferStore(kept, self.named["v"].vload([step, place + element]), [element])
        product = kept[element].astype("float32") * self.hidden[step]
        add = tirx.BufferStore(sums, sums[element] + product, [element])
        parts = sequence([loop(element, vector, copy, tirx.ForKind.VECTORIZED), loop(element, vector, add)])
        result = self._activated(self.second, "c", sums[element], place + element).astype(str(output.ty.dtype))
        store = tirx.BufferStore(output, out[element], [self.image, place + element, zero, zero])
        body = sequence(
            [
                loop(element, vector, tirx.BufferStore(sums, tirx.const(0, "float32"), [element])),
                loop(step, self.between, parts, _kind(self.between)),
                loop(element, vector, tirx.BufferStore(out, result, [element])),
                loop(element, vector, store, tirx.ForKind.VECTORIZED),
            ]
        )
        return [_turns(turn, self.outputs, self.threads * vector, place, body)]

    def _activated(self, layer: ConvWorkload, shift: str, value: Expr, place: Expr) -> Expr:
        """Return an output of a layer, in float32, from its sum."""
        value = value + self.named[shift][place] if layer.epilogue.shift else value
        return activated(layer.epilogue, value, str(self.named["y"].ty.dtype) in NARROW)


def _turns(var: tvm.ir.Var, size: int, width: int, place: Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Return a loop whose turns have so many elements of `size` each, with a test where the last has fewer."""
    count = -(-size // width)
    tests: Sequence[Expr] = [] if size % width == 0 else [place < size]
    return loop(var, count, tested(list(tests), body), _kind(count))


def _kind(count: int) -> tirx.ForKind:
    return tirx.ForKind.UNROLLED if count <= UNROLLED else tirx.ForKind.SERIAL
