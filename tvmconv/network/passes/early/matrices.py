"""Linear layers of tensors of any rank as products of matrices, so that their kernels take in the operators after them.

Importers write them as products of tensors of several axes with a weight, or as products of matrices between reshapes,
which separate them from an activation and from the addition of another tensor.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax

from tvmconv.compute.substitution import substitute
from tvmconv.problem.dtypes import FLOATS

from ...graph.constants import constant_value, same_size, same_sizes, sizes_of
from ...graph.convolutions import is_linear
from ...graph.graph import Block, blocks_of, call_of, calls, free_variables, rebind
from ..convolutions.layouts import BY_ELEMENT, NCHW_FROM_NHWC, NHWC_FROM_NCHW, inner_layout, is_permutation

WITH_AN_AXIS = ("dequantize", "quantize")
"""The operators of `BY_ELEMENT` whose scale and zero point may be along any axis."""

ELEMENTWISE = (*(name for name in BY_ELEMENT if name not in WITH_AN_AXIS), "abs", "erf", "less", "power", "where")


def with_rows_in_matrices(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with linear layers of constant weights, and the operators on their results, as matrices.

    Where networks hold images in NHWC, as on a GPU, operators on a result that is permuted to NCHW, such as the
    addition of a residual in NCHW, move before the permutation.

    Before, with x (2, 3, 8): `y = R.matmul(x, weight)`, `z = R.add(y, bias)`, `output = R.nn.softmax(z)`.
    After: `y = R.matmul(R.reshape(x, (6, 8)), weight)`, `z = R.add(y, bias)`,
    `output = R.nn.softmax(R.reshape(z, (2, 3, 16)))`.
    """
    values: dict[relax.Var, relax.Expr] = {}
    mod, in_nhwc = _with_single_weights(mod), inner_layout(target) == "NHWC"
    for block in blocks_of(mod):
        values |= _Matrices(block, in_nhwc).values()
    return rebind(mod, values)


