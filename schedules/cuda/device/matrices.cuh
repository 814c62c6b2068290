#pragma once

namespace tvmconv {

// Return an address in shared memory as the 32 bits that instructions take.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Load COUNT matrices of eight rows of 16 bytes, of which lanes 8i to 8i + 7 give the addresses of the rows of the
// i-th; TRANSPOSED exchanges rows and columns of each on the way to registers.
template <int COUNT, bool TRANSPOSED = false>
__device__ __forceinline__ void load_matrices(unsigned* m, unsigned address) {
#define TVMCONV_LOAD_MATRICES(OPTION)                                                                               \
  if constexpr (COUNT == 1)                                                                                         \
    asm volatile("ldmatrix.sync.aligned.m8n8.x1" OPTION ".shared.b16 {%0}, [%1];"                                   \
      : "=r"(m[0]) : "r"(address) : "memory");                                                                      \
  else if constexpr (COUNT == 2)                                                                                    \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" OPTION ".shared.b16 {%0, %1}, [%2];"                               \
      : "=r"(m[0]), "=r"(m[1]) : "r"(address) : "memory");                                                          \
  else                                                                                                              \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" OPTION ".shared.b16 {%0, %1, %2, %3}, [%4];"                       \
      : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
  if constexpr (TRANSPOSED) {
    TVMCONV_LOAD_MATRICES(".trans")
  } else {
    TVMCONV_LOAD_MATRICES("")
  }
#undef TVMCONV_LOAD_MATRICES
}

// Load 32 bits from shared memory.
__device__ __forceinline__ unsigned load_word(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

}  // namespace tvmconv
