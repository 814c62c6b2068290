#pragma once
#include "schedules/cuda/device/mma.cuh"
#include "schedules/cuda/device/numbers.cuh"

// The first factor has sixteen columns of outputs as rows, and sixteen columns of the input as terms: a row of taps
// lies along its diagonals. The second factor has a column for each of eight rows of the input, which threads load
// from planes as they lie in shared memory. Eights of rows are interleaved, so that a row of the input is loaded once
// for all of them: the first one multiplies it by a row of taps, the next one by the row of taps before, which stay in
// registers.
//
// Zeros of the first factor are multiplied with what the input has there. Sums that are not finite are computed once
// more, from their terms alone.

namespace tvmconv {

// A warp's planes: of IMAGES images, TOGETHER of which make up a matrix's sixteen columns, in NEIGHBOURS channels,
// with EIGHTS eights of rows and BANDS bands of sixteen columns of outputs. An image has IMAGE elements in shared
// memory, and columns of a channel are PIXEL elements apart.
template <typename Type_, int IMAGES, int TOGETHER_, int NEIGHBOURS_, int EIGHTS_, int BANDS_, int IMAGE_, int PIXEL_,
          int HEIGHT_, int WIDTH_, int KERNEL_Y_, int KERNEL_X_, int TOP_, int LEFT_>
struct Planes {
  using Type = Type_;
  enum : int {
    TOGETHER = TOGETHER_, NEIGHBOURS = NEIGHBOURS_, EIGHTS = EIGHTS_, BANDS = BANDS_, IMAGE = IMAGE_,
    PIXEL = PIXEL_, HEIGHT = HEIGHT_, WIDTH = WIDTH_, KERNEL_Y = KERNEL_Y_, KERNEL_X = KERNEL_X_,
    TOP = TOP_, LEFT = LEFT_, PLANES = IMAGES / TOGETHER, SUMS = 4 * PLANES * NEIGHBOURS * EIGHTS * BANDS,
  };
  enum : bool { NHWC = NEIGHBOURS == 2 };
  enum : int {
    CHANNEL = NHWC ? 1 : HEIGHT * WIDTH, OF_WARP = NHWC ? 2 : HEIGHT * WIDTH,
    LINE = WIDTH * PIXEL, WINDOW = KERNEL_Y * KERNEL_X, STEPS = ceil_div(WIDTH, 16),
    // The rows of the input that are loaded, counted from the first one that a window of the first output has.
    BEFORE = TOP - EIGHTS * 7 - (EIGHTS - 1), FIRST = BEFORE > 0 ? BEFORE : 0,
    END = KERNEL_Y + EIGHTS - 1 < TOP + HEIGHT ? KERNEL_Y + EIGHTS - 1 : TOP + HEIGHT,
    UNROLLED = EIGHTS > 2 ? EIGHTS : 2,
  };
  // Four lanes have a row, and the last four lanes zeros: planes are loaded into registers once.
  enum : bool { IN_REGISTERS = EIGHTS == 1 && HEIGHT < 8 };

