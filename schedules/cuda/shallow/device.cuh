#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/mma.cuh"

// Pixels lie in shared memory as in an image, with their channels side by side, so that what a row of a window reads
// is contiguous: a thread loads two terms of a pixel at once, from its pixel's address and an offset that all pixels
// share. Neighbouring pixels read neighbouring words. A word may hold a term past the end of a row, of another pixel,
// and nothing is copied to where weights past the last term lie; whatever is there, it counts as zero.

namespace tvmconv {

// Add the products of windows and weights to a thread's sums. A warp has ROWS pairs of rows by COLUMNS columns of
// eight pixels by EIGHTS eights of output channels, and WARPS_N of them lie along the outputs; a line of pixels has
// LINE bytes.
template <typename Type, int WARPS_N, int ROWS, int COLUMNS, int EIGHTS, int LINE, int KERNEL_Y, int KERNEL_X,
          int STRIDE_Y, int STRIDE_X, int CHANNELS>
__device__ __forceinline__ void shallow_product(float* sums, void* all_pixels, void* all_weights) {
  constexpr int ROW = (KERNEL_X * CHANNELS + 1) / 2 * 2;  // terms of a row of a window, in whole words
  constexpr int TERMS = KERNEL_Y * ROW, DEPTH = 16, STEPS = ceil_div(TERMS, DEPTH);
  constexpr int PITCH = (2 * STEPS | 1) * 16;  // bytes of an output channel's weights
  constexpr int DOWN = 2 * STRIDE_Y * LINE, RIGHT = STRIDE_X * CHANNELS * 2;
  unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  unsigned pixels = shared_address(all_pixels) + warp / WARPS_N * (ROWS * DOWN) + (lane >> 2) * (COLUMNS * RIGHT);
  unsigned weights = shared_address(all_weights) + (warp % WARPS_N * (EIGHTS * 8) + (lane & 7)) * PITCH
    + ((lane >> 3) & 1) * 16;
  // The offsets of a thread's two pairs of terms, in bytes and in terms of a row, which are kept from step to step.
  int low_term = (lane & 3) * 2, high_term = low_term + 8;
  int column_one = low_term % ROW, column_two = high_term % ROW;
  unsigned offset_one = low_term / ROW * LINE + column_one * 2;
  unsigned offset_two = high_term / ROW * LINE + column_two * 2;
  auto go_on = [](unsigned& offset, int& column) {
    offset += DEPTH / ROW * LINE + DEPTH % ROW * 2;
    column += DEPTH % ROW;
    if (column >= ROW) {
      column -= ROW;
      offset += LINE - ROW * 2;
    }
  };
  auto inside = [](int term) { return term < TERMS ? 0xffffffff : 0; };
  auto mask = [=](int term, int column) {  // an odd row ends within a word
    return KERNEL_X * CHANNELS % 2 && column == ROW - 2 ? 0xffff & inside(term) : inside(term);
  };
  #pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    int first = step * DEPTH + low_term, second = step * DEPTH + high_term;
    unsigned b[EIGHTS][2];
    #pragma unroll
    for (int j = 0; j < EIGHTS; ++j) {
      load_matrices<2>(b[j], weights + j * 8 * PITCH + step * DEPTH * 2);
      b[j][0] &= inside(first);
      b[j][1] &= inside(second);
    }
    unsigned of_one = mask(first, column_one), of_two = mask(second, column_two);
    unsigned one = offset_one & inside(first), two = offset_two & inside(second);
    go_on(offset_one, column_one);
    go_on(offset_two, column_two);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      #pragma unroll
      for (int k = 0; k < COLUMNS; ++k) {
        unsigned upper = pixels + i * DOWN + k * RIGHT, lower = upper + STRIDE_Y * LINE;
        unsigned a[4];
        a[0] = load_word(upper + one) & of_one;
        a[1] = load_word(lower + one) & of_one;
        a[2] = load_word(upper + two) & of_two;
        a[3] = load_word(lower + two) & of_two;
        float* low = sums + (2 * i * COLUMNS + k) * 2 * EIGHTS;
        #pragma unroll
        for (int j = 0; j < EIGHTS; ++j) mma<Type>(low + j * 2, low + 2 * EIGHTS * COLUMNS + j * 2, a, b[j]);
      }
    }
  }
}

}  // namespace tvmconv
