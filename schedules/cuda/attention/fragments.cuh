#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/types.cuh"

namespace tvmconv {

// Load four matrices of eight rows of 16 bytes, of which each lane gives the address of a row; TRANSPOSED exchanges
// rows and columns of each on the way to registers.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_four(unsigned* m, const void* row) {
  load_matrices<4, TRANSPOSED>(m, shared_address(row));
}

// Load the words of two rows in a column, and in the eighth one behind it.
__device__ __forceinline__ void load_columns(unsigned* m, const void* row, const void* next) {
  m[0] = ((const unsigned*)row)[0]; m[1] = ((const unsigned*)next)[0];
  m[2] = ((const unsigned*)row)[8]; m[3] = ((const unsigned*)next)[8];
}

// Return the 32 bits at an address.
__device__ __forceinline__ unsigned word(const void* pair) { return *(const unsigned*)pair; }

// Return two numbers rounded to half precision, the first one in the lower bits.
template <typename Type>
__device__ __forceinline__ unsigned pair(float first, float second) {
  unsigned pair;
  if constexpr (is_same<Type, F16>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// Return the bits of a number.
__device__ __forceinline__ unsigned word_of(float number) { return __float_as_uint(number); }

// Make two TF32 numbers of a float32 number: the nearest one, and the rest, which is of either sign.
//
// The instruction is volatile, so that no parts are made ahead of a loop and kept, for which registers are too few. Of
// a number that is not finite the rest is NaN.
__device__ __forceinline__ void in_parts(unsigned* large, unsigned* small, unsigned word) {
  asm volatile("add.u32 %0, %1, 0x1000;" : "=r"(*large) : "r"(word));
  *large &= 0xffffe000u;
  *small = __float_as_uint(__uint_as_float(word) - __uint_as_float(*large));
}

// Return the rest of a float32 number whose last bits a tensor core cuts off, as it does with those of the rest.
__device__ __forceinline__ unsigned rest_of(unsigned word) {
  return __float_as_uint(__uint_as_float(word) - __uint_as_float(word & 0xffffe000u));
}

// Store two words at an address that is a multiple of both.
__device__ __forceinline__ void store_words(void* address, unsigned first, unsigned second) {
  *(uint2*)address = make_uint2(first, second);
}

}  // namespace tvmconv
