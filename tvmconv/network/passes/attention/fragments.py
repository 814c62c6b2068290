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

from tvmconv.lowering.gpu.intrinsics import cuda_call
from tvmconv.schedules.cuda.tensor.intrinsics import TYPES
from tvmconv.targets.cuda import once
from tvmconv.targets.device_code import function, included

FRAGMENT = 16
"""The rows of a fragment of the first factor."""

EIGHT = 8
"""The columns of an instruction's result, and the rows of a matrix of 16 bytes a row."""

LOAD_FOUR = """
__device__ __forceinline__ void tvmconv_load_four(unsigned* m, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}
"""
"""Four matrices of eight rows of 16 bytes, of which each lane gives the address of a row."""

LOAD_TRANSPOSED = """
__device__ __forceinline__ void tvmconv_load_transposed(unsigned* m, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}
"""
"""The same, with rows and columns of each matrix swapped on the way to registers."""

LOAD_COLUMNS = """
__device__ __forceinline__ void tvmconv_load_columns(unsigned* m, const void* row, const void* next) {
  m[0] = ((const unsigned*)row)[0]; m[1] = ((const unsigned*)next)[0];
  m[2] = ((const unsigned*)row)[8]; m[3] = ((const unsigned*)next)[8];
}
"""
"""The words of two rows in a column, and in the eighth one behind it."""

WORD = """
__device__ __forceinline__ unsigned tvmconv_word(const void* pair) { return *(const unsigned*)pair; }
"""

PAIR = """
__device__ __forceinline__ unsigned tvmconv_pair_{kind}(float first, float second) {{
  unsigned pair;
  asm("cvt.rn.{name}x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}}
"""
"""Two numbers rounded to half precision, the first one in the lower bits."""

WORD_OF = """
__device__ __forceinline__ unsigned tvmconv_word_of(float number) { return __float_as_uint(number); }
"""

IN_PARTS = """
__device__ __forceinline__ void tvmconv_in_parts(unsigned* large, unsigned* small, unsigned word) {
  asm volatile("add.u32 %0, %1, 0x1000;" : "=r"(*large) : "r"(word));
  *large &= 0xffffe000u;
  *small = __float_as_uint(__uint_as_float(word) - __uint_as_float(*large));
}
"""
"""The TF32 number nearest to a float32 number, and the rest, which is of either sign.

The instruction is volatile, so that no parts are made ahead of a loop and kept, for which registers are too few. Of a
number that is not finite the rest is NaN.
"""

REST = """
__device__ __forceinline__ unsigned tvmconv_rest_of(unsigned word) {
  return __float_as_uint(__uint_as_float(word) - __uint_as_float(word & 0xffffe000u));
}
"""
"""The rest of a float32 number whose last bits a tensor core cuts off, as it does with those of the rest."""

STORE_WORDS = """
__device__ __forceinline__ void tvmconv_store_words(void* place, unsigned first, unsigned second) {
  *(uint2*)place = make_uint2(first, second);
}
"""


def load_matrices(target: Any, row: Any, transposed: bool = False) -> tirx.Stmt:
    """Return the statement that loads four matrices from shared memory into four registers."""
    if transposed:
        return _statement("tvmconv_load_transposed", LOAD_TRANSPOSED, target, row)
    return _statement("tvmconv_load_four", LOAD_FOUR, target, row)


def load_columns(target: Any, row: Any, following: Any) -> tirx.Stmt:
    """Return the statement that loads two columns of two rows of words into four registers, column by column."""
    return _statement("tvmconv_load_columns", LOAD_COLUMNS, target, row, following)


def multiply(dtype: str, sums: Any, first: Any, second: Any) -> tirx.Stmt:
    """Return the statement that adds the product of 16 rows and 8 columns, of 32 bytes each, to sums."""
    return cuda_call(function("mma", TYPES[dtype]), included("schedules/cuda/device/mma.cuh"), sums, first, second)


def word(place: Any) -> Expr:
    """Return the 32 bits at a place: of a float32 number, or of two neighbouring ones in half precision."""
    return cuda_func_call("tvmconv_word", place, source_code=once("tvmconv_word", WORD), return_type="uint32")


def pair(dtype: str, first: Expr, second: Expr) -> Expr:
    """Return two numbers rounded to half precision as 32 bits."""
    name = f"tvmconv_pair_{TYPES[dtype]}"
    source = once(name, PAIR.format(kind=TYPES[dtype], name=TYPES[dtype].lower()))
    return cuda_func_call(name, first, second, source_code=source, return_type="uint32")


def word_of(number: Expr) -> Expr:
    """Return the 32 bits of a float32 number."""
    source = once("tvmconv_word_of", WORD_OF)
    return cuda_func_call("tvmconv_word_of", number, source_code=source, return_type="uint32")


def rounded(bits: Expr) -> Expr:
    """Return the 32 bits of a float32 number as those of the nearest TF32 number."""
    return _of_bits(function("to_tf32"), included("schedules/cuda/device/tf32.cuh"), bits)


def in_parts(large: Any, small: Any, bits: Expr) -> tirx.Stmt:
    """Return the statement that makes two TF32 numbers of a float32 one: the nearest, and what is left."""
    return _statement("tvmconv_in_parts", IN_PARTS, large, small, bits)


def rest(bits: Expr) -> Expr:
    """Return the bits of what a float32 number is more than the TF32 number of its first bits."""
    return _of_bits("tvmconv_rest_of", once("tvmconv_rest_of", REST), bits)


def _of_bits(name: str, source: str, bits: Expr) -> Expr:
    return cuda_func_call(name, bits, source_code=source, return_type="uint32")


def store_words(place: Any, first: Expr, second: Expr) -> tirx.Stmt:
    """Return the statement that stores two words at a place that is a multiple of both."""
    return _statement("tvmconv_store_words", STORE_WORDS, place, first, second)


def address(buffer: Any, place: Expr | int) -> Expr:
    """Return the address of a place in registers or shared memory, of which TVM then leaves out nothing."""
    return buffer.access_ptr(0, offset=place)


def _statement(name: str, source: str, *arguments: Any) -> tirx.Stmt:
    return cuda_call(name, once(name, source), *arguments)
