#pragma once

namespace tvmconv {

// Load COUNT words, one, two or four, from an address in the shared memory of the cluster's block `rank`, to
// registers. Loads are volatile, so that they stay between barriers, but several may be on their way at once.
template <int COUNT>
__device__ __forceinline__ void fetch(void* registers, const void* shared, int rank) {
  unsigned address, *to = (unsigned*)registers;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
    : "=r"(address) : "r"((unsigned)__cvta_generic_to_shared(shared)), "r"(rank));
  if constexpr (COUNT == 1)
    asm volatile("ld.shared::cluster.b32 {%0}, [%1];" : "=r"(to[0]) : "r"(address));
  else if constexpr (COUNT == 2)
    asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
  else
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
}

// Wait for all threads of a cluster.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace tvmconv
