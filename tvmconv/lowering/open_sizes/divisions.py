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
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import factors

from ..signatures import is_scheduled

BITS = 31
"""The number of bits of a dividend: an index of TVM's that is not negative."""


def with_nonnegative_dividends(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function in which no dividend of a division by an open size is negative.

    In a scheduled function quotients are rounded to zero, in TVM's operators down: the remainder of -1 by n is n - 1.

    Before: `(i - 2) % n`. After: `T.Select(i >= 2, T.max(i - 2, 0) % n, n - 1 - T.max(1 - i, 0) % n)`.
    """
    sizes = _sizes_of_operands(func)

    def replaced(division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        number, divisor = division.a, division.b
        if not _is_size(divisor, sizes) or not _may_be_negative(number, sizes):
            return division
        operator = type(division)
        above, below = (operator(tirx.max(each, 0), divisor) for each in (number, -1 - number))
        last = -1 if operator is tirx.FloorDiv else divisor - 1
        return tirx.Select(number >= 0, above, last - below)

    if not sizes:
        return func
    return func.with_body(
        tvm_ffi.structural_map(func.body, [(kind, replaced) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    )


def _may_be_negative(number: tirx.PrimExpr, sizes: set[tvm.ir.Var]) -> bool:
    """Return whether a dividend may be negative: something is subtracted in it, or a tensor's element is in it.

    Variables are the indices of loops and sizes, and quotients are made of these: none is negative. Nor is a factor
    that is made of sizes alone, however it is written.
    """

    def any_of(*parts: tirx.PrimExpr) -> bool:
        return any(_may_be_negative(part, sizes) for part in parts)

    if isinstance(number, tirx.IntImm):
        return int(number) < 0
    if isinstance(number, (tirx.Add, tirx.Min)):
        return any_of(number.a, number.b)
    if isinstance(number, tirx.Max):
        return any_of(number.a) and any_of(number.b)
    if isinstance(number, tirx.Mul):
        return any_of(*(factor for factor in (number.a, number.b) if not _is_size_alone(factor, sizes)))
    if isinstance(number, tirx.Cast):
        return any_of(number.value)
    if isinstance(number, tirx.Select):
        return any_of(number.true_value, number.false_value)
    if isinstance(number, tirx.Sub) and isinstance(number.b, tirx.FloorMod):  # n - 1 - x % n, of another division
        return not tvm_ffi.structural_equal(number.a, number.b.b - 1)
    return not isinstance(number, (tvm.ir.Var, tirx.FloorDiv, tirx.FloorMod))


def _is_size_alone(number: tirx.PrimExpr, sizes: set[tvm.ir.Var]) -> bool:
    """Return whether open sizes are the only variables of a number, and there are some."""
    variables = set(undefined_vars(number))
    return bool(variables) and variables <= sizes


def with_quotients_rounded_to_zero(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function whose quotients and remainders by open sizes are those of C.

    Dividends are not negative, and sizes are positive. TVM's own functions, which are not scheduled yet, stay as they
    are.

    Before: `for task in T.parallel(batch * 24): ... task // batch ... task % batch ...`, rounded down.
    After: `for task in T.parallel(batch * 24): ... T.Div(task, batch) ... T.truncmod(task, batch) ...`.
    """
    sizes = _open_sizes(func)

    def of_c(division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        if not _is_size(division.b, sizes):
            return division
        rounded = tirx.truncdiv if isinstance(division, tirx.FloorDiv) else tirx.truncmod
        return rounded(division.a, division.b)

    if not sizes:
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, [(kind, of_c) for kind in (tirx.FloorDiv, tirx.FloorMod)]))


def _open_sizes(func: tirx.PrimFunc) -> set[tvm.ir.Var]:
    """Return the sizes that a scheduled function gets from the shapes of its operands; none for TVM's own functions."""
    return _sizes_of_operands(func) if is_scheduled(func) else set()


def _sizes_of_operands(func: tirx.PrimFunc) -> set[tvm.ir.Var]:
    shapes = [param.ty.shape for param in func.params if not isinstance(param.ty, tvm.ir.PrimType)]
    return {var for shape in shapes for size in shape for var in undefined_vars(size)}


