#pragma once

namespace tvmconv {

// Begin an asynchronous copy of a word to shared memory, or store zero if not `inside`. Offsets in bytes are immediate
// operands: left to compilers they become additions of 64 bits, again for each copy.
template <int TO_BYTES, int FROM_BYTES>
__device__ __forceinline__ void copy_word(void* to, const void* from, bool inside) {
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %4, 0; cp.async.ca.shared.global [%0+%1], [%2+%3], 4, p; }"
    :: "r"((unsigned)__cvta_generic_to_shared(to)), "n"(TO_BYTES), "l"(from), "n"(FROM_BYTES), "r"((unsigned)inside)
    : "memory");
}

// End the copies of a chunk.
__device__ __forceinline__ void commit_words() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING chunks of a thread's copies are on their way.
template <int PENDING>
__device__ __forceinline__ void wait_for_words() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

}  // namespace tvmconv
