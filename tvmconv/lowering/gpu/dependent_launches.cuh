#pragma once

namespace tvmconv {

// Wait for the kernel before, and let the next one come if there are at most `most_blocks` blocks. Source that was
// made for a newer GPU still compiles for an older one, which launches kernels one by one.
__device__ __forceinline__ void after_others(unsigned most_blocks) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (gridDim.x * gridDim.y * gridDim.z <= most_blocks) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tvmconv
