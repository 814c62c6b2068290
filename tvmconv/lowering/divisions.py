"""Divisions by sizes that are known only when a kernel runs: simple ones on a CPU, multiplications on a GPU.

A kernel divides a pixel's number into image, row and column, or a task's into image and channels. TVM cannot tell that
sizes are above zero, and rounds such quotients down by code that its own passes take minutes to simplify in a large
kernel. A compiler turns a division by a number into a multiplication and a shift; for a GPU the CPU works out both for
a size before it launches the kernel.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from ..substitution import factors

BITS = 31
"""The bits of a number that is divided: an index of TVM's that is not below zero."""


def with_quotients_rounded_to_zero(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function whose quotients and rests by sizes that are known only when it runs are those of C.

    What is divided is not below zero, and sizes are above it. TVM's own functions, which are not scheduled yet, stay as
    they are.

    Before: `for task in T.parallel(batch * 24): ... task // batch ... task % batch ...`, rounded down.
    After: `for task in T.parallel(batch * 24): ... T.Div(task, batch) ... T.truncmod(task, batch) ...`.
    """
    sizes = _open_sizes(func)

    def of_c(division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        if sizes.isdisjoint(undefined_vars(division.b)):
            return division
        rounded = tirx.truncdiv if isinstance(division, tirx.FloorDiv) else tirx.truncmod
        return rounded(division.a, division.b)

    if not sizes:
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, [(kind, of_c) for kind in (tirx.FloorDiv, tirx.FloorMod)]))


def _open_sizes(func: tirx.PrimFunc) -> set[tvm.ir.Var]:
    """Return the sizes that a scheduled function gets from the shapes of its operands; none of one of TVM's own."""
    if not func.attrs or not func.attrs.get("tirx.is_scheduled"):
        return set()
    shapes = [param.ty.shape for param in func.params if not isinstance(param.ty, tvm.ir.PrimType)]
    return {var for shape in shapes for size in shape for var in undefined_vars(size)}


def with_multiplications(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function for a GPU that divides by no size that is known only when it runs.

    What is divided is not below zero, and sizes are above it. For tests of a quotient nothing is divided at all. TVM's
    own functions, which are not scheduled yet, stay as they are.

    Before: `for b in T.thread_binding(...): if p // columns < rows: output[p // columns, p % columns] = ...`.
    After: `multiplier = 2**(31 + shift) // columns + 1` on the CPU, where 2**shift is the least power that is not below
    the size, and in the kernel `if p < rows * columns`, and for each quotient `(2 * p * multiplier >> 32) >> shift`,
    which is exact for p below 2**31.
    """
    if not (sizes := _open_sizes(func)):
        return func
    body = tvm_ffi.structural_map(func.body, [(kind, _without_quotient) for kind in (tirx.LT, tirx.LE)])
    divisors = _Divisors(sizes)
    body = tvm_ffi.structural_map(body, [(kind, divisors.replaced) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    if not divisors.known:
        return func
    return func.with_body(divisors.with_numbers(tvm_ffi.structural_map(body, (tirx.For, _test_once))))


def _test_once(loop: tirx.For) -> tirx.Stmt:
    """Return a loop over a block with the block's test before it, if that is the same in each turn.

    A compiler unrolls such a loop, and works the places out again behind each test.
    """
    realize = loop.body
    if not isinstance(realize, SBlockRealize) or _is_true(realize.predicate):
        return loop
    if loop.kind != tirx.ForKind.SERIAL or loop.loop_var in undefined_vars(realize.predicate):
        return loop
    body = SBlockRealize(realize.iter_values, True, realize.block)
    inner = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return tirx.IfThenElse(realize.predicate, inner, None)


def _is_true(test: tirx.PrimExpr) -> bool:
    return isinstance(test, tirx.IntImm) and bool(test.value)


def _without_quotient(test: tirx.LT | tirx.LE) -> tirx.PrimExpr:
    """Return a test that a quotient or a rest is inside its bounds as one of what is divided."""
    if isinstance(test, tirx.LE) and isinstance(test.b, (tirx.FloorDiv, tirx.FloorMod)) and _is_zero(test.a):
        return tirx.const(True, "bool") if isinstance(test.b, tirx.FloorMod) else test.b.a >= 0
    if isinstance(test, tirx.LT) and isinstance(test.a, tirx.FloorDiv):
        return test.a.a < test.b * test.a.b
    if isinstance(test, tirx.LT) and isinstance(test.a, tirx.FloorMod) and _equal(test.a.b, test.b):
        return tirx.const(True, "bool")
    return test


def _is_zero(value: tirx.PrimExpr) -> bool:
    return isinstance(value, tirx.IntImm) and value.value == 0


def _equal(one: tirx.PrimExpr, other: tirx.PrimExpr) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))


class _Divisors:
    """The sizes that a function divides by, with the numbers that the CPU works out for each."""

    def __init__(self, sizes: set[tvm.ir.Var]) -> None:
        self.sizes = sizes
        self.known: list[tuple[tirx.PrimExpr, tirx.Var, tirx.Var]] = []
        """Each size, and the variables for the multiplier and for the shift."""

    def replaced(self, division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        """Return a quotient or a rest by multiplications; one by a number as it is."""
        if self.sizes.isdisjoint(undefined_vars(division.b)):
            return division
        quotient = division.a
        for size in factors(division.b):
            if isinstance(size, tirx.IntImm):
                quotient = quotient // size
            else:
                multiplier, shift = self._numbers(size)
                doubled = (quotient.astype("uint32") << tirx.const(1, "uint32")).astype("uint64")
                high = (doubled * multiplier.astype("uint64")) >> tirx.const(32, "uint64")
                quotient = (high.astype("uint32") >> shift).astype("int32")
        return quotient if isinstance(division, tirx.FloorDiv) else division.a - quotient * division.b

    def _numbers(self, divisor: tirx.PrimExpr) -> tuple[tirx.Var, tirx.Var]:
        for known, multiplier, shift in self.known:
            if _equal(known, divisor):
                return multiplier, shift
        multiplier, shift = tirx.Var("multiplier", "uint32"), tirx.Var("shift", "uint32")
        self.known.append((divisor, multiplier, shift))
        return multiplier, shift

    def with_numbers(self, body: SBlockRealize) -> SBlockRealize:
        """Return the body of a function behind statements that work the numbers out."""
        root, binds = body.block, []
        for divisor, *variables in self.known:
            shift = BITS - tirx.clz(2 * divisor - 1)  # of 2**s the least power that is not below the size
            multiplier = (tirx.const(1, "int64") << (shift + BITS).astype("int64")) // divisor.astype("int64") + 1
            for variable, value in zip(variables, (multiplier, shift), strict=True):
                binds.append(tirx.Bind(variable, _opaque(value.astype("uint32"))))
        statements = tirx.SeqStmt([*binds, root.body])
        return SBlockRealize([], True, SBlock([], [], [], root.name_hint, statements, alloc_buffers=root.alloc_buffers))


def _opaque(number: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the same unsigned number by a maximum with zero of LLVM's, into which TVM does not see.

    TVM would put an expression of its own in the place of its variable again, into the kernel.
    """
    return tirx.call_llvm_intrin("uint32", "llvm.umax.i32", number, tirx.const(0, "uint32"))