def _with_single_weights(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module in which a batch of equal matrices as the weight of a layer becomes one matrix.

    torch writes a linear layer of a tensor that is not contiguous with such a batch, as after attention.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            product = call_of(value, "matmul")
            weight = None if product is None else constant_value(product.args[1])
            if product is None or weight is None or weight.ndim < 3:
                continue
            *rows, _ = sizes_of(product.args[0].ty) or (None,)
            *outer, _ = sizes_of(var.ty) or (None,)
            if rows != outer:  # x is broadcast: its product with each matrix of the weight is a result
                continue
            first = weight[(0,) * (weight.ndim - 2)] if weight.size else weight
            if np.array_equal(weight, np.broadcast_to(first, weight.shape), equal_nan=True):
                single = relax.const(first, product.args[1].ty.dtype)
                values[var] = relax.Call(product.op, [product.args[0], single], product.attrs)
    return rebind(mod, values)


class _Matrices:
    """The tensors of a dataflow block that are held as matrices, in which all axes but the channels are the rows.

    The channels are the last axis or, of images with `permuted`, the second one.
    """

    def __init__(self, block: Block, permuted: bool) -> None:
        self._values = block.values
        self._held: dict[relax.Var, relax.Var] = {}
        """The variable that holds the matrix of each tensor: the tensor's variable, or the one that moves made the
        tensor from."""
        self._images: set[relax.Var] = set()
        """The tensors among them that are (N, C, H, W); the rows of their matrices are in the order of (N, H, W)."""
        self._ends: set[relax.Var] = set()
        """The tensors that are read outside the block: their variables keep the shape of the tensor."""
        cast = {each for var in block.casts for each in free_variables(block.values[var])}
        for var, value in block.values.items():
            if var in block.casts or var in cast:
                continue
            if not block.is_inner(var):
                self._ends |= {var} if _is_linear_layer(value) or self._is_by_element(var, value) else set()
            elif (source := self._reshaped(var, value)) is not None:
                self._held[var] = source
            elif permuted and (source := self._permuted(value)) is not None:
                self._held[var] = source
                self._images |= set() if self._images_of(value) else {var}
            elif _is_linear_layer(value) or self._is_by_element(var, value):
                self._held[var] = var
                self._images |= {var} if self._images_of(value) else set()

    def values(self) -> dict[relax.Var, relax.Expr]:
        """Return new values: those of matrices, and those of readers that need the tensors in the model's shape."""
        found: dict[relax.Var, relax.Expr] = {}
        for var, value in self._values.items():
            if self._held.get(var) is var:
                found[var] = self._computed(var, value)
            elif var in self._ends:
                found[var] = _as_tensor(self._computed(var, value), var, bool(self._images_of(value)))
            elif var not in self._held:
                tensors = {each: self._tensor(each) for each in free_variables(value) if each in self._held}
                found |= {var: substitute(value, tensors)} if tensors else {}
        return found

    def _computed(self, var: relax.Var, value: relax.Call) -> relax.Call:
        """Return the value of a layer, or of an element-by-element operator, computed on matrices."""
        if calls(value, "matmul"):  # its weight is a matrix already
            operands = [self._matrix(value.args[0], False), value.args[1]]
        else:
            images = bool(self._images_of(value))
            operands = [self._operand(each, var, images) for each in value.args]
        return relax.Call(value.op, operands, value.attrs)

    def _images_of(self, value: relax.Call) -> set[relax.Var]:
        """Return the operands of a value that are images (N, C, H, W)."""
        return {each for each in value.args if each in self._images}

    def _reshaped(self, var: relax.Var, value: relax.Expr) -> relax.Var | None:
        """Return the variable with the matrix of a tensor that a reshape makes, keeping the size of the last axis."""
        reshape = call_of(value, "reshape")
        if reshape is None or reshape.args[0] not in self._held or reshape.args[0] in self._images:
            return None
        before, after = sizes_of(reshape.args[0].ty), sizes_of(var.ty)
        if not before or not after:
            return None
        (*rows, columns), (*others, last) = before, after
        is_same = bool(others) and same_size(columns, last) and same_size(prod(rows), prod(others))
        return self._held[reshape.args[0]] if is_same else None

    def _permuted(self, value: relax.Expr) -> relax.Var | None:
        """Return the variable with the matrix of a tensor that is permuted from NHWC to NCHW, or back."""
        permutation = call_of(value, "permute_dims")
        if permutation is None or permutation.args[0] not in self._held:
            return None
        axes = NHWC_FROM_NCHW if permutation.args[0] in self._images else NCHW_FROM_NHWC
        return self._held[permutation.args[0]] if is_permutation(permutation, axes) else None

    def _is_by_element(self, var: relax.Var, value: relax.Expr) -> bool:
        """Return whether a value combines, by element, tensors of its shape (matrices too), numbers and vectors."""
        if not calls(value, *ELEMENTWISE):
            return False
        held = {each for each in value.args if each in self._held}
        if not held or self._images_of(value) not in (set(), held):
            return False
        axis = 1 if held & self._images else -1
        tensors = [
            each for each in value.args if isinstance(each.ty, relax.TensorType) and not _is_vector(each, var, axis)
        ]
        return all(same_sizes(each.ty, sizes_of(var.ty) or ()) for each in tensors)

    def _operand(self, operand: relax.Expr, var: relax.Var, images: bool) -> relax.Expr:
        """Return an operand on matrices: a tensor as a matrix, a vector as a row, anything else as it is."""
        if not isinstance(operand.ty, relax.TensorType):
            return operand
        if _is_vector(operand, var, 1 if images else -1):
            vector = constant_value(operand)
            assert vector is not None
            return relax.const(vector.reshape(-1) if vector.ndim else vector, operand.ty.dtype)
        return self._matrix(operand, images)

    def _matrix(self, operand: relax.Expr, images: bool) -> relax.Expr:
        """Return a tensor as a matrix; with `images` it is (N, C, H, W)."""
        if operand in self._held:
            return self._held[operand]
        if images:
            operand, (n, c, h, w) = relax.op.permute_dims(operand, NHWC_FROM_NCHW), sizes_of(operand.ty) or ()
            return relax.op.reshape(operand, (prod((n, h, w)), c))
        *rows, columns = sizes_of(operand.ty) or ()
        if len(rows) == 1:
            return operand
        if _is_integer(operand.ty) and (made := call_of(self._values.get(operand), "astype", "subtract")) is not None:
            # Kernels read the bytes that are cast, and take in a zero point.
            others = made.args[1:]
            if all((number := constant_value(each)) is not None and number.size == 1 for each in others):
                return relax.Call(made.op, [self._matrix(made.args[0], images), *others], made.attrs)
        return relax.op.reshape(operand, (prod(rows), columns))

    def _tensor(self, var: relax.Var) -> relax.Expr:
        """Return a tensor that is held as a matrix, in the shape that it has in the model."""
        return _as_tensor(self._held[var], var, var in self._images)


def _as_tensor(matrix: relax.Expr, var: relax.Var, images: bool) -> relax.Expr:
    """Return a matrix in the shape that a variable has in the model; with `images` it is (N, C, H, W)."""
    if not images:
        return matrix if var.ty.ndim == 2 else relax.op.reshape(matrix, var.ty.shape)
    n, c, h, w = var.ty.shape
    return relax.op.permute_dims(relax.op.reshape(matrix, (n, h, w, c)), NCHW_FROM_NHWC)


def _is_linear_layer(value: relax.Expr) -> bool:
    """Return whether a value is a product of a tensor's rows, of two axes or more, with a constant weight (C, K)."""
    if (product := call_of(value, "matmul")) is None or constant_value(product.args[1]) is None:
        return False
    x, w = (argument.ty for argument in product.args)
    rows = sizes_of(x) or ()
    is_taken = x.dtype == w.dtype == product.ty.dtype and (str(x.dtype) in FLOATS or _is_integer(x))
    return is_linear(value) or (is_taken and w.ndim == 2 and len(rows) > 2 and isinstance(rows[-1], int))


def _is_integer(ty: relax.TensorType) -> bool:
    """Return whether a tensor is of the type that bytes are cast to before they are multiplied."""
    return str(ty.dtype) == "int32"


def _is_vector(operand: relax.Expr, var: relax.Var, axis: int) -> bool:
    """Return whether an operand is a constant number, or has a constant for each index of one axis of a variable."""
    constant = constant_value(operand)
    if constant is None or constant.ndim > var.ty.ndim:
        return False
    shape = (1,) * (var.ty.ndim - constant.ndim) + constant.shape
    return constant.size in (1, shape[axis])
