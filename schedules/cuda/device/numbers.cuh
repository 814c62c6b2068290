#pragma once
#include "schedules/cuda/device/types.cuh"

namespace tvmconv {

// Return a stored element as float32.
template <typename Type>
__device__ __forceinline__ float widened(typename Type::Stored bits) {
  if constexpr (is_same<Type, F16>) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  } else if constexpr (is_same<Type, BF16>) {
    return __uint_as_float((unsigned)bits << 16);
  } else {
    return bits;
  }
}

// Return whether a number is neither infinite nor NaN.
__device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace tvmconv
