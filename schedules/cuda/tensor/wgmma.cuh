#pragma once
#include "schedules/cuda/device/matrices.cuh"
#include "schedules/cuda/device/tf32.cuh"
#include "schedules/cuda/tensor/wgmma_instruction.cuh"

// Products of groups of four warps, whose instruction reads factors from shared memory by itself. Chunks are as in
// `mma.cuh`; the last chunk of a tap may have fewer STEPS of 32 bytes, in narrower rows.

namespace tvmconv {

// Return the bytes of a row of a chunk, of those whose vectors the copy engine permutes.
__device__ constexpr int row_bytes(int steps) { return steps > 2 ? 128 : 32 * steps; }

// Return the descriptor of a matrix in shared memory whose rows have ROW_BYTES. The leading offset, 1, is not used;
// the other one is that between groups of eight rows, in units of 16 bytes.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  address = __shfl_sync(0xffffffffu, address, 0);
  unsigned long long eight_rows = ROW_BYTES / 2, permutation = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
  return ((address >> 4) & 0x3fff) | (1ull << 16) | (eight_rows << 32) | (permutation << 62);
}

// A tile of GROUPS groups of four warps, GROUPS_N of them side by side along columns: each has TILES_M instructions of
// 64 rows and 8 * TILES_N columns.
template <int STEPS_, int TILES_M_, int TILES_N_, int GROUPS_, int GROUPS_N_>
struct GroupTile {
  enum : int {
    STEPS = STEPS_, TILES_M = TILES_M_, TILES_N = TILES_N_, GROUPS = GROUPS_, GROUPS_N = GROUPS_N_,
    ROW_BYTES = row_bytes(STEPS), REGISTERS = 4 * TILES_N, COUNT = TILES_M * STEPS,
  };
};

// The addresses of the first row of each factor of a group of four warps.
struct FirstRows { unsigned row, column; };

// Return them, given those of a thread's first rows. Narrow rows follow one another where a chunk of whole ones
// begins.
template <typename Tile>
__device__ __forceinline__ FirstRows first_rows(void* rows, void* columns) {
  unsigned lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
  unsigned first_row = shared_address(rows) - (warp * 16 + (lane >> 2)) * 128;
  unsigned first_column = shared_address(columns) - (lane & 3) * 256;
  if constexpr (Tile::ROW_BYTES < 128) {
    unsigned group = threadIdx.x / 128 % Tile::GROUPS;
    first_row -= group / Tile::GROUPS_N * (Tile::TILES_M * 64) * (128 - Tile::ROW_BYTES);
    first_column -= group % Tile::GROUPS_N * (Tile::TILES_N * 8) * (128 - Tile::ROW_BYTES);
  }
  return {first_row, first_column};
}

// Name sums before a fence, so that zeros are in their registers by then: else, where there is no loop over chunks,
// they would be put there behind it, and `ptxas` would wait for each instruction.
template <int COUNT> __device__ __forceinline__ void name_sums(float* sums) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i]));
}
template <int COUNT> __device__ __forceinline__ void name_sums(int* sums) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(sums[i]));
}

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_product() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most PENDING products are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_product() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// Begin a group's product of two chunks in shared memory, which goes on when the function returns, and wait for the
// one before. Descriptors count 16 bytes: two are a step of the reduction, and four times the bytes of a row are 64
// rows.
template <typename Type, int STEPS, int TILES_M, int TILES_N, int GROUPS, int GROUPS_N>
__device__ __forceinline__ void wgmma_product(typename Type::Sum* sums, void* rows, void* columns) {
  using Tile = GroupTile<STEPS, TILES_M, TILES_N, GROUPS, GROUPS_N>;
  FirstRows first = first_rows<Tile>(rows, columns);
  unsigned long long a = descriptor<Tile::ROW_BYTES>(first.row), b = descriptor<Tile::ROW_BYTES>(first.column);
  name_sums<TILES_M * Tile::REGISTERS>(sums);
  fence();
  #pragma unroll
  for (int step = 0; step < STEPS; ++step)
    #pragma unroll
    for (int i = 0; i < TILES_M; ++i)
      Wgmma<TILES_N * 8>::template multiply<Type>(sums + i * Tile::REGISTERS, a + i * Tile::ROW_BYTES * 4 + step * 2,
                                                  b + step * 2, 1);
  commit_product();
  wait_for_product<1>();
}

// Return the address of the row that a thread of a warp, by its lane, names in a load of the warp's first rows.
template <typename Tile>
__device__ __forceinline__ unsigned row_of(unsigned lane, unsigned first_row) {
  unsigned warp = (threadIdx.x >> 5) & 3;
  return first_row + (warp * 16 + (lane & 15)) * Tile::ROW_BYTES;
}

