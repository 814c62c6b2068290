#pragma once
#include "schedules/cuda/device/copies.cuh"

namespace tvmconv {

// Wait as `ready` does, for `wgmma`, which reads shared memory by another way, the asynchronous proxy.
__device__ __forceinline__ void ready_for_wgmma(int pending) {
  wait_for_copies(pending);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

// Wait for the product that was begun before the last `pending` ones. That is at most one, which has waited for the
// one before itself.
__device__ __forceinline__ void done(int pending) {
  if (!pending) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

}  // namespace tvmconv
