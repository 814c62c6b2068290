#pragma once

namespace tvmconv {

// Begin an asynchronous copy of BYTES, 16, 8 or 4, to shared memory, or of none: then zeros are stored, and nothing is
// read. Only whole vectors leave out the L1 cache.
template <int BYTES>
__device__ __forceinline__ void copy(void* shared, const void* global, int inside) {
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(address), "l"(global), "r"(inside ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;"
      :: "r"(address), "l"(global), "r"(inside ? BYTES : 0), "n"(BYTES) : "memory");
}

// End the copies of a chunk.
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `pending` chunks of a thread's copies are on their way.
__device__ __forceinline__ void wait_for_copies(int pending) {
  switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 6;" ::: "memory");
  }
}

// Wait until the chunk that was copied `pending` chunks before the last one is in shared memory, for all threads.
__device__ __forceinline__ void ready(int pending) {
  wait_for_copies(pending);
  __syncthreads();
}

__device__ __forceinline__ void barrier() { __syncthreads(); }

}  // namespace tvmconv
