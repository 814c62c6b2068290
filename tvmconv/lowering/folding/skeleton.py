"""The skeleton of a sparse convolution: lowered and unrolled, except over output channels, and without a weight.

Each loop that the schedule annotated with `UNROLLED` is unrolled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.ir.instrument import pass_instrument
from tvm.sym import Analyzer

from tvmconv.compute.annotations import COPIED, UNROLLED
from tvmconv.compute.substitution import substitute
from tvmconv.problem.constants import COMPILED_IN
from tvmconv.targets import backend_of

from ..rounding import with_rounding
from .copying import Copies, committed, copied
from .hoisting import Hoisting
from .steps import Always, Loop, PerOutput, Products, Staging, Step

AFTER_UNROLLING = frozenset(
    ("tirx.SplitHostDevice", "tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize")
)
"""The passes at the end of TVM's pipeline that a skeleton has not gone through yet."""

Values = Mapping[tirx.Var, int]


@dataclass(frozen=True)
class Skeleton:
    """The parts of a kernel that all weights of a shape have in common."""

    func: tirx.PrimFunc
    """The lowered function, its loops still rolled, with the constants as parameters."""
    sums: tirx.Buffer
    """The thread's sums, which are zero at first."""
    extents: tuple[tirx.AttrStmt, ...]
    """The statements with the numbers of blocks and threads; empty for a CPU."""
    common: tuple[tirx.Stmt, ...]
    """The statements that a thread runs first, whatever its output channels are."""
    steps: tuple[Step, ...]
    """The unrolled steps of a thread."""

    @property
    def pixels(self) -> int:
        """The number of pixels of a thread: its multiply-adds for each weight."""
        indices = [step.weight_index for step in _flat(self.steps) if isinstance(step, Products)]
        return len(indices) // len(set(indices))


@pass_instrument
class _UpToUnrolling:
    def should_run(self, _mod: tvm.IRModule, info: Any) -> bool:
        return info.name not in AFTER_UNROLLING


