#pragma once
#include "schedules/cuda/device/types.cuh"

namespace tvmconv {

// Add the product of 16 rows and 8 columns, of 32 bytes each, to a thread's sums: two of row g, and two of row g + 8.
template <typename Type>
__device__ __forceinline__ void mma(typename Type::Sum* low, typename Type::Sum* high, const unsigned* a,
                                    const unsigned* b);

// The same over 16 bytes of each row and column.
template <typename Type>
__device__ __forceinline__ void mma_of_half_a_step(float* low, float* high, const unsigned* a, const unsigned* b);

#define TVMCONV_MMA(TYPE, DEPTH, TYPES, REGISTER)                                                                   \
  template <>                                                                                                       \
  __device__ __forceinline__ void mma<TYPE>(TYPE::Sum* low, TYPE::Sum* high, const unsigned* a, const unsigned* b) { \
    asm volatile("mma.sync.aligned.m16n8k" DEPTH ".row.col." TYPES " "                                              \
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                             \
      : REGISTER(low[0]), REGISTER(low[1]), REGISTER(high[0]), REGISTER(high[1])                                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                          \
  }
TVMCONV_MMA(F16, "16", "f32.f16.f16.f32", "+f")
TVMCONV_MMA(BF16, "16", "f32.bf16.bf16.f32", "+f")
TVMCONV_MMA(TF32, "8", "f32.tf32.tf32.f32", "+f")
TVMCONV_MMA(S8, "32", "s32.s8.s8.s32", "+r")
TVMCONV_MMA(U8, "32", "s32.u8.s8.s32", "+r")
#undef TVMCONV_MMA

#define TVMCONV_MMA(TYPE, TYPES)                                                                                    \
  template <>                                                                                                       \
  __device__ __forceinline__ void mma_of_half_a_step<TYPE>(float* low, float* high, const unsigned* a,              \
                                                           const unsigned* b) {                                     \
    asm volatile("mma.sync.aligned.m16n8k8.row.col." TYPES " "                                                      \
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                                                         \
      : "+f"(low[0]), "+f"(low[1]), "+f"(high[0]), "+f"(high[1]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));                \
  }
TVMCONV_MMA(F16, "f32.f16.f16.f32")
TVMCONV_MMA(BF16, "f32.bf16.bf16.f32")
#undef TVMCONV_MMA

// Add a product to a thread's four sums.
template <typename Type>
__device__ __forceinline__ void mma(typename Type::Sum* c, const unsigned* a, const unsigned* b) {
  mma<Type>(c, c + 2, a, b);
}

// Add a product in float32 as three of TF32 numbers, each factor with its rest: the largest comes last, so that fewer
// sums are rounded toward zero where they are large.
__device__ __forceinline__ void mma_of_three(float* c, const unsigned* a, const unsigned* a_rest, const unsigned* b,
                                             const unsigned* b_rest) {
  mma<TF32>(c, a_rest, b);
  mma<TF32>(c, a, b_rest);
  mma<TF32>(c, a, b);
}

}  // namespace tvmconv
