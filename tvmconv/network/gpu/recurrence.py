"""The steps of a recurrent layer on a GPU: one kernel with a block for each row of the batch and direction.

A block has the state in shared memory and reads the whole weight in each step, from the L2 cache. Threads take the sums
of a gate's channels, then the next state of channels. The launch fills a GPU only with a hundred rows or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir.stmt import SBlock, SBlockRealize

from ..recurrence_cells import Buffers, Cell, Channel, Element, Recurrence, position_of
from .plan import INDEX, index_variable, loop, sequence

MOST_THREADS = 1024
"""The threads of a block at most."""

STATIC_BYTES = 48 * 1024
"""The shared memory of a block from which it is allocated at the launch."""

WARP = 32


def recurrence_for_gpu(layer: Recurrence, buffers: Buffers) -> tirx.Stmt:
    """Return the body of the function of a layer; `buffers` are its parameters by name.

    Before: `for step: sums = gates[step] + weight * h; h = cell(sums)`.
    After: `for row, direction in blocks: for step: for column in threads: sums[column] = gates[step, column] +
    weight[:, column] * h; for channel in threads: h[channel] = cell(sums)`, with barriers between them.
    """
    return _Kernel(layer, buffers).root()


class _Kernel:
    def __init__(self, layer: Recurrence, buffers: Buffers) -> None:
        self._layer, self._named = layer, buffers
        self._steps, self._batch, _ = buffers["gates"].ty.shape
        columns = len(max(layer.phases, key=len)) * layer.channels
        self._threads = min(MOST_THREADS, -(-columns // WARP) * WARP)
        bytes_of_element = 8 if layer.dtype == "float64" else 4
        rooms = {"state": layer.channels, "sums": columns, **dict.fromkeys(layer.kept, layer.channels)}
        scope = "shared" if sum(rooms.values()) * bytes_of_element <= STATIC_BYTES else "shared.dyn"
        self._made = {name: tirx.decl_buffer([room], layer.dtype, name, scope=scope) for name, room in rooms.items()}
        self._step, block = index_variable("step"), index_variable("block")
        self._block, directions = block, len(layer.reverse)
        self._row, self._direction = tirx.floordiv(block, directions), tirx.floormod(block, directions)

    def root(self) -> SBlockRealize:
        """Return the body of the function."""
        layer = self._layer
        steps = sequence([stage for phase in layer.phases for stage in (self._summed(phase), self._finished(phase))])
        stepped = loop(self._step, self._steps, steps, tirx.ForKind.SERIAL)
        whole = sequence([self._begun(), stepped, self._ended()])
        body = _bound(self._block, self._batch * len(layer.reverse), "blockIdx.x", whole)
        return SBlockRealize([], True, SBlock([], [], [], "root", body, alloc_buffers=list(self._made.values())))

    def _over(self, extent: int, of: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """Return the statement for all of a number of elements, which the threads share."""
        thread, turn = index_variable("thread"), index_variable("turn")
        turns = -(-extent // self._threads)
        at = turn * self._threads + thread if turns > 1 else thread
        body = of(at)
        if extent % self._threads:
            body = tirx.IfThenElse(at < extent, body, None)
        return _bound(thread, self._threads, "threadIdx.x", loop(turn, turns, body, tirx.ForKind.SERIAL))

    def _states(self) -> dict[str, Any]:
        """Return the buffers of what the first and the last states are, by the names of the operands."""
        return {"h": self._made["state"], **({"c": self._made["c"]} if "c" in self._made else {})}

    def _begun(self) -> tirx.Stmt:
        layer, zero = self._layer, tirx.const(0, self._layer.dtype)

        def filled(at: Expr) -> tirx.Stmt:
            here = (self._direction, self._row, at)
            return sequence(
                [
                    Element(made, [at]).store(tirx.if_then_else(at < layer.hidden, self._named[name][here], zero))
                    for name, made in self._states().items()
                ]
            )

        return self._over(layer.channels, filled)

    def _ended(self) -> tirx.Stmt:
        def stored(at: Expr) -> tirx.Stmt:
            here = (self._direction, self._row, at)
            return sequence(
                [Element(self._named[f"last_{name}"], here).store(made[at]) for name, made in self._states().items()]
            )

        return self._over(self._layer.hidden, stored)

    def _summed(self, phase: str) -> tirx.Stmt:
        """Return the statement that sums up the products for the gates of a phase."""
        layer, sums, direction = self._layer, self._made["sums"], self._direction
        first = layer.gates.index(phase[0]) * layer.channels
        factor = self._made["reset" if phase != layer.phases[0] else "state"]
        position, _ = position_of(layer, self._named, direction, self._step, self._row)
        k = index_variable("k")

        def summed(at: Expr) -> tirx.Stmt:
            column = direction * (len(layer.gates) * layer.channels) + first + at
            begin = self._named["gates"][position, self._row, column]
            if layer.linear_before_reset:
                end = 2 * layer.channels  # from where on the sums are GRU's h
                begin = tirx.if_then_else(at < end, begin, self._named["bias"][direction, tirx.max(at - end, 0)])
            gate, channel = tirx.floordiv(first + at, layer.channels), tirx.floormod(at, layer.channels)
            weight = self._named["weight"][direction, 0, k, gate, channel]
            total = Element(sums, [at])
            added = total.store(total.load() + factor[k] * weight)
            return sequence([total.store(begin), loop(k, layer.hidden, added, tirx.ForKind.SERIAL)])

        return self._over(len(phase) * layer.channels, summed)

    def _finished(self, phase: str) -> tirx.Stmt:
        """Return the statement that makes the next state of the sums of a phase."""
        layer, named, direction, row = self._layer, self._named, self._direction, self._row
        position, counts = position_of(layer, named, direction, self._step, row)

        def finished(at: Expr) -> tirx.Stmt:
            def product_of_input(gate: str) -> Element:
                column = (direction * len(layer.gates) + layer.gates.index(gate)) * layer.channels + at
                return Element(named["gates"], [position, row, column])

            state = Element(self._made["state"], [at])
            where = Channel(
                sums=lambda gate: Element(self._made["sums"], [phase.index(gate) * layer.channels + at]),
                gates=product_of_input,
                before=state,
                after=state,
                named=lambda name: Element(self._made[name], [at]),
                peepholes=lambda gate: Element(named["peepholes"], [direction, "iof".index(gate), at]),
                counts=counts,
            )
            statements = [Cell.either(layer, direction, phase, where)]
            if phase == layer.phases[-1]:
                value = state.load()
                if counts is not None:
                    value = tirx.Select(counts, value, tirx.const(0, layer.dtype))
                store = Element(named["y"], [position, direction, row, at]).store(value)
                if layer.hidden < layer.channels:
                    store = tirx.IfThenElse(at < layer.hidden, store, None)
                statements.append(store)
            return sequence(statements)

        return self._over(layer.channels, finished)


def _bound(var: tirx.Var, extent: Any, tag: str, body: tirx.Stmt) -> tirx.Stmt:
    """Return the loop of a variable that is bound to an index of blocks or threads."""
    axis = tirx.IterVar(None, index_variable(tag), tirx.IterVar.ThreadIndex, tag)
    count = tirx.const(extent, INDEX) if isinstance(extent, int) else extent
    return tirx.For(var, tirx.const(0, INDEX), count, tirx.ForKind.THREAD_BINDING, body, axis)
