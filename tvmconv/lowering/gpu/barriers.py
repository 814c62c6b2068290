"""The CUDA functions of blocks whose warps have roles: barriers of the slots of a ring, of which each slot has two.

One completes when the slot is full: the bytes that were announced have come. The other one completes when it is empty
again: each warp that multiplies has said so. A barrier tells one turn of its slot from the next by a single bit, its
parity, so that nobody may wait for more than the turn that comes next.

Source: PTX ISA, sections on mbarrier, cp.async.bulk.tensor and setmaxnreg.
"""

from __future__ import annotations

BARRIERS = """
#ifndef TVMCONV_BARRIERS
#define TVMCONV_BARRIERS
__device__ __forceinline__ unsigned tvmconv_full(void* barriers, int slot) {
  return (unsigned)__cvta_generic_to_shared(barriers) + slot * 16;
}
__device__ __forceinline__ unsigned tvmconv_empty(void* barriers, int slot) { return tvmconv_full(barriers, slot) + 8; }
__device__ __forceinline__ unsigned tvmconv_turn_of(void* barriers, int slots, int team) {
  return tvmconv_full(barriers, slots) + team * 8;
}
__device__ __forceinline__ void tvmconv_wait_for(unsigned barrier, int parity) {
  unsigned done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}
#endif
"""

BEGIN = f"""{BARRIERS}
__device__ __forceinline__ void tvmconv_begin(void* barriers, int slots, int teams, int threads) {{
  if (threadIdx.x == 0) {{
    for (int slot = 0; slot < slots; ++slot) {{
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(tvmconv_full(barriers, slot)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
        :: "r"(tvmconv_empty(barriers, slot)), "r"(threads / 32) : "memory");
    }}
    for (int team = 0; team < teams; ++team)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
        :: "r"(tvmconv_turn_of(barriers, slots, team)), "r"(threads / 32) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  __syncthreads();
}}
"""
"""The beginning of a block, in which so many threads are a team, which multiplies a tile."""

COPIES = """
__device__ __forceinline__ void tvmconv_copies_{registers}() {{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 {registers};");
}}
"""

MULTIPLIES = """
__device__ __forceinline__ void tvmconv_multiplies_{registers}() {{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 {registers};");
}}
"""

ACQUIRE = f"""{BARRIERS}
__device__ __forceinline__ void tvmconv_acquire(void* barriers, int slot, int turn, int bytes) {{
  tvmconv_wait_for(tvmconv_empty(barriers, slot), (turn & 1) ^ 1);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    :: "r"(tvmconv_full(barriers, slot)), "r"(bytes) : "memory");
}}
"""
"""A slot is empty, which it is from the start in its first turn, and so many bytes are to come."""

BULK_COPY = f"""{BARRIERS}
#if defined(__CUDACC_RTC__) && !defined(TVMCONV_TENSOR_MAP)
#define TVMCONV_TENSOR_MAP
struct alignas(64) CUtensorMap {{ unsigned long long opaque[16]; }};
#endif
__device__ __forceinline__ void tvmconv_bulk_copy(void* shared, void* barriers, int slot, unsigned long long map,
    int channel, int column, int row, int image, int tap_column, int tap_row) {{
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[%0], [%1, {{%2, %3, %4, %5}}], [%6], {{%7, %8}};"
    :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(map), "r"(channel), "r"(column), "r"(row), "r"(image),
       "r"(tvmconv_full(barriers, slot)), "h"((unsigned short)tap_column), "h"((unsigned short)tap_row) : "memory");
}}
"""
"""A chunk of consecutive pixels under a tap is on its way to a slot, with zeros where an image ends.

The pixels begin at the one whose window has its corner at this column and row.
"""

ARRIVED = f"""{BARRIERS}
__device__ __forceinline__ void tvmconv_arrived(void* barriers, int slot, int turn) {{
  tvmconv_wait_for(tvmconv_full(barriers, slot), turn & 1);
}}
"""
"""A slot is full."""

TEAM = """
__device__ __forceinline__ int tvmconv_team(int threads) { return __shfl_sync(0xffffffffu, threadIdx.x / threads, 0); }
"""
"""The number of a thread's team, in a way that tells the compiler that all threads of a warp are of one."""

TURN = f"""{BARRIERS}
__device__ __forceinline__ void tvmconv_turn(void* barriers, int slots, int team, int tile) {{
  tvmconv_wait_for(tvmconv_turn_of(barriers, slots, team), (tile & 1) ^ 1 ^ team);
}}
"""
"""The other team has waited for all chunks of the tile before, so that this one waits for the turns that come next."""

NEXT = f"""{BARRIERS}
__device__ __forceinline__ void tvmconv_next(void* barriers, int slots, int team) {{
  __syncwarp();
  if ((threadIdx.x & 31) == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
      :: "r"(tvmconv_turn_of(barriers, slots, team ^ 1)) : "memory");
}}
"""
"""It is the other team's turn."""

RELEASE = f"""{BARRIERS}
__device__ __forceinline__ void tvmconv_release(void* barriers, int slot, int pending, int used) {{
  if (!pending) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (used && (threadIdx.x & 31) == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(tvmconv_empty(barriers, slot)) : "memory");
}}
"""
"""The product that was begun before the last `pending` ones is complete, and its slot empty if it used one.

That is at most one, which has waited for the one before itself."""

TEAM_BARRIER = """
__device__ __forceinline__ void tvmconv_team_barrier(int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(1 + threadIdx.x / threads), "r"(threads) : "memory");
}
"""
"""The barrier of a team; that of number 0 is the block's."""

KEEP = """
__device__ __forceinline__ void tvmconv_keep(void* memory) {}
"""
"""Memory that is named at the beginning and at the end of a block has a place of its own: TVM gives two memories one
place where a thread uses one after the other, but roles use them at the same time."""
