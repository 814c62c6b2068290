#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/mma.cuh"
#include "schedules/cuda/device/numbers.cuh"
#include "schedules/cuda/device/tf32.cuh"

// The first factor has the outputs of a band as rows, even ones first, and the columns of the input as terms. A row of
// taps lies along its diagonals, so that each row has the same taps, among zeros, two columns further left. It is the
// same for all bands. The second factor has a column for each of eight rows of outputs; `ldmatrix` loads it from the
// lines.
//
// Zeros of a band are multiplied with what the input has there. Sums that are not finite are computed once more, from
// their terms alone.

namespace tvmconv {

// A warp's part of IMAGES images: eight rows of BANDS bands of sixteen outputs, below which WARPS_Y - 1 other warps
// have theirs. An image's lines have IMAGE bytes, a line LINE bytes and a row of taps, in both copies, TAPS. Windows
// are made of REACH columns of the input, the first SURPLUS of them before the first tap. There are ROWS rows and
// COLUMNS columns of the input, counted from the first that windows read; HEIGHT, if not 0, is that of planes with TOP
// rows of padding, of which a warp reads no more.
template <typename Type_, int PRODUCTS_, int IMAGES_, int BANDS_, int WARPS_Y_, int LINE_, int IMAGE_, int TAPS_,
          int KERNEL_Y_, int KERNEL_X_, int REACH_, int SURPLUS_, int FIRST_ROW_, int ROWS_, int FIRST_COLUMN_,
          int COLUMNS_, int TOP_, int HEIGHT_>
struct Bands {
  using Type = Type_;
  using Stored = typename Type::Stored;
  enum : int {
    PRODUCTS = PRODUCTS_, IMAGES = IMAGES_, BANDS = BANDS_, WARPS_Y = WARPS_Y_, LINE = LINE_,
    IMAGE = IMAGE_, TAPS = TAPS_, KERNEL_Y = KERNEL_Y_, KERNEL_X = KERNEL_X_, SURPLUS = SURPLUS_,
    FIRST_ROW = FIRST_ROW_, ROWS = ROWS_, FIRST_COLUMN = FIRST_COLUMN_, COLUMNS = COLUMNS_,
    TOP = TOP_, HEIGHT = HEIGHT_, SIZE = sizeof(Stored), SUMS = IMAGES * BANDS * 4,
    BEFORE = 14,  // zeros in front of a row of taps
    STEP = 32 / SIZE,  // columns of an instruction
    STEPS = REACH_ / STEP, BLOCKS = COLUMNS / STEP,  // instructions of a band, and of a line
  };