// Load the rows of a warp in one instruction and one step, in order of `index`, which counts steps and then
// instructions. Of rows in the same banks each has its vectors in an order of its own. The caller finds the lane and
// its row, once: found at each load, `ptxas` orders instructions otherwise, and float32 products took 1.08 times as
// long on an H200.
template <typename Tile>
__device__ __forceinline__ void load_step(unsigned* a, unsigned lane, unsigned row, unsigned index) {
  constexpr int SIZE = Tile::ROW_BYTES;
  unsigned i = index / Tile::STEPS, step = index % Tile::STEPS, permuted = lane / (128 / SIZE) % (SIZE / 16);
  load_matrices<4>(a, row + i * 64 * SIZE + (((step * 2 + (lane >> 4)) ^ permuted) << 4));
}

// Begin the instruction of an index, whose first factor is in registers.
template <typename Tile>
__device__ __forceinline__ void multiply_step(float* sums, const unsigned* a, unsigned long long b, int index,
                                              int add) {
  Wgmma<Tile::TILES_N * 8>::multiply_registers(sums + index / Tile::STEPS * Tile::REGISTERS, a,
                                               b + index % Tile::STEPS * 2, add);
}

// Add a group's product of TF32 numbers, whose first factor goes through registers to be rounded: each step of the
// reduction is read while the one before is multiplied. It is complete when the function returns.
//
// A fence makes the registers of its step known to the instruction, and keeps `ptxas` from waiting for each. Were all
// steps read before the first fence, it would round all of them behind the first instruction.
template <int STEPS, int TILES_M, int TILES_N, int GROUPS, int GROUPS_N>
__device__ __forceinline__ void wgmma_tf32(float* sums, void* rows, void* columns) {
  using Tile = GroupTile<STEPS, TILES_M, TILES_N, GROUPS, GROUPS_N>;
  FirstRows first = first_rows<Tile>(rows, columns);
  unsigned lane = threadIdx.x & 31, row = row_of<Tile>(lane, first.row);
  unsigned long long b = descriptor<Tile::ROW_BYTES>(first.column);
  unsigned a[Tile::COUNT][4];
  load_step<Tile>(a[0], lane, row, 0);
  #pragma unroll
  for (int index = 0; index < Tile::COUNT; ++index) {
    convert<to_tf32, 4>(a[index], a[index]);
    fence();
    multiply_step<Tile>(sums, a[index], b, index, 1);
    if (index + 1 < Tile::COUNT) load_step<Tile>(a[index + 1], lane, row, index + 1);
  }
  commit_product();
  wait_for_product<0>();
}

// Add a group's product in float32, as three products of TF32 numbers: the second factor comes in two parts. The first
// one is taken apart in registers: NEAREST rounds its numbers, which the tensor core cuts off else. It is complete
// when the function returns.
//
// The product with the second factor's rests comes first, which needs no rest of the first one, and the largest comes
// last, so that fewer sums are rounded toward zero where they are large.
template <bool NEAREST, int STEPS, int TILES_M, int TILES_N, int GROUPS, int GROUPS_N>
__device__ __forceinline__ void wgmma_three_products(float* sums, void* rows, void* columns, void* rests) {
  using Tile = GroupTile<STEPS, TILES_M, TILES_N, GROUPS, GROUPS_N>;
  constexpr int COUNT = Tile::COUNT, SUMS = TILES_M * Tile::REGISTERS;
  FirstRows first = first_rows<Tile>(rows, columns);
  unsigned lane = threadIdx.x & 31, row = row_of<Tile>(lane, first.row);
  unsigned long long b = descriptor<Tile::ROW_BYTES>(first.column);
  unsigned long long b_rest = descriptor<Tile::ROW_BYTES>(first.column + (unsigned)((char*)rests - (char*)columns));
  unsigned a[COUNT][4], a_rest[COUNT][4];
  float of_chunk[SUMS];
  load_step<Tile>(a[0], lane, row, 0);
  #pragma unroll
  for (int index = 0; index < COUNT; ++index) {
    if constexpr (NEAREST) {
      convert<rest_of_nearest, 4>(a_rest[index], a[index]);
      convert<nearest_finite, 4>(a[index], a[index]);
    }
    fence();
    multiply_step<Tile>(of_chunk, a[index], b_rest, index, index % STEPS > 0);
    if (index + 1 < COUNT) load_step<Tile>(a[index + 1], lane, row, index + 1);
    if constexpr (!NEAREST) convert<rest, 4>(a_rest[index], a[index]);
  }
  fence();
  #pragma unroll
  for (int index = 0; index < COUNT; ++index) multiply_step<Tile>(of_chunk, a_rest[index], b, index, 1);
  #pragma unroll
  for (int index = 0; index < COUNT; ++index) multiply_step<Tile>(of_chunk, a[index], b, index, 1);
  commit_product();
  wait_for_product<0>();
  #pragma unroll
  for (int i = 0; i < SUMS; ++i) sums[i] += of_chunk[i];
}

