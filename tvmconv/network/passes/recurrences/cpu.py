"""The steps of a recurrent layer on a CPU: one function with a loop over steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.compute.statements import INDEX, index_variable, loop, sequence
from tvmconv.compute.substitution import substitute
from tvmconv.targets.devices import Cpu

from ...recurrence.cells import Buffers, Cell, Channel, Element, Recurrence, position_of

MAX_ACCUMULATORS = 0.75
"""The largest share of the vector registers that hold sums; the others hold weights and elements of the state."""

BUSY = 8
"""The vectors of sums that keep a CPU's units for multiply-adds busy: two units, each with four cycles for a sum."""

SHARED_WORK = {1: 500_000, 2: 2_000_000}
"""The multiply-adds of a step of a direction from which threads share its channels, and wait for each other after it,
by the number of directions: two of them may have a thread each instead. `python benchmarks/thresholds.py recurrent`
measures these ways, and also gives `STEP_WORK`. From this number on, 2 MB, the weights of a direction do not fit into
the L2 cache of a core, and one thread takes two to five times as long; below it a busy neighbour costs more than
sharing saves."""

STEP_WORK = 2_000
"""The multiply-adds of a step of one direction from which directions are worth a thread each."""

NOTHING = tvm.ir.StringImm("")
"""The node that attribute statements refer to where they need none."""


@dataclass(frozen=True)
class Tiling:
    """A tile of sums: of each gate for some vectors of channels and some rows."""

    lanes: int
    vectors: int
    rows: int
    gates: int
    """The gates whose sums are in registers together."""

    @property
    def block(self) -> int:
        """The channels of each gate."""
        return self.lanes * self.vectors


