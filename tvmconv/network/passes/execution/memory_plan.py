"""The memory of a network: a few arrays for all of its intermediate tensors, which with open sizes its caller keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from math import prod
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar, Range
from tvm.relax.utils import copy_with_new_vars
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import evaluated
from tvmconv.problem.workload import MAX_ELEMENTS

from ...graph.convolutions import ASSUMED_SIDE
from ...graph.graph import free_variables, operator_name
from ...runtime.session import IN_MEMORY, MEMORY_SIZES

ALIASES = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
"""Operators whose result shares the memory of their operand."""


class Tensor(NamedTuple):
    """An intermediate tensor that gets its memory from the plan."""

    var: relax.Var
    first_binding: int
    """The index of its allocation among the bindings of "main"."""
    last_binding: int
    """The index of the last binding that reads or writes it."""
    nbytes: tirx.Expr
    assumed: int
    """The number of bytes, with assumed values for open sizes."""


class Array:
    """Memory for tensors of which no two are in use at the same time."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def is_free(self, tensor: Tensor) -> bool:
        """Return whether no tensor of the array is in use while another tensor is."""
        first, last = tensor.first_binding, tensor.last_binding
        return all(each.last_binding < first or last < each.first_binding for each in self.tensors)

    def nbytes(self, analyzer: Analyzer) -> tirx.Expr:
        """Return the number of bytes of the largest tensor, as an expression of the open sizes."""
        largest: list[tirx.Expr] = []
        for tensor in self.tensors:
            if not any(analyzer.can_prove(tensor.nbytes <= size) for size in largest):
                largest.append(tensor.nbytes)
        return reduce(tirx.max, largest)


def plan_memory(mod: tvm.IRModule, sizes_known: bool) -> tvm.IRModule:
    """Return the module, which is lowered to calls of kernels, with arrays for the intermediate tensors of "main".

    Tensors that are not in use at the same time share an array, which is as large as the largest of them. With open
    sizes, a call computes the sizes of the arrays, which are parameters of `IN_MEMORY`: TVM's own planning shares
    memory between tensors of open sizes only where these are equal. With `sizes_known`, a network without open sizes
    gets its arrays here, too: TVM, which plans in the order of calls, gives a small tensor that is in use for long the
    memory of a large one. Left to TVM are the network's outputs, tensors whose sizes the model's numbers decide, and
    tensors in branches. A network without intermediate tensors stays as it is.

    Before: `def main(x): a = R.builtin.alloc_tensor((n, 8, 9, 9)); conv(x, a); ...`.
    After: `def main_in_memory(x, memory_0): a = R.memory.view(memory_0, (n, 8, 9, 9)); conv(x, a); ...`,
    `def memory_sizes(x): return R.shape([2592 * n])`, which are the bytes of each array for inputs of these shapes, and
    `def main(x): memory_0 = R.builtin.alloc_tensor((2592 * n,)); return main_in_memory(x, memory_0)`.

    With n = 2, after: `def main(x): array = R.memory.alloc_storage(5184); a = R.memory.alloc_tensor(array, (2, 8, 9,
    9)); conv(x, a); ...`.
    """
    main = mod["main"]
    opened = open_sizes(main)
    arrays = _arrays(_tensors(mod)) if opened or sizes_known else []
    if not arrays:
        return mod
    builder = relax.BlockBuilder(mod)
    if not opened:
        builder.update_func(mod.get_global_var("main"), _in_arrays(main, arrays))
        return builder.get()
    analyzer = Analyzer()
    for var in opened:
        analyzer.bind(var, Range(1, MAX_ELEMENTS + 1))
    sizes = [array.nbytes(analyzer) for array in arrays]
    inner = builder.add_func(_in_memory(main, arrays), IN_MEMORY)
    builder.add_func(_function(main, MEMORY_SIZES, [], lambda _: relax.ShapeExpr(sizes)), MEMORY_SIZES)
    outer = _function(main, "main", [], partial(_allocating, inner, main.params, sizes))
    builder.update_func(mod.get_global_var("main"), outer)
    return builder.get()


def open_sizes(func: relax.Function) -> list[tirx.Var]:
    """Return the sizes of a function's parameters that are known only in a call."""
    shapes = [param.ty.shape for param in func.params if isinstance(param.ty, relax.TensorType)]
    sizes = [size for shape in shapes if isinstance(shape, relax.ShapeExpr) for size in shape]
    return [size for size in dict.fromkeys(sizes) if isinstance(size, tirx.Var)]


def _tensors(mod: tvm.IRModule) -> list[Tensor]:
    """Return the tensors that only kernels in "main" read and write."""
    main = mod["main"]
    known = set(open_sizes(main))
    bindings = _bindings(main)
    owners: dict[relax.Var, set[relax.Var]] = {}
    first: dict[relax.Var, int] = {}
    last: dict[relax.Var, int] = {}
    kept: set[relax.Var] = set()

    tuples = {binding.var: binding.value for binding in bindings if isinstance(binding.value, relax.Tuple)}

    def read_in(value: relax.Expr) -> set[relax.Var]:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:  # its other fields are not read
            value = tuples[value.tuple_value].fields[value.index]
        return {owner for var in free_variables(value) for owner in owners.get(var, ())}

    read_later = {var for binding in bindings for var in free_variables(binding.value)}
    for index, binding in enumerate(bindings):
        var, value = binding.var, binding.value
        read = read_in(value)
        last.update(dict.fromkeys(read, index))
        if isinstance(binding, relax.VarBinding) and _is_allocation(value, known):
            owners[var], first[var], last[var] = {var}, index, index
        elif isinstance(binding, relax.VarBinding) and _is_alias(value):
            owners[var] = read
        elif var in read_later or not _is_launch(value, mod):
            kept |= read
    kept |= read_in(main.body.body)
    return [_tensor(var, first[var], last[var]) for var in first if var not in kept]


