"""Tensor maps: descriptions of arrays in memory, by which the copy engine of sm_90 copies chunks of windows from them.

The CUDA driver writes them on the host right before a kernel is launched, and the kernel gets them as parameters.

Source: CUDA Driver API, cuTensorMapEncodeIm2col.
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import tvm
from tvm import tirx

from tvmconv.compute.annotations import BulkCopy

ENCODE = """
@tvmconv.driver = private constant [13 x i8] c"libcuda.so.1\\00"
@tvmconv.encode = private constant [24 x i8] c"cuTensorMapEncodeIm2col\\00"
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)

define linkonce_odr i32 @tvmconv_encode_chunks(ptr %map, ptr %data, i64 %bytes, i64 %c, i64 %w, i64 %h, i64 %n,
    i32 %left, i32 %top, i32 %right, i32 %bottom, i32 %stride_w, i32 %stride_h, i32 %pixels, i32 %channels,
    i32 %permutation) {
  %library = call ptr @dlopen(ptr @tvmconv.driver, i32 2)
  %without = icmp eq ptr %library, null
  br i1 %without, label %missing, label %present
missing:
  ret i32 -1
present:
  %function = call ptr @dlsym(ptr %library, ptr @tvmconv.encode)
  %unknown = icmp eq ptr %function, null
  br i1 %unknown, label %missing, label %known
known:
  %sizes = alloca [4 x i64]
  %strides = alloca [3 x i64]
  %lower = alloca [2 x i32]
  %upper = alloca [2 x i32]
  %steps = alloca [4 x i32]
  %size_w = getelementptr i64, ptr %sizes, i64 1
  %size_h = getelementptr i64, ptr %sizes, i64 2
  %size_n = getelementptr i64, ptr %sizes, i64 3
  store i64 %c, ptr %sizes
  store i64 %w, ptr %size_w
  store i64 %h, ptr %size_h
  store i64 %n, ptr %size_n
  %pixel = mul i64 %c, %bytes
  %row = mul i64 %pixel, %w
  %image = mul i64 %row, %h
  %to_row = getelementptr i64, ptr %strides, i64 1
  %to_image = getelementptr i64, ptr %strides, i64 2
  store i64 %pixel, ptr %strides
  store i64 %row, ptr %to_row
  store i64 %image, ptr %to_image
  %lower_h = getelementptr i32, ptr %lower, i64 1
  %upper_h = getelementptr i32, ptr %upper, i64 1
  store i32 %left, ptr %lower
  store i32 %top, ptr %lower_h
  store i32 %right, ptr %upper
  store i32 %bottom, ptr %upper_h
  %step_w = getelementptr i32, ptr %steps, i64 1
  %step_h = getelementptr i32, ptr %steps, i64 2
  %step_n = getelementptr i32, ptr %steps, i64 3
  store i32 1, ptr %steps
  store i32 %stride_w, ptr %step_w
  store i32 %stride_h, ptr %step_h
  store i32 1, ptr %step_n
  %item = trunc i64 %bytes to i32
  %type = lshr i32 %item, 1
  %result = call i32 %function(ptr %map, i32 %type, i32 4, ptr %data, ptr %sizes, ptr %strides, ptr %lower, ptr %upper,
    i32 %channels, i32 %pixels, ptr %steps, i32 0, i32 %permutation, i32 2, i32 0)
  ret i32 %result
}
"""
"""The function of the host that has the driver write a map, in LLVM's language: as part of a library it needs nothing
beside the driver, which is looked up when it is called. It returns 0, the driver's error, or -1 without a driver.

Numbers are of 1, 2 or 4 bytes, which the driver calls 0, 1 and 2, without regard to their type, as nothing is computed
with them; 2 has the L2 cache read 128 bytes at once, and the last 0 stands for zeros where an image ends.
"""

PERMUTATIONS = {32: 1, 64: 2, 128: 3}
"""The driver's numbers for the swizzle of vectors, by the bytes of a row."""


def tensor_map(source: Any, copy: BulkCopy, lanes: int, name: str) -> tuple[tvm.ir.Var, list[tirx.Stmt]]:
    """Return the map of an array for copies of `lanes` channels, and the statements of the host that write it."""
    variable = tvm.ir.Var(name, tvm.ir.PointerType(tirx.TensorMapType()))
    pixels = reduce(mul, source.ty.shape) // copy.channels
    width = copy.width or pixels
    sizes = copy.channels, width, copy.height, pixels // (width * copy.height)
    corners = copy.lower_w, copy.lower_h, copy.upper_w, copy.upper_h
    itemsize = tvm.DataType(source.ty.dtype).itemsize
    chunk = copy.pixels, lanes, PERMUTATIONS[lanes * itemsize]
    wide = [tirx.Cast("int64", tirx.convert(each)) for each in (itemsize, *sizes)]
    narrow = [tirx.const(each, "int32") for each in (*corners, copy.stride_w, copy.stride_h, *chunk)]
    result = tirx.call_extern("int32", "tvmconv_encode_chunks", variable, source.data, *wide, *narrow)
    refused = "the CUDA driver has no tensor map for an operand: it begins at no multiple of 16 bytes, or is too large"
    return variable, [
        tirx.Bind(variable, tirx.tvm_stack_alloca("tensormap", 1)),
        tirx.AssertStmt(result == 0, tvm.ir.StringImm("RuntimeError"), [tvm.ir.StringImm(refused)]),
    ]