def tiling_of(layer: Recurrence, cpu: Cpu, batch: Expr) -> Tiling:
    """Return the tiling for a batch, which may be open: then rows beyond whole tiles are taken one by one."""
    lanes = cpu.lanes if layer.dtype == "float32" else cpu.lanes // 2
    gates, in_all = len(max(layer.phases, key=len)), layer.channels // lanes
    accumulators = int(cpu.registers * MAX_ACCUMULATORS)
    vectors = max(each for each in range(1, max(1, BUSY // gates) + 1) if in_all % each == 0)
    rows = max(1, accumulators // (gates * vectors))
    if not isinstance(batch, tirx.IntImm) or int(batch) <= rows:
        return Tiling(lanes, vectors, min(rows, int(batch)) if isinstance(batch, tirx.IntImm) else rows, gates)
    # With many rows, a vector of the weight is loaded once for up to eight rows.
    rows = next(each for each in range(min(BUSY, int(batch)), 0, -1) if int(batch) % each == 0 or each <= BUSY // 2)
    together = max(1, accumulators // rows)
    return Tiling(lanes, 1, rows, -(-gates // -(-gates // together)))


def recurrence_for_cpu(layer: Recurrence, cpu: Cpu, buffers: Buffers) -> tirx.Stmt:
    """Return the body of the function of a layer; `buffers` are its parameters by name.

    Before: `for step: sums = gates[step] + weight * h; h = cell(sums)`.
    After: `for step: for block of channels: for rows: for k: sums[rows, gates, lanes] += weight[k, gates, lanes] *
    h[rows, k]; h = cell(sums)`, with a thread for each direction, or blocks shared by all threads.
    """
    return _Loops(layer, cpu, buffers).root()


class _Loops:
    """The loops of a layer, for one direction or for two, by the index `direction`."""

    def __init__(self, layer: Recurrence, cpu: Cpu, buffers: Buffers) -> None:
        self._layer, self._parameters = layer, dict(buffers)
        self._steps, self._batch, _ = buffers["gates"].ty.shape
        self._directions, self._hidden = len(layer.reverse), layer.hidden
        self._tiling = tiling_of(layer, cpu, self._batch)
        self._blocks = layer.channels // self._tiling.block
        state = [self._directions, self._batch, layer.channels]
        shapes = {"state": [2, *state], **dict.fromkeys(layer.state_buffers, state)}
        if layer.quantized:
            shapes |= {"rounded": state, "unit": [self._directions]}
        self._buffers = {name: tirx.decl_buffer(shape, layer.dtype, name) for name, shape in shapes.items()}

    def root(self) -> SBlockRealize:
        """Return the body of the function."""
        rows = int(self._batch) if isinstance(self._batch, tirx.IntImm) else 1
        work = len(self._layer.gates) * self._hidden * self._layer.channels * rows
        tasks = self._directions * self._blocks  # TVM makes no parallel loop of a single part
        if work >= SHARED_WORK[self._directions] and tasks > 1 and not self._layer.quantized:
            body = self._shared()
        else:
            body = self._apart(work >= STEP_WORK)
        return SBlockRealize([], True, SBlock([], [], [], "root", body, alloc_buffers=list(self._buffers.values())))

    def _apart(self, in_threads: bool) -> tirx.Stmt:
        """Return the statement that runs the directions one after the other, or in threads."""
        direction, step, block = (index_variable(name) for name in ("direction", "step", "block"))
        phases = [
            serial(block, self._blocks, self._phase(phase, direction, step, block)) for phase in self._layer.phases
        ]
        if self._layer.quantized:
            phases.insert(0, self._rounded(direction, step))
        steps = serial(step, self._steps, sequence(phases))
        body = sequence([self._initial_states(direction), steps, self._final_states(direction)])
        kind = tirx.ForKind.PARALLEL if in_threads else tirx.ForKind.SERIAL
        return loop(direction, self._directions, body, kind)

    def _shared(self) -> tirx.Stmt:
        """Return the statement in which all threads share the blocks of all directions in each phase of a step."""
        part, step = index_variable("part"), index_variable("step")

        def waited(extent: int, body: tirx.Stmt) -> tirx.Stmt:
            """Return the loop over `part` that threads share, and after which they wait for each other."""
            total = tirx.const(extent, INDEX)
            fresh = index_variable("part")
            body = substitute(body, {part: fresh})
            shared = tirx.For(fresh, tirx.const(0, INDEX), total, tirx.ForKind.PARALLEL, body)
            return tirx.AttrStmt(NOTHING, "pragma_parallel_barrier_when_finish", tirx.const(1), shared)

        direction, block = tirx.floordiv(part, self._blocks), tirx.floormod(part, self._blocks)
        phases = [
            waited(self._directions * self._blocks, self._phase(phase, direction, step, block))
            for phase in self._layer.phases
        ]
        begun, ended = (waited(self._directions, of(part)) for of in (self._initial_states, self._final_states))
        body = sequence([begun, serial(step, self._steps, sequence(phases)), ended])
        return tirx.AttrStmt(NOTHING, "pragma_parallel_launch_point", tirx.const(1), body)

    def _initial_states(self, direction: Expr) -> tirx.Stmt:
        """Return the statement that fills a direction's state with the initial state, and with zeros after it."""
        row, channel = index_variable("row"), index_variable("channel")
        targets = {"h": Element(self._buffers["state"], [0, direction, row, channel])}
        if "c" in self._buffers:
            targets["c"] = Element(self._buffers["c"], [direction, row, channel])
        zero = tirx.const(0, self._layer.dtype)
        stores = [
            target.store(
                tirx.if_then_else(channel < self._hidden, self._parameters[name][direction, row, channel], zero)
            )
            for name, target in targets.items()
        ]
        return serial(row, self._batch, serial(channel, self._layer.channels, sequence(stores)))

    def _final_states(self, direction: Expr) -> tirx.Stmt:
        """Return the statement that stores the last states of a direction."""
        row, channel = index_variable("row"), index_variable("channel")
        at = [direction, row, channel]
        final = {"last_h": Element(self._buffers["state"], [tirx.floormod(self._steps, 2), *at])}
        if "c" in self._buffers:
            final["last_c"] = Element(self._buffers["c"], at)
        stores = [Element(self._parameters[name], at).store(state.load()) for name, state in final.items()]
        return serial(row, self._batch, serial(channel, self._hidden, sequence(stores)))

    def _rounded(self, direction: Expr, step: Var) -> tirx.Stmt:
        """Return the statement that rounds the state of all rows to 256 values, and stores the step between these.

        It is ONNX's DynamicQuantizeLinear, less its zero point, which makes integers from -255 to 255.
        """
        row, vector, lane = (index_variable(name) for name in ("row", "vector", "lane"))
        lanes, dtype = self._tiling.lanes, self._layer.dtype
        ends = tirx.decl_buffer([2, lanes], dtype, "ends", scope="local")
        channel = vector * lanes + lane
        state = self._buffers["state"][tirx.floormod(step, 2), direction, row, channel]
        value = tirx.Select(channel < self._layer.hidden, state, tirx.const(0, dtype))

        def for_state_elements(*statements: tirx.Stmt) -> tirx.Stmt:
            body = loop(lane, lanes, sequence(list(statements)), tirx.ForKind.VECTORIZED)
            return serial(row, self._batch, serial(vector, self._layer.channels // lanes, body))

        def end(number: int, at: Expr | int) -> Element:
            return Element(ends, [number, at])

        joins = (tirx.min, tirx.max)
        begun = [end(number, lane).store(tirx.const(0, dtype)) for number in range(2)]
        found = [end(number, lane).store(join(end(number, lane).load(), value)) for number, join in enumerate(joins)]
        joined = [
            end(number, 0).store(join(end(number, 0).load(), end(number, lane).load()))
            for number, join in enumerate(joins)
        ]
        low, high = end(0, 0).load(), end(1, 0).load()
        unit = Element(self._buffers["unit"], [direction])
        zero_point = tirx.min(tirx.nearbyint(-low / unit.load()), tirx.const(255, dtype))
        point = tirx.decl_buffer([1], dtype, "point", scope="local")
        rounded = tirx.nearbyint(state / unit.load())
        rounded = tirx.max(tirx.min(rounded, 255.0 - point[0]), -point[0])
        statements = [
            loop(lane, lanes, sequence(begun), tirx.ForKind.VECTORIZED),
            for_state_elements(*found),
            serial(lane, lanes, sequence(joined)),
            unit.store(tirx.Select(low == high, tirx.const(1, dtype), (high - low) / 255.0)),
            Element(point, [0]).store(zero_point),
            for_state_elements(Element(self._buffers["rounded"], [direction, row, channel]).store(rounded)),
        ]
        return SBlockRealize([], True, SBlock([], [], [], "rounded", sequence(statements), alloc_buffers=[ends, point]))

    def _phase(self, phase: str, direction: Expr, step: Var, block: Expr) -> tirx.Stmt:
        """Return the statement for a block of channels in a phase of a step, for all rows."""
        first, rows = index_variable("tile"), self._tiling.rows
        whole, rest = tirx.floordiv(self._batch, rows), tirx.floormod(self._batch, rows)

        buffers = {**self._parameters, **self._buffers}

        def tile(first: Expr, rows: int) -> tirx.Stmt:
            return Tile(self._layer, self._tiling, buffers, phase, direction, step, block, first, rows).statement()

        statements = [serial(first, whole, tile(first * rows, rows))]
        if isinstance(self._batch, tirx.IntImm):
            count = int(self._batch) % rows
            statements += [tile(whole * rows, count)] if count else []
        else:
            statements.append(serial(first, rest, tile(whole * rows + first, 1)))
        return sequence(statements)


@dataclass(frozen=True)
class Tile:
    """A block of channels and some rows in a phase of a step, whose sums are in registers."""

    layer: Recurrence
    tiling: Tiling
    buffers: Buffers
    phase: str
    direction: Expr
    step: Expr
    block: Expr
    first: Expr
    """The first row."""
    rows: int

    def statement(self) -> tirx.Stmt:
        layer, rows = self.layer, self.rows
        sums = tirx.decl_buffer([rows, len(self.phase), self.tiling.block], layer.dtype, "sums", scope="local")
        row, k = index_variable("row"), index_variable("k")

        # Step 1. Sums begin with the products of the input
        def begin(number: int, at: Expr) -> tirx.Stmt:
            return Element(sums, [row, number, at]).store(self._begin(row, self.phase[number], at))

        begun = [self._lanes(partial(begin, number)) for number in range(len(self.phase))]

        # Step 2. Each element of the state is multiplied by a row of the weight
        def added(row: int, number: int, at: Expr) -> tirx.Stmt:
            total, gate = Element(sums, [row, number, at]), layer.gates.index(self.phase[number])
            weight = self.buffers["weight"][self.direction, self.block, k, gate, at]
            return total.store(total.load() + self._factor(row, k) * weight.astype(layer.dtype))

        def multiplied(numbers: Sequence[int]) -> tirx.Stmt:
            every = [self._lanes(partial(added, *each), unrolled=True) for each in product(range(rows), numbers)]
            return serial(k, layer.hidden, sequence(every))

        numbers, together = range(len(self.phase)), self.tiling.gates
        products = [multiplied(numbers[first : first + together]) for first in numbers[::together]]

        # Step 3. The next state, and the output
        next_states = serial(row, rows, sequence(self._next_states(sums, row)))
        statements = sequence([serial(row, rows, sequence(begun)), *products, next_states])
        return SBlockRealize([], True, SBlock([], [], [], "tile", statements, alloc_buffers=[sums]))

    def _next_states(self, sums: Any, row: Expr) -> list[tirx.Stmt]:
        layer, buffers, direction = self.layer, self.buffers, self.direction
        parity, next_parity = tirx.floormod(self.step, 2), tirx.floormod(self.step + 1, 2)
        position, counts = self._position(row)

        def of_lane(at: Expr) -> tirx.Stmt:
            channel = self.block * self.tiling.block + at
            here = [direction, self.first + row, channel]
            channel_elements = Channel(
                sums=lambda gate: Element(sums, [row, self.phase.index(gate), at]),
                gates=lambda gate: self._product_of_input(row, gate, at),
                state=Element(buffers["state"], [parity, *here]),
                next_state=Element(buffers["state"], [next_parity, *here]),
                named=lambda name: Element(buffers[name], here),
                peepholes=lambda gate: Element(buffers["peepholes"], [direction, "iof".index(gate), channel]),
                counts=counts,
            )
            scaled = []
            if layer.quantized:
                for gate in self.phase:
                    total = channel_elements.sums(gate)
                    scale = buffers["scales"][direction, layer.gates.index(gate), channel] * buffers["unit"][direction]
                    scaled.append(total.store(total.load() * scale + channel_elements.gates(gate).load()))
            return sequence([*scaled, Cell.for_any_direction(layer, direction, self.phase, channel_elements)])

        statements = [self._lanes(of_lane)]
        if self.phase == layer.phases[-1]:
            lane = index_variable("lane")
            channel = self.block * self.tiling.block + lane
            value = buffers["state"][next_parity, direction, self.first + row, channel]
            if counts is not None:
                value = tirx.Select(counts, value, tirx.const(0, layer.dtype))
            store = Element(buffers["y"], [position, direction, self.first + row, channel]).store(value)
            count = tirx.const(self.tiling.block, INDEX)
            if layer.hidden < layer.channels:  # whole blocks may lie behind the last channel
                count = tirx.max(tirx.min(count, layer.hidden - self.block * self.tiling.block), tirx.const(0, INDEX))
            statements.append(serial(lane, count, store))
        return statements

    def _begin(self, row: Expr, gate: str, at: Expr) -> Expr:
        """Return the initial value of the sum of a gate."""
        if self.layer.quantized:
            return tirx.const(0, self.layer.dtype)
        if gate == "h" and self.layer.linear_before_reset:
            return self.buffers["bias"][self.direction, self.block * self.tiling.block + at]
        return self._product_of_input(row, gate, at).load()

    def _factor(self, row: int, k: Expr) -> Expr:
        """Return element k of the state that the weight is multiplied by: the rounded one, or the reset one."""
        at = self.direction, self.first + row, k
        if self.layer.quantized:
            return self.buffers["rounded"][at]
        if self.phase == "h" and len(self.layer.phases) > 1:
            return self.buffers["reset"][at]
        before = tirx.floormod(self.step, 2), *at
        return self.buffers["state"][before]

    def _product_of_input(self, row: Expr, gate: str, at: Expr) -> Element:
        gates = self.layer.gates
        column = (self.direction * len(gates) + gates.index(gate)) * self.layer.channels
        return Element(
            self.buffers["gates"],
            [self._position(row)[0], self.first + row, column + self.block * self.tiling.block + at],
        )

    def _position(self, row: Expr) -> tuple[Expr, Expr | None]:
        """Return the position of a row's step in the input, and whether it counts; None where all do."""
        return position_of(self.layer, self.buffers, self.direction, self.step, self.first + row)

    def _lanes(self, statement_of: Callable[[Expr], tirx.Stmt], unrolled: bool = False) -> tirx.Stmt:
        """Return a statement for all lanes of each vector of the block."""
        vector, lane, lanes = index_variable("vector"), index_variable("lane"), self.tiling.lanes
        body = loop(lane, lanes, statement_of(vector * lanes + lane), tirx.ForKind.VECTORIZED)
        return loop(vector, self.tiling.vectors, body, tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL)


def serial(var: Var, extent: Any, body: tirx.Stmt) -> tirx.Stmt:
    return loop(var, extent, body, tirx.ForKind.SERIAL)
