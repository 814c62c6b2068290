"""An emulator of lowered CUDA kernels: all threads of a grid step by step, in NumPy.

It runs what TVM lowers for the GPU, with the functions of `lowering.gpu.intrinsics`, and so sees what a serial twin
does not: the addresses of copies in shared memory, the order of commits, waits and barriers, and the registers of
sums. A copy arrives when its group has been waited for, and what is there until then is NaN. An access to shared
memory that no barrier parts from a conflicting one raises `HazardError`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import erf, prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tests.emulated.fragments import fragment_function, reciprocal
from tests.emulated.machine import BLOCKS, THREADS, WARP, Machine, uniform
from tests.emulated.memory import Memory, Pointer
from tvmconv.compute.annotations import CLUSTER_AXIS
from tvmconv.compute.substitution import evaluated
from tvmconv.problem.dtypes import STORAGE_TYPES

WARPGROUP = 4
"""The warps that work on one `wgmma`."""


def divided(dividend: Any, divisor: Any) -> Any:
    """Return a quotient as CUDA has it: that of integers is an integer, rounded toward zero."""
    if np.result_type(dividend, divisor).kind in "iu":
        return (dividend - np.fmod(dividend, divisor)) // divisor
    return dividend / divisor


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod, "Div": divided, "Mod": np.fmod, "Min": np.minimum, "Max": np.maximum, "LT": operator.lt,
    "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
    "And": np.logical_and, "Or": np.logical_or, "BitwiseAnd": operator.and_, "BitwiseXor": operator.xor,
    "LShift": operator.lshift, "RShift": operator.rshift,
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fabs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "floor": np.floor,
    "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "nearbyint": np.rint, "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: np.vectorize(erf, [np.asarray(x).dtype])(x), "tvmconv.exp2": np.exp2,
    "tvmconv.reciprocal": reciprocal,
}  # fmt: skip
"""The functions of one number or two."""

Code = Callable[[], Any]
"""A statement or an expression as a function, which computes it for all threads."""


@dataclass
class Variable:
    """A number of each thread, or a memory, that code sets when it runs, and the code that returns it."""

    held: Any = None

    def __call__(self) -> Any:
        return self.held


class Constant(Variable):
    """What is known before the kernel runs, such as the index of each thread."""


@cache
def numpy_type(dtype: Any) -> np.dtype[Any]:
    """Return the type of a number, of a vector that of its lanes."""
    name, _, _ = str(dtype).partition("x")
    return np.dtype(STORAGE_TYPES[name].numpy if name in STORAGE_TYPES else name)


def computed(operation: Callable[..., Any], *operands: Code) -> Code:
    """Return the code of an operation that depends on its operands alone: if these are constants, its result."""
    if {*map(type, operands)} == {Constant}:
        return Constant(operation(*(each() for each in operands)))
    if len(operands) == 1:
        (operand,) = operands
        return lambda: operation(operand())
    if len(operands) == 2:
        first, second = operands
        return lambda: operation(first(), second())
    return lambda: operation(*[each() for each in operands])


class Emulator(Machine):
    """The run of a kernel on arrays, which are the operands by name; others are made, full of NaN.

    Each statement and each expression becomes a function once, which loops then call.
    """

    def __init__(self, func: tirx.PrimFunc, arrays: dict[str, np.ndarray]) -> None:
        super().__init__(_extents(func.body))
        self.arrays = arrays
        self.variables: dict[Any, Variable] = {}
        self.memories: dict[Any, Any] = {param: param.name.removesuffix("_ptr") for param in func.params}
        self.code(func.body)()
        assert not self.running, "a product is not waited for"
        assert not self.groups, "copies are not waited for"
        assert self.fetched < self.met, "a block that ends may still be read"

    # Statements

    def code(self, stmt: Any) -> Code:
        code: Code = getattr(self, f"code_{type(stmt).__name__}")(stmt)
        return code

    def code_SeqStmt(self, stmt: Any) -> Code:  # noqa: N802 - the names of TVM's nodes
        steps = [self.code(each) for each in stmt.seq]

        def run() -> None:
            for step in steps:
                step()

        return run

    def code_AttrStmt(self, stmt: Any) -> Code:  # noqa: N802
        if stmt.attr_key == "thread_extent":
            tag = str(stmt.node.thread_tag)
            self.variables[stmt.node.var] = Constant(self.index["blockIdx.y" if tag == CLUSTER_AXIS else tag])
        return self.code(stmt.body)

    def code_DeclBuffer(self, stmt: Any) -> Code:  # noqa: N802
        source = stmt.data.args[0] if isinstance(stmt.data, tvm.ir.Call) else stmt.data
        memory = self.memories[source]
        if isinstance(memory, str):
            itemsize = tvm.DataType(stmt.buffer.dtype).itemsize
            size = prod(evaluated(each, {}) for each in stmt.buffer.shape) * itemsize
            array = self.arrays.setdefault(memory, np.full(size, 255, np.uint8))
            memory = Constant(Memory(array.reshape(-1).view(np.uint8)[None], np.zeros_like(self.lane)))
        self.memories[stmt.buffer] = memory
        return Constant()

    def code_AllocBuffer(self, stmt: Any) -> Code:  # noqa: N802
        size = prod(int(extent) for extent in stmt.buffer.shape) * tvm.DataType(stmt.buffer.dtype).itemsize
        shared = str(stmt.buffer.scope()).startswith("shared")
        row = self.block if shared else self.lane
        memory = self.memories[stmt.buffer] = Variable()

        def run() -> None:
            self.shared_bytes += size if shared else 0
            memory.held = Memory(np.full((row[-1, 0] + 1, size), 255, np.uint8), row, shared)

        return run

    def code_Bind(self, stmt: Any) -> Code:  # noqa: N802
        return self.assigned(stmt.var, self.value(stmt.value))

    def code_For(self, stmt: Any) -> Code:  # noqa: N802
        first, extent = self.value(stmt.min), self.value(stmt.extent)
        variable = self.variables[stmt.loop_var] = Variable()
        body = self.code(stmt.body)

        def run() -> None:
            start = uniform(first())
            for number in range(start, start + uniform(extent())):
                variable.held = np.int32(number)
                body()

        return run

    def code_IfThenElse(self, stmt: Any) -> Code:  # noqa: N802
        condition, then = self.value(stmt.condition), self.code(stmt.then_case)
        otherwise = None if stmt.else_case is None else self.code(stmt.else_case)

        def run() -> None:
            holds = condition()
            self.where(holds, then)
            if otherwise is not None:
                self.where(np.logical_not(holds), otherwise)

        return run

    def code_Evaluate(self, stmt: Any) -> Code:  # noqa: N802
        return self.value(stmt.value)

    def code_BufferStore(self, stmt: Any) -> Code:  # noqa: N802
        pointer, value = self.pointer(stmt.buffer, stmt.indices), self.value(stmt.value)
        return lambda: self.store(pointer(), value())

    def assigned(self, var: Any, value: Code) -> Code:
        """Return the code that gives a variable its value, which is nothing to do where the value is a constant."""
        variable = self.variables[var] = value if isinstance(value, Constant) else Variable()

        def run() -> None:
            variable.held = value()

        return variable if isinstance(value, Constant) else run

    # Expressions: arrays of one row for each thread, with a column for each lane of a vector, or what broadcasts to it

    def value(self, expr: Any) -> Code:
        kind = type(expr).__name__
        if kind in OPERATIONS:
            return computed(OPERATIONS[kind], self.value(expr.a), self.value(expr.b))
        code: Code = getattr(self, f"value_{kind}")(expr)
        return code

    def value_Var(self, expr: Any) -> Code:  # noqa: N802
        return self.variables[expr]

    def value_IntImm(self, expr: Any) -> Code:  # noqa: N802
        return Constant(numpy_type(expr.ty.dtype).type(expr.value))

    value_FloatImm = value_IntImm  # noqa: N815

    def value_Cast(self, expr: Any) -> Code:  # noqa: N802
        dtype = numpy_type(expr.ty.dtype)

        def cast(value: Any) -> Any:
            with np.errstate(over="ignore"):  # of what threads have that are not active
                return value.astype(dtype)

        return computed(cast, self.value(expr.value))

    def value_Let(self, expr: Any) -> Code:  # noqa: N802
        assign = self.assigned(expr.var, self.value(expr.value))
        body = self.value(expr.body)
        return lambda: (assign(), body())[1]

    def value_Broadcast(self, expr: Any) -> Code:  # noqa: N802
        return self.value(expr.value)

    def value_Ramp(self, expr: Any) -> Code:  # noqa: N802
        lanes = np.arange(int(expr.lanes))[None]
        return computed(lambda base, stride: base + stride * lanes, self.value(expr.base), self.value(expr.stride))

    def value_Not(self, expr: Any) -> Code:  # noqa: N802
        return computed(np.logical_not, self.value(expr.a))

    def value_Select(self, expr: Any) -> Code:  # noqa: N802
        return computed(np.where, *map(self.value, (expr.condition, expr.true_value, expr.false_value)))

    def value_TensorLoad(self, expr: Any) -> Code:  # noqa: N802
        pointer = self.pointer(expr.source, expr.indices)
        return lambda: self.load_active(pointer())

    def value_Call(self, expr: Any) -> Code:  # noqa: N802
        name, args = str(expr.op.name).removeprefix("tirx.").removeprefix("prim."), expr.args
        if name == "if_then_else":
            condition, *values = map(self.value, args)
            return lambda: self.chosen(condition(), *values)
        if name == "address_of":
            return self.pointer(args[0].source, args[0].indices)
        if name == "tvm_access_ptr":
            source = args[1].args[0] if isinstance(args[1], tvm.ir.Call) else args[1]
            return self.addressed(self.memories[source], self.value(args[2]), numpy_type(args[0].ty.dtype))
        if name == "tvm_storage_sync":
            return self.barrier
        if name in FUNCTIONS:
            return computed(FUNCTIONS[name], *map(self.value, args))
        if name == "reinterpret":
            dtype = numpy_type(expr.ty.dtype)
            return computed(lambda value: value.view(dtype), self.value(args[0]))
        if name == "tvm_warp_activemask":
            return Constant(np.uint32(2**WARP - 1))
        if name.startswith("tvm_warp_shuffle"):
            value, number, way = self.value(args[1]), self.value(args[2]), name.removeprefix("tvm_warp_")
            return lambda: self.shuffled(value(), number(), way)
        assert name == "cuda.func_call", name
        function, given = self.function(str(args[0].value)), [self.value(each) for each in args[1:-1]]
        return lambda: function(*[each() for each in given])

    def function(self, name: str) -> Callable[..., Any]:
        """Return what a function of CUDA with such a name and template parameters does."""
        kind, parameters = re.fullmatch(r"tvmconv::(\w+)(?:<(.*)>)?", name).groups()
        listed = (parameters or "").replace("tvmconv::", "").split(", ")
        numbers = [int(each) for each in listed if each.removeprefix("-").isdecimal()]
        if kind == "mma_product":
            return partial(self.multiply, 1, False, numbers[1:])
        if kind == "wgmma_three_products":
            return partial(self.multiply, WARPGROUP, False, numbers[2:4])
        if kind.startswith("wgmma_"):
            return partial(self.multiply, WARPGROUP, kind == "wgmma_product", numbers[1:3])
        products = {
            "grouped_product": self.multiply_groups,
            "shallow_product": self.multiply_shallow,
            "bands_product": lambda shape, *given: self.multiply_bands(shape[1:], *given),
            "planes_product": self.multiply_planes,
            "diagonals_product": self.multiply_diagonals,
            "diagonals_product_in_float32": self.multiply_diagonals,
            "store_runs": self.store_runs,
        }
        if kind in products:
            return partial(products[kind], numbers)
        if kind in ("copy", "fetch"):
            return partial(getattr(self, kind), *numbers)
        function: Callable[..., Any] = fragment_function(self, kind, listed) or getattr(self, f"tvmconv_{kind}")
        return function

    def pointer(self, buffer: Any, indices: Any) -> Code:
        (index,) = indices
        lanes = tvm.DataType(buffer.dtype).lanes
        return self.addressed(self.memories[buffer], self.value(index), numpy_type(buffer.dtype), lanes)

    def addressed(self, memory: Code, index: Code, dtype: np.dtype[Any], lanes: int = 1) -> Code:
        """Return the code of a pointer to an element of each thread, or to all lanes of a vector."""
        size, within = np.int64(lanes * dtype.itemsize), np.arange(lanes) * dtype.itemsize + 0 * self.lane
        address = computed(lambda index: index * size + within, index)
        return computed(lambda memory, address: Pointer(memory, address, dtype), memory, address)


def _extents(stmt: Any) -> dict[str, int]:
    extents = dict.fromkeys((*BLOCKS, *THREADS, CLUSTER_AXIS), 1)

    def note(attribute: tirx.AttrStmt) -> None:
        if attribute.attr_key == "thread_extent":
            extents[str(attribute.node.thread_tag)] = evaluated(attribute.value, {})

    tvm_ffi.structural_walk(stmt, [(tirx.AttrStmt, note)])
    assert extents[CLUSTER_AXIS] in (1, extents["blockIdx.y"]), "clusters that are not all blocks of the y axis"
    return extents
