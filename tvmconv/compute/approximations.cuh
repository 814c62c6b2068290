#pragma once

namespace tvmconv {

// Return two to the power of a number, to about 2^-22; 0 where that is below 2^-126.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Return the reciprocal of a number, to about 2^-22; 0 where that is below 2^-126.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same of two, four and eight numbers, as TVM has vectors of them in CUDA.
#define TVMCONV_OF_VECTORS(NAME)                                                                                    \
  __device__ __forceinline__ float2 NAME(float2 x) { return make_float2(NAME(x.x), NAME(x.y)); }                    \
  __device__ __forceinline__ float4 NAME(float4 x) {                                                                \
    return make_float4(NAME(x.x), NAME(x.y), NAME(x.z), NAME(x.w));                                                 \
  }                                                                                                                 \
  __device__ __forceinline__ ulonglong4 NAME(ulonglong4 x) {                                                        \
    float4* halves = (float4*)&x;                                                                                   \
    halves[0] = NAME(halves[0]);                                                                                    \
    halves[1] = NAME(halves[1]);                                                                                    \
    return x;                                                                                                       \
  }
TVMCONV_OF_VECTORS(exp2)
TVMCONV_OF_VECTORS(reciprocal)
#undef TVMCONV_OF_VECTORS

}  // namespace tvmconv
