#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/mma.cuh"
#include "schedules/cuda/device/tf32.cuh"

// Rows of images are the terms of the product: of eight rows of two images an instruction has all terms. `ldmatrix`
// loads them transposed, so that columns of x become the rows of the first factor, and columns of dy the columns of
// the second. Under another row of taps x begins as many rows further, and dy is the same.
//
// A product in float32 is three products of TF32 numbers, of eight rows of one image. There threads load their
// elements one by one, and the sums of an image are added to the others by the float32 units.

namespace tvmconv {

// A warp has BLOCK_R rows of taps, next to those of the others of GROUPS, and PAIRS pairs of images with ROWS rows of
// dy. Lines and images of x and dy have X_LINE, X_IMAGE, DY_LINE and DY_IMAGE bytes; an image has LINES lines of x, of
// which output row y reads y - FIRST on. There are sums for COUNT diagonals, BEFORE of them before the main one. WHOLE
// planes have a line of zeros behind the last one, which stands for all rows beyond the plane.
template <typename Type_, int BLOCK_R_, int GROUPS_, int PAIRS_, int ROWS_, int X_LINE_, int X_IMAGE_, int DY_LINE_,
          int DY_IMAGE_, int KERNEL_Y_, int FIRST_, int LINES_, int BEFORE_, int COUNT_, int WIDTH_, int DY_WIDTH_,
          int KERNEL_X_, int LEFT_, int WHOLE_>
struct Diagonals {
  using Type = Type_;
  enum : int {
    BLOCK_R = BLOCK_R_, GROUPS = GROUPS_, PAIRS = PAIRS_, ROWS = ROWS_, X_LINE = X_LINE_,
    X_IMAGE = X_IMAGE_, DY_LINE = DY_LINE_, DY_IMAGE = DY_IMAGE_, KERNEL_Y = KERNEL_Y_, FIRST = FIRST_,
    HEIGHT = LINES_ - 1, BEFORE = BEFORE_, OF_ROW = 4 * COUNT_, WIDTH = WIDTH_, DY_WIDTH = DY_WIDTH_,
    TILES = ceil_div(WIDTH, 16), EIGHTS = ceil_div(DY_WIDTH, 8),
  };
  enum : bool { WHOLE = WHOLE_ != 0 };

  // Return whether a column of tile m of x is under a tap of a column of eight n of dy.
  static __device__ constexpr bool meet(int m, int n) {
    int last = (m * 16 + 16 < WIDTH ? m * 16 + 16 : WIDTH) - 1;
    int dy_last = (n * 8 + 8 < DY_WIDTH ? n * 8 + 8 : DY_WIDTH) - 1;
    return last - n * 8 >= -LEFT_ && m * 16 - dy_last <= KERNEL_X_ - 1 - LEFT_;
  }
  static __device__ constexpr bool is_read(int m) {
    for (int n = 0; n < EIGHTS; ++n)
      if (meet(m, n)) return true;
    return false;
  }
  static __device__ constexpr int products() {
    int count = 0;
    for (int m = 0; m < TILES; ++m)
      for (int n = 0; n < EIGHTS; ++n) count += meet(m, n);
    return count;
  }

  // Beyond the last row of taps there is nothing to load, but of whole planes zeros, which are cheaper than a test of
  // at most four products.
  static __device__ constexpr bool tests_taps() { return GROUPS * BLOCK_R > KERNEL_Y && !(WHOLE && products() <= 4); }
  static __device__ constexpr bool tests_rows() {
    return WHOLE && (FIRST >= 8 || ROWS + KERNEL_Y - 1 - FIRST >= HEIGHT + 8);
  }

