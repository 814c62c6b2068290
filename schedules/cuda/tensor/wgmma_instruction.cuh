#pragma once
#include "schedules/cuda/device/types.cuh"

// The instruction of a group of four warps, which begin it together: 64 rows by COLUMNS columns by 32 bytes. PTX wants
// each register of its sums by name, so that there is a list of operands for each width.

namespace tvmconv {

// The numbers of the operands that are a thread's sums, four for each eight columns.
#define TVMCONV_NUMBERS_8 "%0, %1, %2, %3"
#define TVMCONV_NUMBERS_16 TVMCONV_NUMBERS_8 ", %4, %5, %6, %7"
#define TVMCONV_NUMBERS_24 TVMCONV_NUMBERS_16 ", %8, %9, %10, %11"
#define TVMCONV_NUMBERS_32 TVMCONV_NUMBERS_24 ", %12, %13, %14, %15"
#define TVMCONV_NUMBERS_40 TVMCONV_NUMBERS_32 ", %16, %17, %18, %19"
#define TVMCONV_NUMBERS_48 TVMCONV_NUMBERS_40 ", %20, %21, %22, %23"
#define TVMCONV_NUMBERS_56 TVMCONV_NUMBERS_48 ", %24, %25, %26, %27"
#define TVMCONV_NUMBERS_64 TVMCONV_NUMBERS_56 ", %28, %29, %30, %31"
#define TVMCONV_NUMBERS_72 TVMCONV_NUMBERS_64 ", %32, %33, %34, %35"
#define TVMCONV_NUMBERS_80 TVMCONV_NUMBERS_72 ", %36, %37, %38, %39"
#define TVMCONV_NUMBERS_88 TVMCONV_NUMBERS_80 ", %40, %41, %42, %43"
#define TVMCONV_NUMBERS_96 TVMCONV_NUMBERS_88 ", %44, %45, %46, %47"
#define TVMCONV_NUMBERS_104 TVMCONV_NUMBERS_96 ", %48, %49, %50, %51"
#define TVMCONV_NUMBERS_112 TVMCONV_NUMBERS_104 ", %52, %53, %54, %55"
#define TVMCONV_NUMBERS_120 TVMCONV_NUMBERS_112 ", %56, %57, %58, %59"
#define TVMCONV_NUMBERS_128 TVMCONV_NUMBERS_120 ", %60, %61, %62, %63"
#define TVMCONV_NUMBERS_136 TVMCONV_NUMBERS_128 ", %64, %65, %66, %67"
#define TVMCONV_NUMBERS_144 TVMCONV_NUMBERS_136 ", %68, %69, %70, %71"
#define TVMCONV_NUMBERS_152 TVMCONV_NUMBERS_144 ", %72, %73, %74, %75"
#define TVMCONV_NUMBERS_160 TVMCONV_NUMBERS_152 ", %76, %77, %78, %79"
#define TVMCONV_NUMBERS_168 TVMCONV_NUMBERS_160 ", %80, %81, %82, %83"
#define TVMCONV_NUMBERS_176 TVMCONV_NUMBERS_168 ", %84, %85, %86, %87"
#define TVMCONV_NUMBERS_184 TVMCONV_NUMBERS_176 ", %88, %89, %90, %91"
#define TVMCONV_NUMBERS_192 TVMCONV_NUMBERS_184 ", %92, %93, %94, %95"
#define TVMCONV_NUMBERS_200 TVMCONV_NUMBERS_192 ", %96, %97, %98, %99"
#define TVMCONV_NUMBERS_208 TVMCONV_NUMBERS_200 ", %100, %101, %102, %103"
#define TVMCONV_NUMBERS_216 TVMCONV_NUMBERS_208 ", %104, %105, %106, %107"
#define TVMCONV_NUMBERS_224 TVMCONV_NUMBERS_216 ", %108, %109, %110, %111"
#define TVMCONV_NUMBERS_232 TVMCONV_NUMBERS_224 ", %112, %113, %114, %115"
#define TVMCONV_NUMBERS_240 TVMCONV_NUMBERS_232 ", %116, %117, %118, %119"
#define TVMCONV_NUMBERS_248 TVMCONV_NUMBERS_240 ", %120, %121, %122, %123"
#define TVMCONV_NUMBERS_256 TVMCONV_NUMBERS_248 ", %124, %125, %126, %127"

// The operands themselves, in registers of a kind R.
#define TVMCONV_FOUR(R, i) R(c[i]), R(c[i + 1]), R(c[i + 2]), R(c[i + 3])
#define TVMCONV_SUMS_8(R) TVMCONV_FOUR(R, 0)
#define TVMCONV_SUMS_16(R) TVMCONV_SUMS_8(R), TVMCONV_FOUR(R, 4)
#define TVMCONV_SUMS_24(R) TVMCONV_SUMS_16(R), TVMCONV_FOUR(R, 8)
#define TVMCONV_SUMS_32(R) TVMCONV_SUMS_24(R), TVMCONV_FOUR(R, 12)
#define TVMCONV_SUMS_40(R) TVMCONV_SUMS_32(R), TVMCONV_FOUR(R, 16)
#define TVMCONV_SUMS_48(R) TVMCONV_SUMS_40(R), TVMCONV_FOUR(R, 20)
#define TVMCONV_SUMS_56(R) TVMCONV_SUMS_48(R), TVMCONV_FOUR(R, 24)
#define TVMCONV_SUMS_64(R) TVMCONV_SUMS_56(R), TVMCONV_FOUR(R, 28)
#define TVMCONV_SUMS_72(R) TVMCONV_SUMS_64(R), TVMCONV_FOUR(R, 32)
#define TVMCONV_SUMS_80(R) TVMCONV_SUMS_72(R), TVMCONV_FOUR(R, 36)
#define TVMCONV_SUMS_88(R) TVMCONV_SUMS_80(R), TVMCONV_FOUR(R, 40)
#define TVMCONV_SUMS_96(R) TVMCONV_SUMS_88(R), TVMCONV_FOUR(R, 44)
#define TVMCONV_SUMS_104(R) TVMCONV_SUMS_96(R), TVMCONV_FOUR(R, 48)
#define TVMCONV_SUMS_112(R) TVMCONV_SUMS_104(R), TVMCONV_FOUR(R, 52)
#define TVMCONV_SUMS_120(R) TVMCONV_SUMS_112(R), TVMCONV_FOUR(R, 56)
#define TVMCONV_SUMS_128(R) TVMCONV_SUMS_120(R), TVMCONV_FOUR(R, 60)
#define TVMCONV_SUMS_136(R) TVMCONV_SUMS_128(R), TVMCONV_FOUR(R, 64)
#define TVMCONV_SUMS_144(R) TVMCONV_SUMS_136(R), TVMCONV_FOUR(R, 68)
#define TVMCONV_SUMS_152(R) TVMCONV_SUMS_144(R), TVMCONV_FOUR(R, 72)
#define TVMCONV_SUMS_160(R) TVMCONV_SUMS_152(R), TVMCONV_FOUR(R, 76)
#define TVMCONV_SUMS_168(R) TVMCONV_SUMS_160(R), TVMCONV_FOUR(R, 80)
#define TVMCONV_SUMS_176(R) TVMCONV_SUMS_168(R), TVMCONV_FOUR(R, 84)
#define TVMCONV_SUMS_184(R) TVMCONV_SUMS_176(R), TVMCONV_FOUR(R, 88)
#define TVMCONV_SUMS_192(R) TVMCONV_SUMS_184(R), TVMCONV_FOUR(R, 92)
#define TVMCONV_SUMS_200(R) TVMCONV_SUMS_192(R), TVMCONV_FOUR(R, 96)
#define TVMCONV_SUMS_208(R) TVMCONV_SUMS_200(R), TVMCONV_FOUR(R, 100)
#define TVMCONV_SUMS_216(R) TVMCONV_SUMS_208(R), TVMCONV_FOUR(R, 104)
#define TVMCONV_SUMS_224(R) TVMCONV_SUMS_216(R), TVMCONV_FOUR(R, 108)
#define TVMCONV_SUMS_232(R) TVMCONV_SUMS_224(R), TVMCONV_FOUR(R, 112)
#define TVMCONV_SUMS_240(R) TVMCONV_SUMS_232(R), TVMCONV_FOUR(R, 116)
#define TVMCONV_SUMS_248(R) TVMCONV_SUMS_240(R), TVMCONV_FOUR(R, 120)
#define TVMCONV_SUMS_256(R) TVMCONV_SUMS_248(R), TVMCONV_FOUR(R, 124)

template <int COLUMNS> struct Wgmma;

#define TVMCONV_BEGIN(ADD) "{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n"
#define TVMCONV_IN_MEMORY(N, TYPES, OPTIONS, R, A, B, ADD)                                                          \
  asm volatile(TVMCONV_BEGIN(ADD) #N TYPES " {" TVMCONV_NUMBERS_##N "}, %" #A ", %" #B ", p" OPTIONS "; }"          \
    : TVMCONV_SUMS_##N(R) : "l"(a), "l"(b), "r"(add));

// Widths, with the numbers of operands behind the sums. With a first factor in shared memory these are that factor,
// the second one and `add`; with one in registers its four registers, the second factor and `add`. Sums begin at zero
// where `add` is 0.
#define TVMCONV_WGMMA(N, P0, P1, P2, P3, P4, P5)                                                                    \
  template <> struct Wgmma<N> {                                                                                     \
    template <typename Type>                                                                                        \
    static __device__ __forceinline__ void multiply(typename Type::Sum* c, unsigned long long a,                    \
                                                    unsigned long long b, int add) {                                \
      if constexpr (is_same<Type, F16>) {                                                                           \
        TVMCONV_IN_MEMORY(N, "k16.f32.f16.f16", ", 1, 1, 0, 0", "+f", P0, P1, P2)                                   \
      } else if constexpr (is_same<Type, BF16>) {                                                                   \
        TVMCONV_IN_MEMORY(N, "k16.f32.bf16.bf16", ", 1, 1, 0, 0", "+f", P0, P1, P2)                                 \
      } else if constexpr (is_same<Type, TF32>) {                                                                   \
        TVMCONV_IN_MEMORY(N, "k8.f32.tf32.tf32", ", 1, 1", "+f", P0, P1, P2)                                        \
      } else if constexpr (is_same<Type, S8>) {                                                                     \
        TVMCONV_IN_MEMORY(N, "k32.s32.s8.s8", "", "+r", P0, P1, P2)                                                 \
      } else {                                                                                                      \
        TVMCONV_IN_MEMORY(N, "k32.s32.u8.s8", "", "+r", P0, P1, P2)                                                 \
      }                                                                                                             \
    }                                                                                                               \
    static __device__ __forceinline__ void multiply_registers(float* c, const unsigned* a, unsigned long long b,    \
                                                              int add) {                                            \
      asm volatile(TVMCONV_BEGIN(P5) #N "k8.f32.tf32.tf32 {" TVMCONV_NUMBERS_##N                                    \
        "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1; }"                                         \
        : TVMCONV_SUMS_##N("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                   \
    }                                                                                                               \
  };
TVMCONV_WGMMA(8, 4, 5, 6, 7, 8, 9)
TVMCONV_WGMMA(16, 8, 9, 10, 11, 12, 13)
TVMCONV_WGMMA(24, 12, 13, 14, 15, 16, 17)
TVMCONV_WGMMA(32, 16, 17, 18, 19, 20, 21)
TVMCONV_WGMMA(40, 20, 21, 22, 23, 24, 25)
TVMCONV_WGMMA(48, 24, 25, 26, 27, 28, 29)
TVMCONV_WGMMA(56, 28, 29, 30, 31, 32, 33)
TVMCONV_WGMMA(64, 32, 33, 34, 35, 36, 37)
TVMCONV_WGMMA(72, 36, 37, 38, 39, 40, 41)
TVMCONV_WGMMA(80, 40, 41, 42, 43, 44, 45)
TVMCONV_WGMMA(88, 44, 45, 46, 47, 48, 49)
TVMCONV_WGMMA(96, 48, 49, 50, 51, 52, 53)
TVMCONV_WGMMA(104, 52, 53, 54, 55, 56, 57)
TVMCONV_WGMMA(112, 56, 57, 58, 59, 60, 61)
TVMCONV_WGMMA(120, 60, 61, 62, 63, 64, 65)
TVMCONV_WGMMA(128, 64, 65, 66, 67, 68, 69)
TVMCONV_WGMMA(136, 68, 69, 70, 71, 72, 73)
TVMCONV_WGMMA(144, 72, 73, 74, 75, 76, 77)
TVMCONV_WGMMA(152, 76, 77, 78, 79, 80, 81)
TVMCONV_WGMMA(160, 80, 81, 82, 83, 84, 85)
TVMCONV_WGMMA(168, 84, 85, 86, 87, 88, 89)
TVMCONV_WGMMA(176, 88, 89, 90, 91, 92, 93)
TVMCONV_WGMMA(184, 92, 93, 94, 95, 96, 97)
TVMCONV_WGMMA(192, 96, 97, 98, 99, 100, 101)
TVMCONV_WGMMA(200, 100, 101, 102, 103, 104, 105)
TVMCONV_WGMMA(208, 104, 105, 106, 107, 108, 109)
TVMCONV_WGMMA(216, 108, 109, 110, 111, 112, 113)
TVMCONV_WGMMA(224, 112, 113, 114, 115, 116, 117)
TVMCONV_WGMMA(232, 116, 117, 118, 119, 120, 121)
TVMCONV_WGMMA(240, 120, 121, 122, 123, 124, 125)
TVMCONV_WGMMA(248, 124, 125, 126, 127, 128, 129)
TVMCONV_WGMMA(256, 128, 129, 130, 131, 132, 133)
#undef TVMCONV_WGMMA
#undef TVMCONV_IN_MEMORY

}  // namespace tvmconv