  // Return whether outputs read columns that are `behind` sixteens behind theirs.
  static __device__ constexpr bool reads(int behind) {
    return -16 < behind * 16 + LEFT && behind * 16 + LEFT < KERNEL_X + 15;
  }
  static __device__ constexpr bool is_read(int step) {
    for (int band = 0; band < BANDS; ++band)
      if (step < STEPS && reads(step - band)) return true;
    return false;
  }
  static __device__ constexpr int first_behind() {
    int behind = 1 - BANDS;
    while (!reads(behind)) ++behind;
    return behind;
  }
  static __device__ constexpr int matrices() {
    int count = 0;
    while (first_behind() + count < STEPS && reads(first_behind() + count)) ++count;
    return count;
  }
};

// Compute sums that are not finite once more, in a loop over all of them, whose numbers are constants there.
template <typename P>
__device__ __forceinline__ void compute_planes_again(float* sums, const unsigned short* lines,
                                                     const unsigned short* taps) {
  int g = threadIdx.x >> 2 & 7, j = threadIdx.x & 3;
  #pragma unroll 1
  for (int i = 0; i < P::SUMS; ++i) {
    int odd = i >> 1 & 1, unit = i >> 2, channel = unit / (P::EIGHTS * P::BANDS) % P::NEIGHBOURS;
    int image = unit / (P::EIGHTS * P::BANDS * P::NEIGHBOURS) * P::TOGETHER + (P::TOGETHER == 2 ? odd : 0);
    int row = P::EIGHTS * (2 * j + (i & 1)) + unit / P::BANDS % P::EIGHTS - P::TOP;
    int column = (P::TOGETHER == 2 ? g : unit % P::BANDS * 16 + 2 * g + odd) - P::LEFT;
    float sum = 0.0f;
    #pragma unroll 1
    for (int r = max(0, -row); r < min(P::KERNEL_Y, P::HEIGHT - row); ++r)
      #pragma unroll 1
      for (int s = max(0, -column); s < min(P::KERNEL_X, P::WIDTH - column); ++s)
        sum += widened<typename P::Type>(lines[image * P::IMAGE + channel * P::CHANNEL + (row + r) * P::LINE
            + (column + s) * P::PIXEL])
          * widened<typename P::Type>(taps[channel * P::WINDOW + r * P::KERNEL_X + s]);
    #pragma unroll
    for (int k = 0; k < P::SUMS; ++k) sums[k] = k != i || is_finite(sums[k]) ? sums[k] : sum;
  }
}

// Return two neighbouring taps of a row as a word, with zeros beside the row and where there is none.
template <typename P>
__device__ __forceinline__ unsigned two_taps(const unsigned short* row, int s, bool is_row) {
  unsigned low = is_row && (unsigned)s < (unsigned)P::KERNEL_X ? row[s] : 0;
  return low | (is_row && (unsigned)(s + 1) < (unsigned)P::KERNEL_X ? row[s + 1] : 0) << 16;
}

// Load a row of taps into the matrices of the first eight rows, from the M-th on.
template <typename P, int M = 0>
__device__ __forceinline__ void load_taps(unsigned (*a)[4], const unsigned short* row, int g, int j, bool is_row) {
  if constexpr (P::TOGETHER == 2) {
    a[0][0] = a[0][3] = two_taps<P>(row, 2 * j - g + P::LEFT, is_row);
  } else if constexpr (M < P::matrices()) {  // of even outputs and odd ones; then the last eight columns
    constexpr int FIRST = (P::first_behind() + M) * 16 + P::LEFT;
    a[M][0] = two_taps<P>(row, 2 * (j - g) + FIRST, is_row);
    a[M][1] = two_taps<P>(row, 2 * (j - g) + (FIRST - 1), is_row);
    a[M][2] = two_taps<P>(row, 2 * (j - g) + (FIRST + 8), is_row);
    a[M][3] = two_taps<P>(row, 2 * (j - g) + (FIRST + 7), is_row);
    load_taps<P, M + 1>(a, row, g, j, is_row);
  }
}

// Load two neighbouring columns of a half of sixteen of a row, in a warp's channels; `line` begins at a thread's first.
//
// This is a macro, with literal numbers for the first steps: NVRTC computes addresses in another way where a function
// with branches is inlined, or where a loop that is unrolled counts steps, and kernels took up to 6% longer on an H200.
#define TVMCONV_LOW (inside && (column + 6 < P::WIDTH || 2 * j + column < P::WIDTH))
#define TVMCONV_HIGH (inside && (column + 7 < P::WIDTH || 2 * j + (column + 1) < P::WIDTH))
#define TVMCONV_AT(MORE) line[(i * P::TOGETHER + odd) * P::IMAGE + offset + MORE]
#define TVMCONV_LOAD_HALF(B, STEP, HALF)                                                                            \
  {                                                                                                                 \
    const int column = P::TOGETHER == 2 ? 0 : (STEP) * 16 + HALF * 8, odd = P::TOGETHER == 2 ? HALF : 0;            \
    const int offset = column * P::PIXEL;                                                                           \
    if constexpr (P::NHWC) {                                                                                        \
      unsigned one = TVMCONV_LOW ? *(const unsigned*)&TVMCONV_AT(0) : 0;                                            \
      unsigned two = TVMCONV_HIGH ? *(const unsigned*)&TVMCONV_AT(P::PIXEL) : 0;                                    \
      B[STEP][0][HALF] = __byte_perm(one, two, 0x5410);                                                             \
      B[STEP][1][HALF] = __byte_perm(one, two, 0x7632);                                                             \
    } else if constexpr (P::WIDTH % 2 == 0) {                                                                       \
      B[STEP][0][HALF] = TVMCONV_LOW ? *(const unsigned*)&TVMCONV_AT(0) : 0;                                        \
    } else {                                                                                                        \
      B[STEP][0][HALF] = (TVMCONV_LOW ? TVMCONV_AT(0) : 0) | (TVMCONV_HIGH ? TVMCONV_AT(1) : 0) << 16;              \
    }                                                                                                               \
  }
#define TVMCONV_LOAD_STEP(B, STEP, IF)                                                                              \
  IF (P::is_read(STEP)) {                                                                                           \
    TVMCONV_LOAD_HALF(B, STEP, 0)                                                                                   \
    TVMCONV_LOAD_HALF(B, STEP, 1)                                                                                   \
  }
#define TVMCONV_LOAD_STEPS(B)                                                                                       \
  TVMCONV_LOAD_STEP(B, 0, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 1, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 2, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 3, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 4, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 5, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 6, if constexpr)                                                                             \
  TVMCONV_LOAD_STEP(B, 7, if constexpr)                                                                             \
  _Pragma("unroll")                                                                                                 \
  for (int step = 8; step < P::STEPS; ++step) TVMCONV_LOAD_STEP(B, step, if)

// Add a warp's products to a thread's sums. A barrier comes last, since outputs are stored where planes lie.
template <typename Type, int... SIZES>
__device__ __forceinline__ void planes_product(float* sums, void* all_lines, void* all_taps) {
  using P = Planes<Type, SIZES...>;
  int g = threadIdx.x >> 2 & 7, j = threadIdx.x & 3, warp = threadIdx.x >> 5;
  const unsigned short* lines = (const unsigned short*)all_lines + warp * P::OF_WARP;
  const unsigned short* taps = (const unsigned short*)all_taps + warp * (P::NEIGHBOURS * P::WINDOW);
  unsigned a[P::NEIGHBOURS][P::EIGHTS][P::matrices()][4] = {};
  unsigned kept[P::PLANES][P::STEPS][P::NEIGHBOURS][2];
  if constexpr (P::IN_REGISTERS) {
    bool inside = g < P::HEIGHT;
    const unsigned short* line = lines + g * P::LINE + 2 * j * P::PIXEL;
    #pragma unroll
    for (int i = 0; i < P::PLANES; ++i) {
      TVMCONV_LOAD_STEPS(kept[i])
    }
  }
  #pragma unroll P::UNROLLED
  for (int d = P::FIRST; d < P::END; ++d) {
    #pragma unroll
    for (int c = 0; c < P::NEIGHBOURS; ++c) {
      #pragma unroll
      for (int e = P::EIGHTS - 1; e > 0; --e)
        #pragma unroll
        for (int i = 0; i < P::matrices() * 4; ++i) a[c][e][i / 4][i % 4] = a[c][e - 1][i / 4][i % 4];
      const unsigned short* row = taps + c * P::WINDOW + d * P::KERNEL_X;
      bool is_row = d < P::KERNEL_Y;
      load_taps<P>(a[c][0], row, g, j, is_row);
    }
    int y = P::EIGHTS * g + d - P::TOP;
    bool inside = (unsigned)y < (unsigned)P::HEIGHT;
    const unsigned short* line = lines + y * P::LINE + 2 * j * P::PIXEL;
    #pragma unroll
    for (int i = 0; i < P::PLANES; ++i) {
      unsigned b[P::STEPS][P::NEIGHBOURS][2];
      if constexpr (P::IN_REGISTERS) {
        #pragma unroll
        for (int step = 0; step < P::STEPS; ++step)
          if (P::is_read(step))
            #pragma unroll
            for (int k = 0; k < 2 * P::NEIGHBOURS; ++k)  // the last four lanes have zeros
              b[step][k / 2][k % 2] = __shfl_sync(0xffffffffu, kept[i][step][k / 2][k % 2], (inside ? y : 7) * 4 + j);
      } else {
        TVMCONV_LOAD_STEPS(b)
      }
      #pragma unroll
      for (int c = 0; c < P::NEIGHBOURS; ++c)
        #pragma unroll
        for (int e = 0; e < P::EIGHTS; ++e)
          #pragma unroll
          for (int band = 0; band < P::BANDS; ++band)
            #pragma unroll
            for (int step = 0; step < P::STEPS; ++step)
              if (P::reads(step - band))
                mma<Type>(sums + ((i * P::NEIGHBOURS + c) * P::EIGHTS + e) * (P::BANDS * 4) + band * 4,
                          a[c][e][step - band - P::first_behind()], b[step][c]);
    }
  }
  bool finite = true;
  #pragma unroll
  for (int i = 0; i < P::SUMS; ++i) finite &= is_finite(sums[i]);
  if (!finite) compute_planes_again<P>(sums, lines, taps);
  __syncthreads();
}

#undef TVMCONV_LOW
#undef TVMCONV_HIGH
#undef TVMCONV_AT
#undef TVMCONV_LOAD_HALF
#undef TVMCONV_LOAD_STEP
#undef TVMCONV_LOAD_STEPS

// A word of BYTES.
template <int BYTES> struct Word;
template <> struct Word<16> { using Type = uint4; };
template <> struct Word<8> { using Type = uint2; };
template <> struct Word<4> { using Type = unsigned; };
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<1> { using Type = unsigned char; };

// Copy runs of RUN bytes in vectors of VECTOR bytes, each by PIECE bytes at a time from shared memory.
template <int VECTOR, int PIECE, int IMAGES, int RUNS, int RUN, int STAGED_PITCH, int THREADS, int PITCH>
__device__ __forceinline__ void store_vectors(char* output, long long next, const char* staged) {
  using Vector = typename Word<VECTOR>::Type;
  using Piece = typename Word<PIECE>::Type;
  constexpr int VECTORS = RUN / VECTOR;
  for (int i = threadIdx.x; i < IMAGES * RUNS * VECTORS; i += THREADS) {
    int image = i / (RUNS * VECTORS), run = i / VECTORS % RUNS, offset = i % VECTORS * VECTOR;
    const Piece* pieces = (const Piece*)(staged + (i / VECTORS) * STAGED_PITCH + offset);
    Vector value;
    #pragma unroll
    for (int k = 0; k < VECTOR / PIECE; ++k) ((Piece*)&value)[k] = pieces[k];
    *(Vector*)(output + image * next + run * PITCH + offset) = value;
  }
}

// Return the largest power of two, at most `most`, that a number is a multiple of.
__device__ constexpr int power_in(int number, int most) { return number % most ? power_in(number, most / 2) : most; }

// Copy the outputs of IMAGES images, RUNS runs of RUN bytes each, from shared memory to where they lie apart in
// memory: STAGED_PITCH and PITCH bytes from run to run. `following` is the first output of the second image.
//
// Kernels may write into a part of a larger tensor, which tells how far images are apart, and may begin within a
// vector: then each ELEMENT of so many bytes is stored alone.
template <int IMAGES, int RUNS, int RUN, int STAGED_PITCH, int THREADS, int PITCH, int VECTOR, int ELEMENT>
__device__ __forceinline__ void store_runs(void* output, void* following, void* staged) {
  constexpr int PIECE = power_in(STAGED_PITCH, VECTOR);
  long long next = (char*)following - (char*)output;
  __syncthreads();
  if (((unsigned long long)output | (unsigned long long)next) % VECTOR)
    store_vectors<ELEMENT, ELEMENT, IMAGES, RUNS, RUN, STAGED_PITCH, THREADS, PITCH>((char*)output, next,
                                                                                     (const char*)staged);
  else
    store_vectors<VECTOR, PIECE, IMAGES, RUNS, RUN, STAGED_PITCH, THREADS, PITCH>((char*)output, next,
                                                                                  (const char*)staged);
}

}  // namespace tvmconv
