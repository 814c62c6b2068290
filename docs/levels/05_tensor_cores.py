"""Level 5: tensor cores, which multiply matrices in half precision.

The convolution becomes a product of matrices: a row for each pixel of all images, a column for each output channel k,
and terms t, which are taps and input channels. With channels last, (N, H, W, C) and (K, R, S, C), neighbouring terms
are neighbours in memory, and both factors are copied in vectors of 8 numbers:

    columns (p, t)      weights (k, t)          sums (p, k)
    +----+----+--       +----+----+--           +---+---+--    for 16 pixels, 8 channels and 16 terms
    |    |    |     x   |    |    |     -->     |   |   |      one instruction "mma" of a warp
    +----+----+--       +----+----+--           +---+---+--

"columns" is no array in memory: it is made chunk by chunk in shared memory, padding with it, for 64 terms of one tap.

Beside level 4: a warp multiplies, not a thread, and the instruction says which thread has which numbers. So these are
axes of the definition (`product` in common.py): thread (r, q) has 2 neighbouring sums of row r and of row r + 8. The
product of two chunks is made a block (`blockize`), and an annotation names the CUDA function that replaces its loops.
This library tensorizes so; code of TVM's own "mma" intrinsics includes mma.h, which needs the whole CUDA toolkit.

Look at: TVM does not look into the function, so the function itself waits for all threads, before and after. And rows
of a chunk are 72 numbers apart, not 64, so that the 32 words that a warp loads at once lie in 32 banks.
"""

from __future__ import annotations

from common import FLOAT16, SMALL16, THREADS, TILES_M, TILES_N, Level, product
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload
from tvmconv.compute.annotations import PRODUCT
from tvmconv.targets.device_code import expanded, function, included

SOURCE = (
    expanded([included("schedules/cuda/device/mma.cuh")])
    + """
namespace tvmconv {

// Add a warp's product of two chunks, of 64 terms, to a thread's sums. Rows are WORDS words of two numbers apart; the
// addresses are those of row r of the pixels and of row 2q of the channels, for thread (r, q).
template <int TILES_M, int TILES_N, int WORDS>
__device__ __forceinline__ void plain_product(float* sums, const void* pixels, const void* channels) {
  __syncthreads();
  int r = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const unsigned* first = (const unsigned*)pixels + q;
  const unsigned* second = (const unsigned*)channels + (r - 2 * q) * WORDS + q;
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    unsigned a[TILES_M][4], b[TILES_N][2];
    #pragma unroll
    for (int i = 0; i < TILES_M; ++i)
      for (int l = 0; l < 4; ++l) a[i][l] = first[(i * 16 + l % 2 * 8) * WORDS + step * 8 + l / 2 * 4];
    #pragma unroll
    for (int j = 0; j < TILES_N; ++j)
      for (int l = 0; l < 2; ++l) b[j][l] = second[j * 8 * WORDS + step * 8 + l * 4];
    #pragma unroll
    for (int i = 0; i < TILES_M; ++i)
      for (int j = 0; j < TILES_N; ++j) mma<F16>(sums + (i * TILES_N + j) * 4, a[i], b[j]);
  }
  __syncthreads();
}

}  // namespace tvmconv
"""
)


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the product, for pixels in multiples of 128 and channels of 64."""
    sch = Schedule(te.create_prim_func(product(workload)))
    columns, weights, sums, tile = (sch.get_sblock(name) for name in ("columns", "weights", "sums", "tile"))

    # Step 1. Blocks, threads, and what a thread stores: pairs of neighbouring channels
    pt, kt, wm, i, h, r, wn, j, q, e = sch.get_loops(tile)
    sch.reorder(pt, kt, wm, wn, r, q, i, j, h, e)
    sch.bind(sch.fuse(pt, kt), "blockIdx.x")
    thread = sch.fuse(wm, wn, r, q)
    sch.bind(thread, "threadIdx.x")
    for loop in (i, j, h):
        sch.unroll(loop)
    sch.vectorize(e)

    # Step 2. Sum up in registers, chunk by chunk
    sch.compute_at(sums, thread, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    *_, i, j, h, e, chunk, copy, lane = sch.get_loops(sums)
    sch.reorder(chunk, copy, i, j, h, e, lane)

    # Step 3. Copy chunks to shared memory, a vector for each thread at a time; rows begin in different banks
    for stage in (columns, weights):
        sch.set_scope(stage, 0, "shared")
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
        sch.storage_align(stage, 0, axis=-3, factor=64, offset=8)
        *loops, vector = sch.get_loops(stage)[-len(sch.get(stage).iter_vars) :]
        _, copying = sch.split(sch.fuse(*loops), [None, THREADS])
        sch.bind(copying, "threadIdx.x")
        sch.vectorize(vector)

    # Step 4. Name the function
    init = sch.decompose_reduction(sums, chunk)
    for loop in sch.get_loops(init)[-4:]:
        sch.unroll(loop)
    sch.annotate(sch.blockize(copy), PRODUCT, [function("plain_product", TILES_M, TILES_N, 36), SOURCE])
    sch.reverse_compute_inline(sch.get_sblock("output"))
    return sch


LEVEL = Level(5, "tensor cores", FLOAT16, SMALL16, schedule)

if __name__ == "__main__":
    LEVEL.run()