  // Return whether a row of taps, and one of the eight rows of x from `row` on, are to be multiplied.
  static __device__ __forceinline__ bool inside(int tap_row, int row) {
    return (!tests_taps() || tap_row < KERNEL_Y) && (!tests_rows() || (row > -8 && row < HEIGHT));
  }
  // Return the line of a row of x in shared memory; a row below zero is a large number, too.
  static __device__ __forceinline__ unsigned line(int row) {
    return WHOLE ? min((unsigned)row, (unsigned)HEIGHT) : row;
  }
};

// Load the rows of a tile of x transposed, and multiply each by the columns of dy that it meets taps with.
template <typename D>
__device__ __forceinline__ void multiply_tiles(float* sums, const unsigned (*b)[2], unsigned lines_of_two,
                                               unsigned lines_of_one) {
  #pragma unroll
  for (int m = 0; m < D::TILES; ++m)
    if (D::is_read(m)) {
      unsigned a[4];
      if (m * 16 + 8 < D::WIDTH) {
        load_matrices<4, true>(a, lines_of_two + m * 32);
      } else {
        unsigned low[2];
        load_matrices<2, true>(low, lines_of_one + m * 32);
        a[0] = low[0], a[1] = 0, a[2] = low[1], a[3] = 0;
      }
      #pragma unroll
      for (int n = 0; n < D::EIGHTS; ++n)
        if (D::meet(m, n)) mma<typename D::Type>(sums + (2 * m - n + D::BEFORE) * 4, a, b[n]);
    }
}

// Add a warp's products to a thread's sums, in half precision.
template <typename Type, int... SIZES>
__device__ __forceinline__ void diagonals_product(float* sums, void* lines, void* gradient) {
  using D = Diagonals<Type, SIZES...>;
  unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned low = lane & 7, middle = lane >> 3 & 1, high = lane >> 4, first_image = warp / D::GROUPS * (2 * D::PAIRS);
  int first = warp % D::GROUPS * D::BLOCK_R;
  unsigned line = shared_address(lines) + first_image * D::X_IMAGE;
  unsigned lines_of_two = line + middle * 16 + high * D::X_IMAGE, lines_of_one = line + middle * D::X_IMAGE;
  unsigned of_dy = shared_address(gradient) + first_image * D::DY_IMAGE + low * D::DY_LINE + middle * D::DY_IMAGE
    + high * 16;
  #pragma unroll 1
  for (int step = 0; step < D::PAIRS * (D::ROWS / 8); ++step) {
    int pair = step / (D::ROWS / 8), y = step % (D::ROWS / 8) * 8;
    unsigned dy = of_dy + pair * (2 * D::DY_IMAGE) + y * D::DY_LINE;
    unsigned b[D::EIGHTS + 1][2];
    #pragma unroll
    for (int eight = 0; eight < D::EIGHTS; eight += 2)
      if (eight + 1 < D::EIGHTS)
        load_matrices<4, true>(b[eight], dy + eight * 16);
      else
        load_matrices<2, true>(b[eight], dy + eight * 16);
    #pragma unroll
    for (int r = 0; r < D::BLOCK_R; ++r) {
      int row = y + first + r - D::FIRST;
      if (D::inside(first + r, row)) {
        unsigned offset = pair * (2 * D::X_IMAGE) + D::line(row + low) * D::X_LINE;
        multiply_tiles<D>(sums + r * D::OF_ROW, b, lines_of_two + offset, lines_of_one + offset);
      }
    }
  }
}

// Load the elements of a tile of x from two rows, take them apart, and multiply them as `multiply_tiles` does.
template <typename D>
__device__ __forceinline__ void multiply_tiles_in_float32(float* sums, const unsigned (*b)[2],
                                                          const unsigned (*b_rest)[2], unsigned upper, unsigned lower) {
  #pragma unroll
  for (int m = 0; m < D::TILES; ++m)
    if (D::is_read(m)) {
      unsigned a[4], a_rest[4];
      auto load = [&](int i, unsigned row, int column) {
        a[i] = column < D::WIDTH ? load_word(row + column * 4) : 0u;
        a_rest[i] = rest(a[i]);
      };
      load(0, upper, m * 16), load(1, upper, m * 16 + 8), load(2, lower, m * 16), load(3, lower, m * 16 + 8);
      auto multiply = [&](const unsigned* first, const unsigned (*second)[2]) {
        #pragma unroll
        for (int n = 0; n < D::EIGHTS; ++n)
          if (D::meet(m, n)) mma<TF32>(sums + (2 * m - n + D::BEFORE) * 4, first, second[n]);
      };
      // The largest products come last, so that fewer sums are rounded toward zero where they are large.
      multiply(a_rest, b);
      multiply(a, b_rest);
      multiply(a, b);
    }
}

// Add a warp's products to a thread's sums, in float32.
template <typename Type, int... SIZES>
__device__ __forceinline__ void diagonals_product_in_float32(float* sums, void* lines, void* gradient) {
  using D = Diagonals<Type, SIZES...>;
  constexpr int IMAGES = 2 * D::PAIRS;
  unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, low = lane & 3, first_image = warp / D::GROUPS * IMAGES;
  int first = warp % D::GROUPS * D::BLOCK_R;
  unsigned line = shared_address(lines) + first_image * D::X_IMAGE + (lane >> 2) * 4;
  unsigned of_dy = shared_address(gradient) + first_image * D::DY_IMAGE + low * D::DY_LINE + (lane >> 2) * 4;
  #pragma unroll
  for (int r = 0; r < D::BLOCK_R; ++r) {
    #pragma unroll 1
    for (int image = 0; image < IMAGES; ++image) {
      float of_image[D::OF_ROW];
      #pragma unroll
      for (int i = 0; i < D::OF_ROW; ++i) of_image[i] = 0.0f;
      #pragma unroll 1
      for (int y = 0; y < D::ROWS; y += 8) {
        int row = y + first + r - D::FIRST;
        if (D::inside(first + r, row)) {
          unsigned dy = of_dy + image * D::DY_IMAGE + y * D::DY_LINE;
          unsigned b[D::EIGHTS][2], b_rest[D::EIGHTS][2];
          #pragma unroll
          for (int eight = 0; eight < D::EIGHTS; ++eight) {
            auto load = [&](int half) {
              b[eight][half] = load_word(dy + (eight * 32 + half * 4 * D::DY_LINE));
              b_rest[eight][half] = rest_of_nearest(b[eight][half]);
              b[eight][half] = nearest_finite(b[eight][half]);
            };
            load(0), load(1);
          }
          unsigned upper = line + image * D::X_IMAGE + D::line(row + low) * D::X_LINE;
          unsigned lower = line + image * D::X_IMAGE + D::line(row + 4 + low) * D::X_LINE;
          multiply_tiles_in_float32<D>(of_image, b, b_rest, upper, lower);
        }
      }
      #pragma unroll
      for (int i = 0; i < D::OF_ROW; ++i) sums[r * D::OF_ROW + i] += of_image[i];
    }
  }
}

}  // namespace tvmconv