// Return a number raised by half a unit of TF32, unless it is infinite or NaN: the first half of `to_tf32`.
__device__ __forceinline__ unsigned raised(unsigned value) {
  return fabsf(__uint_as_float(value)) < __uint_as_float(0x7f800000u) ? value + 0x1000u : value;
}

// Cut off the last bits of a raised number: the second half of `to_tf32`, which stays behind a wait.
__device__ __forceinline__ void cut(unsigned* rounded, unsigned raised) {
  asm volatile("and.b32 %0, %1, 0xffffe000;" : "=r"(*rounded) : "r"(raised));
}

// Begin a group's product of TF32 numbers, whose second factor is rounded already and whose first one goes through
// registers. It goes on when the function returns, and the one before is complete.
//
// It is begun in PARTS, which have registers of their own. A part is read and raised first, then waits for the same
// part of the product before, whose registers it takes, while the other one may go on. On an H100 blocks of 128x128
// took, for 4608 terms, 66.9 us in one part, 61.0 in two and 63.3 in four.
template <int STEPS, int TILES_M, int TILES_N, int GROUPS, int GROUPS_N>
__device__ __forceinline__ void wgmma_rounded(float* sums, void* rows, void* columns) {
  using Tile = GroupTile<STEPS, TILES_M, TILES_N, GROUPS, GROUPS_N>;
  constexpr int PARTS = Tile::COUNT % 2 ? 1 : 2, OF_PART = Tile::COUNT / PARTS;
  FirstRows first = first_rows<Tile>(rows, columns);
  unsigned lane = threadIdx.x & 31, row = row_of<Tile>(lane, first.row);
  unsigned long long b = descriptor<Tile::ROW_BYTES>(first.column);
  unsigned a[Tile::COUNT][4];
  name_sums<TILES_M * Tile::REGISTERS>(sums);
  #pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    unsigned next[OF_PART][4];
    #pragma unroll
    for (int step = 0; step < OF_PART; ++step) load_step<Tile>(next[step], lane, row, part * OF_PART + step);
    convert<raised, OF_PART * 4>(next[0], next[0]);
    wait_for_product<PARTS - 1>();
    #pragma unroll
    for (int step = 0; step < OF_PART; ++step)
      #pragma unroll
      for (int l = 0; l < 4; ++l) cut(&a[part * OF_PART + step][l], next[step][l]);
    fence();
    #pragma unroll
    for (int step = 0; step < OF_PART; ++step)
      multiply_step<Tile>(sums, a[part * OF_PART + step], b, part * OF_PART + step, 1);
    commit_product();
  }
}

// Add zero to sums that are complete, which changes none but a negative zero. Where they are rounded to half precision
// one by one, and nothing else is computed of them, `ptxas` 13.0 would round some before it waits for them, and then
// make products wait for each other.
template <int COUNT>
__device__ __forceinline__ void settle_sums(float* sums, void* rows, void* columns) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("add.f32 %0, %0, 0f00000000;" : "+f"(sums[i]));
}

// Store the results of a warp in half precision, of one instruction with output channels as rows, as rows of pixels of
// ROW_BYTES: COUNT pairs of matrices of eight channels by eight pixels are transposed. Lanes give the addresses of
// eight channels of a pixel each. A thread has pairs of pixels in registers, of the first eight channels and then of
// the others.
template <int COUNT, int ROW_BYTES>
__device__ __forceinline__ void store_matrices(void* tile, const void* registers) {
  unsigned lane = threadIdx.x & 31, first = shared_address(tile);
  first -= (lane & 3) * 2 * ROW_BYTES + (lane >> 2) * 2;
  unsigned row = first + ((lane >> 4) * 8 + (lane & 7)) * ROW_BYTES + (lane >> 3 & 1) * 16;
  const unsigned *pairs = (const unsigned*)registers, *below = pairs + COUNT;
  #pragma unroll
  for (int j = 0; j + 1 < COUNT; j += 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
      :: "r"(row + j * 8 * ROW_BYTES), "r"(pairs[j]), "r"(below[j]), "r"(pairs[j + 1]), "r"(below[j + 1]) : "memory");
  if constexpr (COUNT % 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
      :: "r"(row + (COUNT - 1) * 8 * ROW_BYTES), "r"(pairs[COUNT - 1]), "r"(below[COUNT - 1]) : "memory");
}

}  // namespace tvmconv
