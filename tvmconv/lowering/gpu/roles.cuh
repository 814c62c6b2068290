#pragma once

// Functions of blocks whose warps have roles: barriers of the slots of a ring, of which each slot has two. One
// completes when the slot is full: the bytes that were announced have come. The other one completes when it is empty
// again: each warp that multiplies has said so. A barrier tells one turn of its slot from the next by a single bit,
// its parity, so that nobody may wait for more than the turn that comes next. Behind them each team has a barrier for
// its turns.
//
// Source: PTX ISA, sections on mbarrier, cp.async.bulk.tensor and setmaxnreg.

#if defined(__CUDACC_RTC__) && !defined(TVMCONV_TENSOR_MAP)
#define TVMCONV_TENSOR_MAP
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
#endif

namespace tvmconv {

// Return the address of the barrier that completes when a slot is full.
__device__ __forceinline__ unsigned full(void* barriers, int slot) {
  return (unsigned)__cvta_generic_to_shared(barriers) + slot * 16;
}

// Return the address of the barrier that completes when a slot is empty.
__device__ __forceinline__ unsigned empty(void* barriers, int slot) { return full(barriers, slot) + 8; }

// Return the address of the barrier of a team's turn.
__device__ __forceinline__ unsigned turn_of(void* barriers, int slots, int team) {
  return full(barriers, slots) + team * 8;
}

// Arrive at a barrier.
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Wait until the phase of a barrier with this parity is complete.
__device__ __forceinline__ void wait_for(unsigned barrier, int parity) {
  unsigned done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}

// Begin a block, in which `threads` threads are a team, which multiplies a tile.
__device__ __forceinline__ void begin(void* barriers, int slots, int teams, int threads) {
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < slots; ++slot) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full(barriers, slot)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
        :: "r"(empty(barriers, slot)), "r"(threads / 32) : "memory");
    }
    for (int team = 0; team < teams; ++team)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
        :: "r"(turn_of(barriers, slots, team)), "r"(threads / 32) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

// Give up registers, so that each thread of the four warps that copy has REGISTERS.
template <int REGISTERS> __device__ __forceinline__ void copies() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

// Take registers, so that each thread of four warps that multiply has REGISTERS.
template <int REGISTERS> __device__ __forceinline__ void multiplies() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

// Wait until a slot is empty, which it is from the start in its first turn, and announce bytes.
__device__ __forceinline__ void acquire(void* barriers, int slot, int turn, int bytes) {
  wait_for(empty(barriers, slot), (turn & 1) ^ 1);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    :: "r"(full(barriers, slot)), "r"(bytes) : "memory");
}

// Begin the copy to a slot of a chunk of consecutive pixels under a tap, with zeros where an image ends. The pixels
// begin at the one whose window has its corner at this column and row.
__device__ __forceinline__ void bulk_copy(void* shared, void* barriers, int slot, unsigned long long map, int channel,
    int column, int row, int image, int tap_column, int tap_row) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
    :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(map), "r"(channel), "r"(column), "r"(row), "r"(image),
       "r"(full(barriers, slot)), "h"((unsigned short)tap_column), "h"((unsigned short)tap_row) : "memory");
}

// Wait until a slot is full.
__device__ __forceinline__ void arrived(void* barriers, int slot, int turn) {
  wait_for(full(barriers, slot), turn & 1);
}

// Return the number of a thread's team, in a way that tells the compiler that all threads of a warp are of one.
__device__ __forceinline__ int team(int threads) { return __shfl_sync(0xffffffffu, threadIdx.x / threads, 0); }

// Wait until the other team has waited for all chunks of the tile before, so that this one waits for the turns that
// come next.
__device__ __forceinline__ void turn(void* barriers, int slots, int team, int tile) {
  wait_for(turn_of(barriers, slots, team), (tile & 1) ^ 1 ^ team);
}

// Arrive at the barrier that the other team waits at.
__device__ __forceinline__ void next(void* barriers, int slots, int team) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(turn_of(barriers, slots, team ^ 1));
}

// Wait for the product that was begun before the last `pending` ones, and tell that its slot is empty if it used one.
// That product is at most one, which has waited for the one before itself.
__device__ __forceinline__ void release(void* barriers, int slot, int pending, int used) {
  if (!pending) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (used && (threadIdx.x & 31) == 0) arrive(empty(barriers, slot));
}

// Wait for all threads of a team; barrier 0 is the block's.
__device__ __forceinline__ void team_barrier(int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(1 + threadIdx.x / threads), "r"(threads) : "memory");
}

// Name memory at the beginning and at the end of a block, so that it shares its address with no other: TVM gives two
// memories one address where a thread uses one after the other, but roles use them at the same time.
__device__ __forceinline__ void keep(void* memory) {}

}  // namespace tvmconv
