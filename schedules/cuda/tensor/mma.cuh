#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/mma.cuh"
#include "schedules/cuda/device/tf32.cuh"

// A chunk is rows of 128 bytes along the reduction, in groups of eight rows, whose eight vectors of 16 bytes are
// permuted: vector v of row r of a group lies at index v ^ r, the 128-byte swizzle of the PTX manual, which `ldmatrix`
// reads without bank conflicts. Functions get the addresses of a thread's first row of each factor without the
// permutation: row r of 8 for thread (r, q) of a warp in the first factor, and row 2q in the second.

namespace tvmconv {

// Add the products of all pairs of matrices to sums.
template <typename Type, int TILES_M, int TILES_N>
__device__ __forceinline__ void multiply_matrices(typename Type::Sum* sums, const unsigned (*a)[4],
                                                  const unsigned (*b)[2]) {
  #pragma unroll
  for (int i = 0; i < TILES_M; ++i)
    #pragma unroll
    for (int j = 0; j < TILES_N; ++j) mma<Type>(sums + (i * TILES_N + j) * 4, a[i], b[j]);
}

// Add a warp's product of two chunks to a thread's sums, of TILES_M matrices of 16 rows by TILES_N of 8 columns.
// Factors in float32 are multiplied as one product of TF32 numbers or as three, according to PRODUCTS; others have 0.
//
// Tensor cores round sums toward zero, which would add up over a long reduction: three products have sums of each
// chunk, which the float32 units add to the others.
template <typename Type, int PRODUCTS, int TILES_M, int TILES_N>
__device__ __forceinline__ void mma_product(typename Type::Sum* sums, void* rows, void* columns) {
  using Sum = typename Type::Sum;
  unsigned lane = threadIdx.x & 31;
  unsigned first_row = shared_address(rows) - (lane >> 2) * 128 + (lane & 15) * 128;
  unsigned first_column = shared_address(columns) - (lane & 3) * 256 + (lane & 7) * 128 + (lane >> 4) * 1024;
  Sum of_chunk[TILES_M * TILES_N * 4];
  if constexpr (PRODUCTS == 3) {
    #pragma unroll
    for (int i = 0; i < TILES_M * TILES_N * 4; ++i) of_chunk[i] = 0;
  }
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    unsigned a[TILES_M][4], b[TILES_N][2];
    #pragma unroll
    for (int i = 0; i < TILES_M; ++i)
      load_matrices<4>(a[i], first_row + i * 2048 + (((step * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
    #pragma unroll
    for (int j = 0; j < TILES_N; j += 2)
      load_matrices<4>(b[j], first_column + j * 1024 + (((step * 2 + ((lane >> 3) & 1)) ^ (lane & 7)) << 4));
    if constexpr (PRODUCTS == 3) {
      unsigned a_rest[TILES_M][4], b_rest[TILES_N][2];
      convert<rest, TILES_M * 4>(a_rest[0], a[0]);
      convert<rest_of_nearest, TILES_N * 2>(b_rest[0], b[0]);
      convert<nearest_finite, TILES_N * 2>(b[0], b[0]);
      multiply_matrices<Type, TILES_M, TILES_N>(of_chunk, a_rest, b);
      multiply_matrices<Type, TILES_M, TILES_N>(of_chunk, a, b_rest);
      multiply_matrices<Type, TILES_M, TILES_N>(of_chunk, a, b);
    } else {
      if constexpr (PRODUCTS == 1) {
        convert<to_tf32, TILES_M * 4>(a[0], a[0]);
        convert<to_tf32, TILES_N * 2>(b[0], b[0]);
      }
      multiply_matrices<Type, TILES_M, TILES_N>(sums, a, b);
    }
  }
  if constexpr (PRODUCTS == 3) {
    #pragma unroll
    for (int i = 0; i < TILES_M * TILES_N * 4; ++i) sums[i] += of_chunk[i];
  }
}

}  // namespace tvmconv