def make_skeleton(func: tirx.PrimFunc, target: tvm.target.Target) -> Skeleton:
    """Return the skeleton of a scheduled function that computes `compute.dense.sparse`."""
    whole = target if target.host is not None else target.with_host(target)
    mod = tvm.IRModule({"skeleton": with_rounding(func, target).with_attr("global_symbol", "skeleton")})
    mod = tirx.transform.BindTarget(whole)(mod)
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    # Common subexpressions would be variables, which unrolling would define again and again.
    # On a CPU each block would overwrite the input of the next one if input and sums were to share memory.
    options = {"tirx.disable_cse_tir": True, "tirx.disable_storage_rewrite": not backend_of(target).on_gpu}
    with tvm.transform.PassContext(instruments=[_UpToUnrolling()], config=options):
        lowered = pipeline(mod)["skeleton"]
    unroller = _Unroller(lowered)
    steps: list[Step] = []

    def unroll(stmt: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
        if not is_thread(stmt):
            return mutator.default_mutate(stmt)
        steps.extend(unroller.steps(stmt, {}))
        return stmt

    tvm_ffi.structural_mutate(lowered.body, (tirx.SeqStmt, unroll))
    (sums,) = unroller.sums
    kept_steps = list(_without(steps, sums))
    if unroller.copies:
        kept_steps = list(unroller.copies.synchronized(kept_steps))
    extents = thread_extents(lowered)
    common = _with_intrinsics(unroller.hoisting.bindings, lowered, extents)
    if not extents:  # on a CPU blocks run one after the other, and read what is staged before the first one
        staged = [
            step for step in takewhile(lambda step: isinstance(step, Always), kept_steps) if isinstance(step, Always)
        ]
        common, kept_steps = tuple(step.stmt for step in staged), kept_steps[len(staged) :]
    return Skeleton(lowered, sums, extents, common, tuple(kept_steps))


def _flat(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield from _flat(step.steps) if isinstance(step, Loop) else (step,)


def _without(steps: Iterable[Step], sums: tirx.Buffer) -> Iterator[Step]:
    """Yield the steps except those that declare or zero the sums, or, with a single thread, declare a constant."""
    for step in steps:
        if isinstance(step, Loop):
            yield replace(step, steps=tuple(_without(step.steps, sums)))
        elif isinstance(step, Always) and declares(step.stmt, (sums.name, *COMPILED_IN)):
            continue
        elif not (isinstance(step, PerOutput) and _stored_to(step.stmt).same_as(sums)):
            yield step


def declares(stmt: tirx.Stmt, names: Sequence[str]) -> bool:
    """Return whether a statement declares a buffer with one of the names."""
    return isinstance(stmt, tirx.DeclBuffer | tirx.AllocBuffer) and stmt.buffer.name in names


def is_thread(stmt: tirx.Stmt) -> bool:
    """Return whether a statement is the work of a thread: the smallest one that contains all loops to unroll.

    Some of these loops may be inside loops that stay.
    """
    return any(is_unrolled(part) for part in stmt.seq) or sum(map(_has_unrolled, stmt.seq)) > 1


class _Unroller:
    """Unrolls statements in the order of their execution."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._analyzer = Analyzer()
        self.hoisting = Hoisting(self._analyzer)
        self._staged: Counter[tirx.Buffer] = Counter()
        self.sums: set[tirx.Buffer] = set()
        self.copies: Copies | None = None
        self._extents = thread_extents(func)
        for extent in self._extents:
            self._analyzer.bind(extent.node.var, tvm.ir.Range(0, extent.value))
        for loop in rolled_loops(func):
            self._analyzer.bind(loop.loop_var, tvm.ir.Range(loop.min, loop.extent))

    def steps(self, stmt: tirx.Stmt, values: Values) -> Iterator[Step]:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                yield from self.steps(part, values)
        elif isinstance(stmt, tirx.IfThenElse) and isinstance(stmt.then_case, tirx.For):
            for step in self.steps(stmt.then_case, values):
                assert not isinstance(step, Products | Loop)
                inside = tirx.IfThenElse(substitute(stmt.condition, values), step.stmt, None)
                yield replace(step, stmt=self._hoisted(inside, getattr(step, "k", None)))
        elif isinstance(stmt, tirx.For) and not is_unrolled(stmt) and _has_unrolled(stmt):
            yield Loop(stmt, tuple(self.steps(stmt.body, values)))
        elif not is_unrolled(stmt):
            yield Always(self._hoisted(substitute(stmt, values)))
        elif stmt.annotations[UNROLLED] == "k":
            yield self._per_output(stmt, values)
        elif stmt.annotations[UNROLLED] == "c":
            yield from self._staging(stmt, values)
        else:
            for value in range(int(stmt.extent)):
                yield from self.steps(stmt.body, {**values, stmt.loop_var: value})

    def _per_output(self, loop: tirx.For, values: Values) -> Step:
        """Return the step for a loop over output channels, which is the innermost one."""
        stmt, k = substitute(loop.body, values), loop.loop_var
        if isinstance(stmt, tirx.BufferStore) and isinstance(stmt.value, tirx.Add):
            before, product = stmt.value.a, stmt.value.b
            if isinstance(before, TensorLoad) and before.source.same_as(stmt.buffer) and isinstance(product, tirx.Mul):
                first, second = (self._constant(stmt.indices[0], k, at) for at in (0, 1))
                weight = product.b.value if isinstance(product.b, tirx.Broadcast) else product.b
                weight_index = self._constant(weight.indices[0], k, 0)
                self.sums.add(stmt.buffer)
                return Products(weight_index, self._hoisted(product.a), first, second - first)
        return PerOutput(k, self._hoisted(stmt, k))

    def _staging(self, loop: tirx.For, values: Values) -> Iterator[Step]:
        """Yield the steps for a loop over the channels of a chunk: chunks are staged in the order of their channels."""
        target, copies = _stored_to(loop.body), self._extents and loop.annotations.get(COPIED)
        first = self._staged[target]
        self._staged[target] += int(loop.extent)
        for channel in range(int(loop.extent)):
            for step in self.steps(loop.body, {**values, loop.loop_var: channel}):
                assert not isinstance(step, Products | Loop)
                yield Staging(first + channel, copied(step.stmt) if copies else step.stmt)
        if copies:
            self.copies = Copies(int(copies), int(loop.extent), self._staged[target])
            yield committed()

    def _hoisted(self, node: Any, k: tirx.Var | None = None) -> Any:
        if self._extents:
            return self.hoisting.rewrite(node, k)
        # LLVM hoists without help, and TVM's code for LLVM takes two parts of a buffer for different buffers. But an
        # index has to be written as a variable part plus a constant, or its arithmetic in 32 bits remains.
        return tvm_ffi.structural_map(node, (TensorLoad, self._simplified))

    def _simplified(self, load: TensorLoad) -> TensorLoad:
        return load.source[tuple(self._analyzer.simplify(index) for index in load.indices)]

    def _constant(self, index: tirx.PrimExpr, k: tirx.Var, value: int) -> int:
        return int(self._analyzer.simplify(substitute(first_lane(index), {k: value})))


def first_lane(index: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the index of a vector's first element."""
    return index.base if isinstance(index, tirx.Ramp) else index


def is_unrolled(stmt: tirx.Stmt) -> bool:
    """Return whether a statement is a loop that is to be unrolled."""
    return isinstance(stmt, tirx.For) and UNROLLED in stmt.annotations


def _has_unrolled(stmt: tirx.Stmt) -> bool:
    collected: list[tirx.For] = []
    tvm_ffi.structural_walk(stmt, (tirx.For, collected.append))
    return any(map(is_unrolled, collected))


def _with_intrinsics(
    bindings: list[tirx.Stmt], func: tirx.PrimFunc, extents: tuple[tirx.AttrStmt, ...]
) -> tuple[tirx.Stmt, ...]:
    """Return hoisted statements with divisions lowered to the target's intrinsics; no other statement divides."""
    if not bindings:
        return ()
    lowered: list[tirx.Stmt] = []
    body: tirx.Stmt = tirx.SeqStmt([*bindings, tirx.Evaluate(0)])
    for extent in extents:  # tells TVM that indices are not negative
        body = tirx.AttrStmt(extent.node, extent.attr_key, extent.value, body)
    for loop in rolled_loops(func):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)
    part = tirx.transform.LowerIntrin()(tvm.IRModule({"part": tirx.PrimFunc([], body, attrs=func.attrs)}))["part"]
    tvm_ffi.structural_walk(part.body, ((tirx.Bind, tirx.DeclBuffer), lowered.append))
    return tuple(lowered)


def rolled_loops(func: tirx.PrimFunc) -> list[tirx.For]:
    """Return the loops that stay loops, since they are not annotated with `UNROLLED`."""
    collected: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, collected.append))
    return [loop for loop in collected if UNROLLED not in loop.annotations]


def thread_extents(func: tirx.PrimFunc) -> tuple[tirx.AttrStmt, ...]:
    """Return the statements that hold the numbers of blocks and threads."""
    collected: list[tirx.AttrStmt] = []
    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, collected.append))
    return tuple(stmt for stmt in collected if stmt.attr_key == "thread_extent")


def _stored_to(stmt: tirx.Stmt) -> tirx.Buffer:
    collected: list[tirx.Buffer] = []
    tvm_ffi.structural_walk(stmt, (tirx.BufferStore, lambda store: collected.append(store.buffer)))
    return collected[0]
