"""The CUDA functions that multiply two chunks in shared memory on tensor cores.

A chunk is rows of 128 bytes along the reduction, in groups of eight rows, whose eight vectors of 16 bytes are permuted:
vector v of row r of a group lies at place `v ^ r`. That is the 128-byte swizzle of the PTX manual, which `wgmma` reads
by itself and `ldmatrix` without bank conflicts. Each function is called by all threads of a block, each with the
addresses of its own sums and of its own first row, without the permutation: row r of 8 for thread (r, q) of a warp in
the first factor, and row 2q in the second.
"""

from __future__ import annotations

from tvmconv.workload import ConvWorkload

from .tensor_tiles import Config

PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}

MMA_SOURCE = """
__device__ __forceinline__ void {name}(float* sums, void* rows, void* columns) {{
  unsigned lane = threadIdx.x & 31;
  unsigned first_row = (unsigned)__cvta_generic_to_shared(rows) - (lane >> 2) * 128 + (lane & 15) * 128;
  unsigned first_column = (unsigned)__cvta_generic_to_shared(columns) - (lane & 3) * 256
    + (lane & 7) * 128 + (lane >> 4) * 1024;
  #pragma unroll
  for (int step = 0; step < 4; ++step) {{
    unsigned a[{tiles_m}][4], b[{tiles_n}][2];
    unsigned place_a = ((step * 2 + (lane >> 4)) ^ (lane & 7)) << 4;
    unsigned place_b = ((step * 2 + ((lane >> 3) & 1)) ^ (lane & 7)) << 4;
    #pragma unroll
    for (int i = 0; i < {tiles_m}; ++i)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3]) : "r"(first_row + i * 2048 + place_a) : "memory");
    #pragma unroll
    for (int j = 0; j < {tiles_n}; j += 2)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j + 1][0]), "=r"(b[j + 1][1])
        : "r"(first_column + j * 1024 + place_b) : "memory");
    #pragma unroll
    for (int i = 0; i < {tiles_m}; ++i)
      #pragma unroll
      for (int j = 0; j < {tiles_n}; ++j) {{
        float* c = sums + (i * {tiles_n} + j) * 4;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 "
          "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j][0]), "r"(b[j][1]));
      }}
  }}
}}
"""
"""A warp's product. `ldmatrix` loads four matrices of 8 x 8, of which lanes 8i to 8i + 7 give the rows of the i-th."""

WGMMA_SOURCE = """
__device__ __forceinline__ void {name}(float* sums, void* rows, void* columns) {{
  unsigned lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
  unsigned first_row = (unsigned)__cvta_generic_to_shared(rows) - (warp * 16 + (lane >> 2)) * 128;
  unsigned first_column = (unsigned)__cvta_generic_to_shared(columns) - (lane & 3) * 256;
  first_row = __shfl_sync(0xffffffffu, first_row, 0);
  first_column = __shfl_sync(0xffffffffu, first_column, 0);
  // Leading offset 1 (unused), stride of 1024 bytes between groups of eight rows, swizzle of 128 bytes.
  const unsigned long long form = (1ull << 16) | (64ull << 32) | (1ull << 62);
  unsigned long long a = ((first_row >> 4) & 0x3fff) | form, b = ((first_column >> 4) & 0x3fff) | form;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  #pragma unroll
  for (int step = 0; step < 4; ++step)
    #pragma unroll
    for (int i = 0; i < {tiles_m}; ++i) {{
      float* c = sums + i * {registers};
      asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{type}.{type} "
        "{{{places}}}, %{registers}, %{after}, 1, 1, 1, 0, 0;"
        : {outputs} : "l"(a + i * 512 + step * 2), "l"(b + step * 2));
    }}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}
"""
"""The product of a group of four warps, which goes on when the function returns. Descriptors count 16 bytes: two are a
step of the reduction, and 512 are 64 rows."""


def product_function(workload: ConvWorkload, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds the product of two chunks to a thread's sums."""
    tile, ptx_type = config.tile, PTX_TYPES[workload.dtype]
    name = f"tvmconv_{'wgmma' if config.wgmma else 'mma'}_{ptx_type}_{tile.tiles_m}x{tile.tiles_n}"
    if not config.wgmma:
        return name, MMA_SOURCE.format(name=name, type=ptx_type, tiles_m=tile.tiles_m, tiles_n=tile.tiles_n)
    registers = tile.tiles_n * 4
    source = WGMMA_SOURCE.format(
        name=name,
        type=ptx_type,
        tiles_m=tile.tiles_m,
        columns=tile.tiles_n * 8,
        registers=registers,
        after=registers + 1,
        places=", ".join(f"%{place}" for place in range(registers)),
        outputs=", ".join(f'"+f"(c[{place}])' for place in range(registers)),
    )
    return name, source
