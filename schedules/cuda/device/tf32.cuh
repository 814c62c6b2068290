#pragma once

// A product in float32 is three products of TF32 numbers, which have 11 bits of the 24: with a = a' + a'' and
// b = b' + b'' it is a'b' + a'b'' + a''b'', and what is left out is 2^-22 of it.

namespace tvmconv {

// Return the bits of the TF32 number nearest to a float32 number, of two the one farther from zero.
__device__ __forceinline__ unsigned to_tf32(unsigned value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(value)));
  return rounded;
}

// Return the rest of a float32 number whose last 13 bits a tensor core cuts off, raised by half a unit of TF32 so that
// cutting off its last bits rounds it.
__device__ __forceinline__ unsigned rest(unsigned value) {
  return __float_as_uint(__uint_as_float(value) - __uint_as_float(value & 0xffffe000u)) + 0x1000u;
}

// Return the nearest TF32 number, which is finite for the largest float32 numbers too.
__device__ __forceinline__ unsigned nearest_finite(unsigned value) {
  unsigned rounded;
  asm("cvt.rna.satfinite.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(value)));
  return rounded;
}

// Return the rest beside `nearest_finite`, raised as in `rest`; infinite for an infinite number. The product of both
// rests is left out: since this one is of either sign, what is left out does not add up.
__device__ __forceinline__ unsigned rest_of_nearest(unsigned value) {
  return __float_as_uint(__uint_as_float(value) - __uint_as_float(nearest_finite(value))) + 0x1000u;
}

// Set COUNT words to a function of others.
template <unsigned (*FUNCTION)(unsigned), int COUNT>
__device__ __forceinline__ void convert(unsigned* to, const unsigned* from) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) to[i] = FUNCTION(from[i]);
}

}  // namespace tvmconv