def _tensor(var: relax.Var, first: int, last: int) -> Tensor:
    shape, bits = list(var.ty.shape), tvm.DataType(str(var.ty.dtype)).bits
    nbytes = Analyzer().simplify(prod(shape, start=tirx.IntImm("int64", (bits + 7) // 8)))
    return Tensor(var, first, last, nbytes, evaluated(nbytes, dict.fromkeys(undefined_vars(nbytes), ASSUMED_SIDE)))


def _arrays(tensors: Sequence[Tensor]) -> list[Array]:
    """Return arrays for the tensors: the largest first, each in the smallest array that is free, if one is."""
    arrays: list[Array] = []
    for tensor in sorted(tensors, key=lambda each: -each.assumed):
        array = next((each for each in reversed(arrays) if each.is_free(tensor)), None)
        if array is None:
            arrays.append(array := Array())
        array.tensors.append(tensor)
    return arrays


def _function(
    main: relax.Function, name: str, memory: Sequence[relax.Var], body: Callable[[relax.BlockBuilder], relax.Expr]
) -> relax.Function:
    """Return a function of the parameters of "main" and of memory, with the body that `body` emits."""
    builder = relax.BlockBuilder()
    with builder.function(name, [*main.params, *memory], {"num_input": len(main.params), "relax.force_pure": True}):
        builder.emit_func_output(body(builder))
    return copy_with_new_vars(builder.get()[name]).with_attr("global_symbol", name)


def _in_memory(main: relax.Function, arrays: Sequence[Array]) -> relax.Function:
    """Return `IN_MEMORY`: tensors are views of arrays; those of one array, shape and dtype share a view."""
    memory = [_memory(index) for index in range(len(arrays))]
    home = {tensor.var: var for var, array in zip(memory, arrays, strict=True) for tensor in array.tensors}
    views: list[tuple[relax.Var, relax.Var]] = []

    def view(builder: relax.BlockBuilder, var: relax.Var) -> relax.Expr:
        for array, other in views:
            if array.same_as(home[var]) and tvm_ffi.structural_equal(other.ty, var.ty):
                return other
        views.append((home[var], var))
        return relax.op.memory.view(home[var], var.ty.shape, str(var.ty.dtype), 0)

    return _with_tensors(main, IN_MEMORY, memory, home, view)


def _in_arrays(main: relax.Function, arrays: Sequence[Array]) -> relax.Function:
    """Return "main" with known sizes: each array is allocated before the first of its tensors."""
    home = {tensor.var: array for array in arrays for tensor in array.tensors}
    allocated: dict[int, relax.Var] = {}

    def tensor(builder: relax.BlockBuilder, var: relax.Var) -> relax.Expr:
        array = home[var]
        if id(array) not in allocated:
            size = relax.ShapeExpr([array.nbytes(Analyzer())])
            allocated[id(array)] = builder.emit(relax.op.memory.alloc_storage(size, 0, "global", "uint8"))
        return relax.op.memory.alloc_tensor(allocated[id(array)], 0, var.ty.shape, str(var.ty.dtype))

    return _with_tensors(main, "main", [], home, tensor)


def _with_tensors(
    main: relax.Function,
    name: str,
    params: Sequence[relax.Var],
    tensors: Collection[relax.Var],
    allocate: Callable[[relax.BlockBuilder, relax.Var], relax.Expr],
) -> relax.Function:
    """Return "main" with another name and more parameters, and with `allocate` instead of its tensors' allocations."""

    def body(builder: relax.BlockBuilder) -> relax.Expr:
        for binding in _bindings(main):
            if binding.var in tensors:
                binding = relax.VarBinding(binding.var, builder.normalize(allocate(builder, binding.var)))
            builder.emit_normalized(binding)
        return main.body.body

    return _function(main, name, params, body)


def _memory(index: int) -> relax.Var:
    return relax.Var(f"memory_{index}", relax.TensorType([tirx.Var(f"memory_{index}_bytes", "int64")], "uint8"))


def _allocating(
    inner: GlobalVar, params: Sequence[relax.Var], sizes: Sequence[tirx.Expr], builder: relax.BlockBuilder
) -> relax.Expr:
    """Emit the body that allocates memory and calls `IN_MEMORY` with it."""
    allocated = [relax.op.builtin.alloc_tensor(relax.ShapeExpr([size]), "uint8", 0) for size in sizes]
    return builder.emit(relax.Call(inner, [*params, *map(builder.emit, allocated)]))


def _bindings(main: relax.Function) -> list[relax.Binding]:
    return [binding for block in main.body.blocks for binding in block.bindings]


def _is_allocation(value: relax.Expr, known: Collection[tirx.Var]) -> bool:
    """Return whether a value allocates memory of the network's device for a shape that the shapes of inputs decide."""
    if operator_name(value) != "relax.builtin.alloc_tensor":
        return False
    shape, _, device, scope = value.args
    decided = all(var in known for size in shape for var in undefined_vars(size))
    return decided and int(device) == 0 and scope.value == "global"


def _is_alias(value: relax.Expr) -> bool:
    """Return whether a value shares the memory of the variables in it."""
    return isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem)) or operator_name(value) in ALIASES


def _is_launch(value: relax.Expr, mod: tvm.IRModule) -> bool:
    """Return whether a value calls a kernel, which stores its results in operands."""
    if not isinstance(value, relax.Call):
        return False
    if isinstance(value.op, GlobalVar):
        return isinstance(mod[value.op], tirx.PrimFunc)
    return isinstance(value.op, relax.ExternFunc)
