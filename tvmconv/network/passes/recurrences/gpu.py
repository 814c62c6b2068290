"""The steps of a recurrent layer on a GPU: one kernel with a block for each row of the batch and direction.

A block has the state in shared memory and reads the whole weight in each step, from the L2 cache; a thread computes all
gates of its channels. The kernel fills a GPU only with a hundred rows or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.compute.statements import INDEX, index_variable, loop, sequence

from ...recurrence.cells import Buffers, Cell, Channel, Element, Recurrence, position_of

MAX_THREADS = 1024
"""The threads of a block at most."""

STATIC_BYTES = 48 * 1024
"""The shared memory of a block beyond which it is allocated at the launch."""


def recurrence_for_gpu(layer: Recurrence, buffers: Buffers) -> tirx.Stmt:
    """Return the body of the function of a layer; `buffers` are its parameters by name.

    TVM puts the barriers between what threads store in shared memory and what others read.

    Before: `for step: sums = gates[step] + weight * h; h = cell(sums)`.
    After: `for row, direction in blocks: for step: for channel in threads: sums = gates[step, channel] +
    weight[:, channel] * h[step % 2]; h[(step + 1) % 2, channel] = cell(sums)`.
    """
    return _Kernel(layer, buffers).root()


class _Kernel:
    def __init__(self, layer: Recurrence, buffers: Buffers) -> None:
        self._layer, self._parameters = layer, buffers
        self._steps, self._batch, _ = buffers["gates"].ty.shape
        turns = -(-layer.channels // MAX_THREADS)
        # The threads divide the channels, so that no barrier is inside a condition.
        while layer.channels % turns:
            turns += 1
        self._turns, self._threads = turns, layer.channels // turns
        shapes = {"state": [2, layer.channels], **{name: [layer.channels] for name in layer.state_buffers}}
        elements = sum(prod(shape) for shape in shapes.values())
        scope = "shared" if elements * (8 if layer.dtype == "float64" else 4) <= STATIC_BYTES else "shared.dyn"
        self._buffers = {
            name: tirx.decl_buffer(shape, layer.dtype, name, scope=scope) for name, shape in shapes.items()
        }
        self._step, self._block = index_variable("step"), index_variable("block")
        directions = len(layer.reverse)
        self._row, self._direction = tirx.floordiv(self._block, directions), tirx.floormod(self._block, directions)

    def root(self) -> SBlockRealize:
        """Return the body of the function."""
        layer = self._layer
        phases = sequence([self._for_all_channels(partial(self._phase, phase)) for phase in layer.phases])
        steps = loop(self._step, self._steps, phases, tirx.ForKind.SERIAL)
        begin, end = self._for_all_channels(self._initial_states), self._for_all_channels(self._final_states)
        body = _bound(self._block, self._batch * len(layer.reverse), "blockIdx.x", sequence([begin, steps, end]))
        return SBlockRealize([], True, SBlock([], [], [], "root", body, alloc_buffers=list(self._buffers.values())))

    def _for_all_channels(self, statement_of: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """Return the statement that the threads run for all channels, each for some of them."""
        thread, turn = index_variable("thread"), index_variable("turn")
        body = loop(turn, self._turns, statement_of(turn * self._threads + thread), tirx.ForKind.SERIAL)
        return _bound(thread, self._threads, "threadIdx.x", body)

    def _states(self, parity: Expr | int, channel: Expr) -> dict[str, Element]:
        """Return the elements of a channel's states, by the names of the operands; `parity` chooses the buffer of h."""
        found = {"h": Element(self._buffers["state"], [parity, channel])}
        return found | ({"c": Element(self._buffers["c"], [channel])} if "c" in self._buffers else {})

    def _initial_states(self, channel: Expr) -> tirx.Stmt:
        here, zero = (self._direction, self._row, channel), tirx.const(0, self._layer.dtype)
        is_there = channel < self._layer.hidden
        first = {
            name: tirx.if_then_else(is_there, self._parameters[name][here], zero) for name in self._states(0, channel)
        }
        return sequence([element.store(first[name]) for name, element in self._states(0, channel).items()])

    def _final_states(self, channel: Expr) -> tirx.Stmt:
        here = (self._direction, self._row, channel)
        states = self._states(tirx.floormod(self._steps, 2), channel)
        return sequence([self._stored(f"last_{name}", here, channel, state.load()) for name, state in states.items()])

    def _stored(self, name: str, here: Sequence[Expr], channel: Expr, value: Expr) -> tirx.Stmt:
        """Return the statement that stores a value of a result, unless its channel is padding."""
        variable = tirx.Var("value", self._layer.dtype)
        store = Element(self._parameters[name], here).store(variable)
        if self._layer.hidden < self._layer.channels:
            store = tirx.IfThenElse(channel < self._layer.hidden, store, None)
        return sequence([tirx.Bind(variable, value), store])

    def _phase(self, phase: str, channel: Expr) -> tirx.Stmt:
        """Return the statement for a channel in a phase of a step."""
        layer, parameters, buffers = self._layer, self._parameters, self._buffers
        direction, row = self._direction, self._row
        position, counts = position_of(layer, parameters, direction, self._step, row)
        parity, next_parity = tirx.floormod(self._step, 2), tirx.floormod(self._step + 1, 2)
        k = index_variable("k")
        factor = buffers["state"][parity, k] if phase == layer.phases[0] else buffers["reset"][k]
        registers = tirx.decl_buffer([len(phase)], layer.dtype, "sums", scope="local")

        def product_of_input(gate: str) -> Element:
            column = (direction * len(layer.gates) + layer.gates.index(gate)) * layer.channels + channel
            return Element(parameters["gates"], [position, row, column])

        at = Channel(
            sums=lambda gate: Element(registers, [phase.index(gate)]),
            gates=product_of_input,
            state=Element(buffers["state"], [parity, channel]),
            next_state=Element(buffers["state"], [next_parity, channel]),
            named=lambda name: Element(buffers[name], [channel]),
            peepholes=lambda gate: Element(parameters["peepholes"], [direction, "iof".index(gate), channel]),
            counts=counts,
        )

        # Step 1. Sums begin with the products of the input, and get those of the state
        statements, added = list[tirx.Stmt](), list[tirx.Stmt]()
        for gate in phase:
            total, begin = at.sums(gate), product_of_input(gate)
            if gate == "h" and layer.linear_before_reset:
                begin = Element(parameters["bias"], [direction, channel])
            weight = parameters["weight"][direction, 0, k, layer.gates.index(gate), channel]
            statements.append(total.store(begin.load()))
            added.append(total.store(total.load() + factor * weight))
        statements.append(loop(k, layer.hidden, sequence(added), tirx.ForKind.SERIAL))

        # Step 2. The next state, and the output
        statements.append(Cell.for_any_direction(layer, direction, phase, at))
        if phase == layer.phases[-1]:
            value = at.next_state.load()
            if counts is not None:
                value = tirx.Select(counts, value, tirx.const(0, layer.dtype))
            statements.append(self._stored("y", (position, direction, row, channel), channel, value))
        return SBlockRealize([], True, SBlock([], [], [], "phase", sequence(statements), alloc_buffers=[registers]))


def _bound(var: tirx.Var, extent: Any, tag: str, body: tirx.Stmt) -> tirx.Stmt:
    """Return the loop of a variable that is bound to an index of blocks or threads."""
    axis = tirx.IterVar(None, index_variable(tag), tirx.IterVar.ThreadIndex, tag)
    count = tirx.const(extent, INDEX) if isinstance(extent, int) else extent
    return tirx.For(var, tirx.const(0, INDEX), count, tirx.ForKind.THREAD_BINDING, body, axis)
