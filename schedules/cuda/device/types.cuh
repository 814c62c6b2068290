#pragma once

namespace tvmconv {

// The types of factors that tensor cores multiply: of their sums, and of an element as it is stored.
struct F16 { using Sum = float; using Stored = unsigned short; };
struct BF16 { using Sum = float; using Stored = unsigned short; };
struct TF32 { using Sum = float; using Stored = float; };
struct S8 { using Sum = int; using Stored = signed char; };
struct U8 { using Sum = int; using Stored = unsigned char; };

template <typename A, typename B> constexpr bool is_same = false;
template <typename A> constexpr bool is_same<A, A> = true;

__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace tvmconv
