#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/mma.cuh"

// Pixels lie in shared memory as in an image, the channels of each in vectors of 16 bytes. A matrix of tensor cores
// has as its rows the vectors of eight neighbouring pixels, under a tap those that lie further by its rows and
// columns: one address for each thread, and a constant for each tap. So `ldmatrix` makes the columns of im2col while
// it loads.
//
// Two groups of four channels have a vector, and a matrix of sums, together. Each has its own product, of the pixels
// with zeros in place of the other group's channels: whatever these are, they come to no sum of the first one.

namespace tvmconv {

// The tile of a warp: ROWS pairs of rows by COLUMNS columns of eight pixels by EIGHTS eights of output channels. A
// line of the input has LINE bytes and strips of STRIP bytes, from one row of a matrix to the next, with columns of
// PIXEL bytes.
template <typename Type_, int ROWS_, int COLUMNS_, int EIGHTS_, int PIXEL_, int STRIP_, int LINE_, int KERNEL_Y_,
          int KERNEL_X_, int STRIDE_Y_, int STRIDE_X_, int DILATION_Y_, int DILATION_X_, int CHANNELS_>
struct Groups {
  using Type = Type_;
  enum : int {
    ROWS = ROWS_, COLUMNS = COLUMNS_, EIGHTS = EIGHTS_, PIXEL = PIXEL_, STRIP = STRIP_, LINE = LINE_,
    KERNEL_X = KERNEL_X_, STRIDE_Y = STRIDE_Y_, STRIDE_X = STRIDE_X_,
    DILATION_Y = DILATION_Y_, DILATION_X = DILATION_X_,
  };
  enum : bool { PAIRS = CHANNELS_ < 8 };  // two groups share a vector
  enum : int {
    OF_PIXEL = PAIRS ? 1 : CHANNELS_ / 8,  // vectors of channels
    VECTORS = KERNEL_Y_ * KERNEL_X_ * OF_PIXEL,  // vectors under all taps
    PITCH = (VECTORS | 1) * 16,  // bytes of an output channel's weights
    SUMS = ROWS * COLUMNS * 4 * EIGHTS, HIGH = 2 * EIGHTS * COLUMNS,
  };

  // Return the bytes from a pixel to the input of another one, `columns` further, under a vector of the taps.
  static __device__ __forceinline__ int offset(int vector, int columns) {
    int tap = vector / OF_PIXEL, column = tap % KERNEL_X * DILATION_X + columns, width = COLUMNS * STRIDE_X;
    int line = tap / KERNEL_X * DILATION_Y * LINE + vector % OF_PIXEL * 16;
    return line + column / width * STRIP + column % width * PIXEL;
  }
};

// Add the products of a warp under COUNT vectors of the taps, one or two, from `vector` on. Lanes of the upper half of
// a warp load the second one.
template <typename G, int COUNT>
__device__ __forceinline__ void multiply_vectors(float* sums, float* others, unsigned pixels, unsigned weights,
                                                 int vector) {
  unsigned lane = threadIdx.x & 31, upper = lane >> 4;
  unsigned b[G::EIGHTS][COUNT];
  #pragma unroll
  for (int j = 0; j < G::EIGHTS; ++j) load_matrices<COUNT>(b[j], weights + vector * 16 + j * 2 * G::PITCH);
  #pragma unroll
  for (int k = 0; k < G::COLUMNS; ++k) {
    unsigned one = G::offset(vector, k * G::STRIDE_X), two = G::offset(vector + COUNT - 1, k * G::STRIDE_X);
    unsigned address = pixels + upper * (two - one) + one;
    #pragma unroll
    for (int i = 0; i < G::ROWS; ++i) {
      unsigned a[2 * COUNT];
      load_matrices<2 * COUNT>(a, address + i * 2 * G::STRIDE_Y * G::LINE);
      float* low = sums + (2 * i * G::COLUMNS + k) * 2 * G::EIGHTS;
      auto multiply = [](float* low, const unsigned* a, const unsigned* b) {
        if constexpr (COUNT == 2)
          mma<typename G::Type>(low, low + G::HIGH, a, b);
        else
          mma_of_half_a_step<typename G::Type>(low, low + G::HIGH, a, b);
      };
      if constexpr (G::PAIRS) {  // lanes whose bit 1 is 0 hold the first group's channels and sums
        unsigned second[2 * COUNT];
        #pragma unroll
        for (int l = 0; l < 2 * COUNT; ++l) {
          second[l] = lane & 2 ? a[l] : 0;
          a[l] = lane & 2 ? 0 : a[l];
        }
        multiply(low, a, b[0]);
        multiply(others + (2 * i * G::COLUMNS + k) * 2, second, b[0]);
      } else {
        #pragma unroll
        for (int j = 0; j < G::EIGHTS; ++j) multiply(low + j * 2, a, b[j]);
      }
    }
  }
}

// Add the products of pixels and a group's weights to a thread's sums.
template <typename Type, int... SIZES>
__device__ __forceinline__ void grouped_product(float* sums, void* thread_pixels, void* thread_weights) {
  using G = Groups<Type, SIZES...>;
  unsigned lane = threadIdx.x & 31, row = lane & 7;
  unsigned pixels = shared_address(thread_pixels) - (lane >> 2) * G::STRIP + row * G::STRIP
    + ((lane >> 3) & 1) * G::STRIDE_Y * G::LINE;
  unsigned weights = shared_address(thread_weights) - (lane & 3) * (2 * G::EIGHTS * G::PITCH)
    + (row >> 1) * (2 * G::EIGHTS * G::PITCH) + (row & 1) * G::PITCH + ((lane >> 3) & 1) * 16;
  float others[G::PAIRS ? G::SUMS : 1];
  if constexpr (G::PAIRS) {
    #pragma unroll
    for (int i = 0; i < G::SUMS; ++i) others[i] = sums[i];
  }
  #pragma unroll
  for (int vector = 0; vector + 1 < G::VECTORS; vector += 2)
    multiply_vectors<G, 2>(sums, others, pixels, weights, vector);
  if constexpr (G::VECTORS % 2) multiply_vectors<G, 1>(sums, others, pixels, weights, G::VECTORS - 1);
  if constexpr (G::PAIRS) {
    #pragma unroll
    for (int i = 0; i < G::SUMS; ++i) sums[i] = lane & 2 ? others[i] : sums[i];
  }
}

}  // namespace tvmconv