def _is_size(divisor: tirx.PrimExpr, sizes: set[tvm.ir.Var]) -> bool:
    """Return whether a divisor is made of open sizes; an element of a tensor is not, whatever its indices."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(divisor, [(TensorLoad, loads.append)])
    return not loads and not sizes.isdisjoint(undefined_vars(divisor))


def with_multiplications(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function for a GPU with multiplications instead of divisions by open sizes.

    Dividends are not negative, and sizes are positive. TVM's own functions, which are not scheduled yet, stay as they
    are.

    Before: `for b in T.thread_binding(...): output[p // columns, p % columns] = ...`.
    After: `multiplier = 2**(31 + shift) // columns + 1` on the CPU, where 2**shift is the least power that is not below
    the size, and in the kernel for each quotient `(p * multiplier >> 31) >> shift`, which is exact for p below 2**31.
    """
    if not (sizes := _open_sizes(func)):
        return func
    divisors = _Divisors(sizes)
    body = tvm_ffi.structural_map(func.body, [(kind, divisors.replaced) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    return func.with_body(divisors.with_numbers(body)) if divisors.known else func


class _Divisors:
    """The sizes that a function divides by, with the variables for each one's multiplier and shift."""

    def __init__(self, sizes: set[tvm.ir.Var]) -> None:
        self.sizes = sizes
        self.known: list[tuple[tirx.PrimExpr, tirx.Var, tirx.Var]] = []
        """Each size, and the variables for the multiplier and for the shift."""

    def replaced(self, division: tirx.FloorDiv | tirx.FloorMod) -> tirx.PrimExpr:
        """Return a quotient or a remainder by an open size as multiplications and shifts; others as they are."""
        if not _is_size(division.b, self.sizes):
            return division
        quotient = division.a
        for size in factors(division.b):
            if isinstance(size, tirx.IntImm):
                quotient = quotient // size
            else:
                multiplier, shift = self._numbers(size)
                # In int64, which TVM can pass to a kernel where it converts a multiplier before the launch.
                product = quotient.astype("uint32").astype("int64") * multiplier.astype("int64")
                high = (product >> tirx.const(BITS, "int64")).astype("uint32")
                quotient = (high >> shift).astype(division.a.ty.dtype)
        return quotient if isinstance(division, tirx.FloorDiv) else division.a - quotient * division.b

    def _numbers(self, divisor: tirx.PrimExpr) -> tuple[tirx.Var, tirx.Var]:
        for known, multiplier, shift in self.known:
            if tvm_ffi.structural_equal(known, divisor):
                return multiplier, shift
        multiplier, shift = tirx.Var("multiplier", "uint32"), tirx.Var("shift", "uint32")
        self.known.append((divisor, multiplier, shift))
        return multiplier, shift

    def with_numbers(self, body: SBlockRealize) -> SBlockRealize:
        """Return the body of a function after statements that compute the multipliers and shifts."""
        root, binds = body.block, []
        for divisor, *variables in self.known:
            # 2**shift is the least power of two that is not below the size, which may be of int64 in networks.
            shift = BITS - tirx.clz(2 * divisor.astype("int32") - 1)
            multiplier = (tirx.const(1, "int64") << (shift + BITS).astype("int64")) // divisor.astype("int64") + 1
            for variable, value in zip(variables, (multiplier, shift), strict=True):
                binds.append(tirx.Bind(variable, _opaque(value.astype("uint32"))))
        statements = tirx.SeqStmt([*binds, root.body])
        return SBlockRealize([], True, SBlock([], [], [], root.name_hint, statements, alloc_buffers=root.alloc_buffers))


def _opaque(number: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return an unsigned number as LLVM's maximum of it and zero, through which TVM does not see.

    Else TVM would replace the variable by its expression again, inside the kernel.
    """
    return tirx.call_llvm_intrin("uint32", "llvm.umax.i32", number, tirx.const(0, "uint32"))