  // Return the step of a band that reads a block of a line's columns; a band reads those of 0 to STEPS - 1.
  static __device__ constexpr int step_of(int band, int block) { return block - (band * 16 - FIRST_COLUMN) / STEP; }
  static __device__ constexpr bool reads(int band, int block) {
    return 0 <= step_of(band, block) && step_of(band, block) < STEPS;
  }
  static __device__ constexpr bool is_read(int step) {
    for (int band = 0; band < BANDS; ++band)
      for (int block = 0; block < BLOCKS; ++block)
        if (step_of(band, block) == step) return true;
    return false;
  }
};

// Compute sums that are not finite once more, in a loop over all of them, whose numbers are constants there.
template <typename B>
__device__ __forceinline__ void compute_bands_again(float* sums, const typename B::Stored* lines,
                                                    const typename B::Stored* taps, int y) {
  #pragma unroll 1
  for (int i = 0; i < B::SUMS; ++i) {
    int row = y + (threadIdx.x & 3) * 2 + (i & 1) - B::FIRST_ROW, odd = i >> 1 & 1;
    int column = i % (B::BANDS * 4) / 4 * 16 + (threadIdx.x >> 2 & 7) * 2 + odd;
    auto pixel = lines + i / (B::BANDS * 4) * (B::IMAGE / B::SIZE) + column + B::SURPLUS - B::FIRST_COLUMN;
    auto tap = taps + odd * (B::TAPS / B::SIZE / 2) + B::BEFORE + odd + B::SURPLUS;
    float sum = 0.0f;
    #pragma unroll 1
    for (int r = max(0, -row); r < min(B::KERNEL_Y, B::ROWS - row); ++r)
      #pragma unroll 1
      for (int s = 0; s < B::KERNEL_X; ++s)
        if ((unsigned)(column + B::SURPLUS - B::FIRST_COLUMN + s) < (unsigned)B::COLUMNS)
          sum += widened<typename B::Type>(pixel[(row + r) * (B::LINE / B::SIZE) + s])
            * widened<typename B::Type>(tap[r * (B::TAPS / B::SIZE) + s]);
    #pragma unroll
    for (int j = 0; j < B::SUMS; ++j) sums[j] = j != i || is_finite(sums[j]) ? sums[j] : sum;
  }
}

// Add a warp's products to a thread's sums. Of three products the float32 units add the sums of a row of taps to the
// others.
template <typename Type, int... SIZES>
__device__ __forceinline__ void bands_product(float* sums, void* lines, void* taps) {
  using B = Bands<Type, SIZES...>;
  using Stored = typename B::Stored;
  unsigned lane = threadIdx.x & 31;
  int y = (int)(threadIdx.x >> 5) % B::WARPS_Y * 8;
  unsigned line = shared_address(lines) + (y + (int)(lane & 7) - B::FIRST_ROW) * B::LINE + (lane >> 3) * 16;
  unsigned tap = shared_address(taps) + B::BEFORE * B::SIZE - (lane >> 2) * (2 * B::SIZE) + (lane & 3) * 4;
  int first = 0, last = B::KERNEL_Y;
  if constexpr (B::HEIGHT > 0) {  // rows of taps under which a warp reads more than padding
    first = max(0, B::TOP - 7 - y);
    last = min(B::KERNEL_Y, B::TOP + B::HEIGHT - y);
  }
  #pragma unroll 1
  for (int r = first; r < last; ++r) {
    unsigned a[B::STEPS][4], a_rest[B::STEPS][4];
    auto load = [&](int step, int i) {  // of even outputs and odd ones, of the first half of the columns and the second
      a[step][i] = load_word(tap + r * B::TAPS + (step * 32 + i / 2 * 16 + i % 2 * (B::TAPS / 2)));
      if constexpr (B::PRODUCTS == 1) a[step][i] = to_tf32(a[step][i]);
      if constexpr (B::PRODUCTS == 3) {
        a_rest[step][i] = rest_of_nearest(a[step][i]);
        a[step][i] = nearest_finite(a[step][i]);
      }
    };
    #pragma unroll
    for (int step = 0; step < B::STEPS; ++step)
      if (B::is_read(step)) load(step, 0), load(step, 1), load(step, 2), load(step, 3);
    #pragma unroll
    for (int i = 0; i < B::IMAGES; ++i) {
      unsigned address = line + r * B::LINE + i * B::IMAGE;
      float *of_image = sums + i * (B::BANDS * 4), of_row[B::BANDS * 4] = {};
      #pragma unroll
      for (int begin = 0; begin < B::BLOCKS; begin += 2) {
        unsigned b[4], b_rest[4];
        if (begin + 1 < B::BLOCKS)
          load_matrices<4>(b, address + begin * 32);
        else
          load_matrices<2>(b, address + begin * 32);
        if constexpr (B::PRODUCTS == 1) convert<to_tf32, 4>(b, b);
        if constexpr (B::PRODUCTS == 3) convert<rest, 4>(b_rest, b);
        #pragma unroll
        for (int block = begin; block < begin + 2 && block < B::BLOCKS; ++block)
          #pragma unroll
          for (int band = 0; band < B::BANDS; ++band)
            if (B::reads(band, block)) {
              int step = B::step_of(band, block), half = 2 * (block - begin);
              if constexpr (B::PRODUCTS == 3)
                mma_of_three(of_row + band * 4, a[step], a_rest[step], b + half, b_rest + half);
              else
                mma<Type>(of_image + band * 4, a[step], b + half);
            }
      }
      if constexpr (B::PRODUCTS == 3) {
        #pragma unroll
        for (int k = 0; k < B::BANDS * 4; ++k) of_image[k] += of_row[k];
      }
    }
  }
  bool finite = true;
  #pragma unroll
  for (int i = 0; i < B::SUMS; ++i) finite &= is_finite(sums[i]);
  if (!finite) compute_bands_again<B>(sums, (const Stored*)lines, (const Stored*)taps, y);
}

}  // namespace tvmconv
