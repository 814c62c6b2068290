"""The kernel for a GPU of two layers on images of one pixel: the gate of squeeze and excitation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr

from tvmconv.compute.functions import activated
from tvmconv.compute.statements import (
    INDEX,
    barrier,
    exchange,
    halves,
    index_variable,
    launched,
    loop,
    sequence,
    tested,
)
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.fused.gate import Gate
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

WIDE = 4
"""The elements of a row of the first weight that a thread loads at once."""

PAIR = 2
"""The outputs of a thread, where their number is even."""

UNROLLED = 64
"""The most iterations of a loop that is unrolled."""


def gate_kernel(gate: Gate, threads: int) -> tirx.PrimFunc:
    """Return the function of a gate, with a block for each image; all sums are in float32.

    Before: `h = act(conv(x, w) + b)`, `y = act(conv(h, v) + c)`, of images of one pixel.
    After: `for n in blocks: shared x[n]; wait; for s in warps: h[s] = act(sum over lanes of x * w[s] + b[s]); wait; for
    k in threads: y[n, k] = act(sum of h[s] * v[s, k] + c[k])`.
    """
    kernel = _Kernel(gate, threads)
    body = sequence([*kernel.fetched(), barrier(), *kernel.squeezed(), barrier(), *kernel.excited()])
    root = launched(body, {kernel.thread: kernel.threads, kernel.image: kernel.images}, kernel.buffers)
    return tirx.PrimFunc(list(kernel.named.values()), root).with_attrs({"tirx.noalias": True, "s_tir": True})


class _Kernel:
    """The parts of the kernel of a gate."""

    def __init__(self, gate: Gate, threads: int) -> None:
        self.threads, self.first, self.second = threads, gate.first, gate.second
        self.channels, self.between, self.outputs = (
            gate.first.in_channels,
            gate.first.out_channels,
            gate.second.out_channels,
        )
        batch: Any = gate.first.batch
        self.images = batch if isinstance(batch, int) else batch.astype(INDEX)
        self.named = {name: tirx.decl_buffer(*operand, name) for name, operand in gate.operands.items()}
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
        channel = turn * self.threads + self.thread
        zero = tirx.const(0, INDEX)
        load = self.named["x"][self.image, channel, zero, zero].astype("float32")
        store = tirx.BufferStore(self.x, load, [channel])
        return [_turns(turn, self.channels, self.threads, channel, store)]

    def squeezed(self) -> list[tirx.Stmt]:
        """Return the statements of the first layer: a warp for each of its outputs, whose lanes have parts of a sum."""
        vector = WIDE if self.channels % WIDE == 0 else 1
        turn, step, element = (index_variable(name) for name in ("turn", "step", "element"))
        warps = self.threads // WARP
        output, lane = turn * warps + tirx.floordiv(self.thread, WARP), tirx.floormod(self.thread, WARP)
        channel = (step * WARP + lane) * vector
        sums = self._buffer("sums", 1, "float32")
        staged = self._buffer("kept", vector, str(self.named["w"].ty.dtype))
        zero = tirx.const(0, INDEX)
        copy = tirx.BufferStore(staged, self.named["w"].vload([output, channel + element]), [element])
        product = staged[element].astype("float32") * self.x[channel + element]
        add = tirx.BufferStore(sums, sums[zero] + product, [zero])
        add_products = sequence([loop(element, vector, copy, tirx.ForKind.VECTORIZED), loop(element, vector, add)])
        exists = tirx.const(True) if self.between % warps == 0 else output < self.between
        summed = tested([exists], _turns(step, self.channels, WARP * vector, channel, add_products))
        joined = [exchange(sums, lambda one, other: one + other, distance) for distance in halves(WARP)]
        result = tirx.BufferStore(self.hidden, self._activated(self.first, "b", sums[zero], output), [output])
        stored = tested([exists, tirx.EQ(lane, zero)], result)
        begin = tirx.BufferStore(sums, tirx.const(0, "float32"), [zero])
        body = sequence([begin, summed, *joined, stored])
        return [loop(turn, -(-self.between // warps), body, tirx.ForKind.SERIAL)]

    def excited(self) -> list[tirx.Stmt]:
        """Return the statements of the second layer: each thread has neighbouring outputs."""
        vector = PAIR if self.outputs % PAIR == 0 else 1
        turn, step, element = (index_variable(name) for name in ("turn", "step", "element"))
        channel = (turn * self.threads + self.thread) * vector
        sums, output = self._buffer("totals", vector, "float32"), self.named["output"]
        staged = self._buffer("row", vector, str(self.named["v"].ty.dtype))
        out = self._buffer("out", vector, str(output.ty.dtype))
        zero = tirx.const(0, INDEX)
        copy = tirx.BufferStore(staged, self.named["v"].vload([step, channel + element]), [element])
        product = staged[element].astype("float32") * self.hidden[step]
        add = tirx.BufferStore(sums, sums[element] + product, [element])
        add_products = sequence([loop(element, vector, copy, tirx.ForKind.VECTORIZED), loop(element, vector, add)])
        result = self._activated(self.second, "c", sums[element], channel + element).astype(str(output.ty.dtype))
        store = tirx.BufferStore(output, out[element], [self.image, channel + element, zero, zero])
        body = sequence(
            [
                loop(element, vector, tirx.BufferStore(sums, tirx.const(0, "float32"), [element])),
                loop(step, self.between, add_products, _kind(self.between)),
                loop(element, vector, tirx.BufferStore(out, result, [element])),
                loop(element, vector, store, tirx.ForKind.VECTORIZED),
            ]
        )
        return [_turns(turn, self.outputs, self.threads * vector, channel, body)]

    def _activated(self, layer: ConvWorkload, shift: str, value: Expr, channel: Expr) -> Expr:
        """Return an output of a layer, in float32, from its sum."""
        value = value + self.named[shift][channel] if layer.epilogue.shift else value
        return activated(layer.epilogue, value, str(self.named["output"].ty.dtype) in NARROW)


def _turns(var: tvm.ir.Var, size: int, width: int, first: Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Return a loop over `size` elements, `width` in each iteration, with a test where the last one has fewer."""
    count = -(-size // width)
    tests: Sequence[Expr] = [] if size % width == 0 else [first < size]
    return loop(var, count, tested(list(tests), body), _kind(count))


def _kind(count: int) -> tirx.ForKind:
    return tirx.ForKind.UNROLLED if count <= UNROLLED else tirx.ForKind.SERIAL
