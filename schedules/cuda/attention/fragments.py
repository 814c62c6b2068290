"""Functions of CUDA for the fragments of matrices that the threads of a warp have in registers, as expressions of TIR.

A fragment of 16 rows of sums, and one of factors in half precision, has in lane l of the warp the rows l // 4 and
l // 4 + 8, and of each eight columns the two from 2 * (l % 4) on (PTX ISA, section on matrix fragments of
mma.m16n8k16). A fragment of TF32 factors has the same rows, and of each four columns the one at l % 4 (mma.m16n8k8).

TF32 numbers are the first 19 bits of those in float32, and tensor cores leave out the others.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr

from tvmconv.compute.statements import cuda_call
from tvmconv.targets.device_code import function, included

from ..tensor.intrinsics import TYPES

FRAGMENT = 16
"""The rows of a fragment of the first factor."""

EIGHT = 8
"""The columns of an instruction's result, and the rows of a matrix of 16 bytes a row."""

SOURCE = included("schedules/cuda/attention/fragments.cuh")


def load_matrices(target: Any, row: Any, transposed: bool = False) -> tirx.Stmt:
    """Return the statement that loads four matrices from shared memory into four registers."""
    return cuda_call(function("load_four", transposed), SOURCE, target, row)


def load_columns(target: Any, row: Any, following: Any) -> tirx.Stmt:
    """Return the statement that loads two columns of two rows of words into four registers, column by column."""
    return cuda_call(function("load_columns"), SOURCE, target, row, following)


def multiply(dtype: str, sums: Any, first: Any, second: Any) -> tirx.Stmt:
    """Return the statement that adds the product of 16 rows and 8 columns, of 32 bytes each, to sums."""
    return cuda_call(function("mma", TYPES[dtype]), included("schedules/cuda/device/mma.cuh"), sums, first, second)


def word(pointer: Any) -> Expr:
    """Return the 32 bits at an address: a float32 number, or two neighbouring ones in half precision."""
    return _word(function("word"), pointer)


def pair(dtype: str, first: Expr, second: Expr) -> Expr:
    """Return two numbers rounded to half precision as 32 bits."""
    return _word(function("pair", TYPES[dtype]), first, second)


def word_of(number: Expr) -> Expr:
    """Return the 32 bits of a float32 number."""
    return _word(function("word_of"), number)


def rounded(bits: Expr) -> Expr:
    """Return the 32 bits of a float32 number as those of the nearest TF32 number."""
    return _word(function("to_tf32"), bits, source=included("schedules/cuda/device/tf32.cuh"))


def split_tf32(large: Any, small: Any, bits: Expr) -> tirx.Stmt:
    """Return the statement that splits a float32 number into the nearest TF32 number and one for the remainder."""
    return cuda_call(function("in_parts"), SOURCE, large, small, bits)


def rest(bits: Expr) -> Expr:
    """Return the bits of a float32 number minus the TF32 number that its first bits are."""
    return _word(function("rest_of"), bits)


def store_words(pointer: Any, first: Expr, second: Expr) -> tirx.Stmt:
    """Return the statement that stores two words at an address that is a multiple of their size together."""
    return cuda_call(function("store_words"), SOURCE, pointer, first, second)


def address(buffer: Any, index: Expr | int) -> Expr:
    """Return the address of an element in registers or shared memory; TVM then keeps the whole buffer."""
    return buffer.access_ptr(0, offset=index)


def _word(name: str, *arguments: Any, source: str = SOURCE) -> Expr:
    return cuda_func_call(name, *arguments, source_code=source, return_type="uint32")
