"""The CUDA function that multiplies windows of few channels by weights on tensor cores.

Pixels lie in shared memory as in an image, with their channels side by side, so that what a row of a window reads is
contiguous: a thread loads two terms of a pixel at once, from an address of its own and a place of the terms that all
pixels share. Neighbouring pixels read neighbouring words. A word may hold a term past the end of a row, of another
pixel, and nothing is copied to the places of weights past the last term; whatever is there, it counts as zero.
"""

from __future__ import annotations

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.shallow_tiles import EIGHT, STEP, pixel_channels, row_terms, steps
from tvmconv.problem import Problem
from tvmconv.targets.cuda import once

from ..grouped.intrinsics import single_instructions
from ..tensor.intrinsics import TYPES
from .tiles import Config, line_bytes, weight_pitch

LOAD_PAIR = """
__device__ __forceinline__ unsigned tvmconv_load_pair(unsigned address) {
  unsigned pair;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(address) : "memory");
  return pair;
}
"""

PRODUCT = """
__device__ __forceinline__ void {name}_go_on(unsigned& place, int& column) {{
  place += {rows_on} * {line} + {terms_on} * 2;
  column += {terms_on};
  if (column >= {row}) {{
    column -= {row};
    place += {line} - {row} * 2;
  }}
}}

__device__ __forceinline__ unsigned {name}_inside(int term) {{
  return term < {terms} ? 0xffffffff : 0;
}}

__device__ __forceinline__ unsigned {name}_mask(int term, int column) {{
  return {odd} && column == {row} - 2 ? 0xffff & {name}_inside(term) : {name}_inside(term);
}}

__device__ __forceinline__ void {name}(float* sums, void* all_pixels, void* all_weights) {{
  unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  unsigned pixels = (unsigned)__cvta_generic_to_shared(all_pixels) + warp / {warps} * {of_warp}
    + (lane >> 2) * {of_lane};
  unsigned weights = (unsigned)__cvta_generic_to_shared(all_weights)
    + (warp % {warps} * {of_outputs} + (lane & 7)) * {output} + ((lane >> 3) & 1) * {vector};
  int low_term = (lane & 3) * 2, high_term = low_term + 8;
  int column_one = low_term % {row}, column_two = high_term % {row};
  unsigned place_one = low_term / {row} * {line} + column_one * 2;
  unsigned place_two = high_term / {row} * {line} + column_two * 2;
  #pragma unroll
  for (int step = 0; step < {steps}; ++step) {{
    int first = step * {depth} + low_term, second = step * {depth} + high_term;
    unsigned b[{outputs}][2];
    #pragma unroll
    for (int j = 0; j < {outputs}; ++j) {{
      tvmconv_load_matrices_x2(b[j], weights + j * {neighbours} + step * {of_step});
      b[j][0] &= {name}_inside(first);
      b[j][1] &= {name}_inside(second);
    }}
    unsigned of_one = {name}_mask(first, column_one), of_two = {name}_mask(second, column_two);
    unsigned one = place_one & {name}_inside(first), two = place_two & {name}_inside(second);
    {name}_go_on(place_one, column_one);
    {name}_go_on(place_two, column_two);
    #pragma unroll
    for (int i = 0; i < {rows}; ++i) {{
      #pragma unroll
      for (int k = 0; k < {columns}; ++k) {{
        unsigned upper = pixels + i * {down} + k * {right}, lower = upper + {below};
        unsigned a[4];
        a[0] = tvmconv_load_pair(upper + one) & of_one;
        a[1] = tvmconv_load_pair(lower + one) & of_one;
        a[2] = tvmconv_load_pair(upper + two) & of_two;
        a[3] = tvmconv_load_pair(lower + two) & of_two;
        float* low = sums + (2 * i * {columns} + k) * {own};
        #pragma unroll
        for (int j = 0; j < {outputs}; ++j) tvmconv_mma_k16_{kind}(low + j * 2, low + {high} + j * 2, a, b[j]);
      }}
    }}
  }}
}}
"""
"""A thread keeps the places of its two pairs of terms, in bytes and in terms of a row, from one step to the next."""


def product_function(problem: Problem, config: Config) -> tuple[str, str, int]:
    """Return the name and the source of the function that adds a tile's products to a thread's sums.

    It gets the addresses of all pixels and weights of a block, whose last three dimensions they are.
    """
    workload, kind = problem.workload, TYPES[problem.workload.dtype].name
    (rows, columns), (sh, sw) = workload.kernel, workload.stride
    channels, row = pixel_channels(workload), row_terms(workload)
    line, pitch = line_bytes(workload, config), weight_pitch(workload)
    outputs = config.outputs // EIGHT
    shape = config.warps_n, config.rows, config.columns, outputs, line, rows, columns, sh, sw, channels
    name = f"tvmconv_shallow_{'x'.join(map(str, shape))}_{kind}"
    source = PRODUCT.format(
        name=name,
        kind=kind,
        terms=rows * row,
        row=row,
        odd=int(columns * channels % 2),
        line=line,
        rows_on=STEP // row,
        terms_on=STEP % row,
        steps=steps(workload),
        depth=STEP,
        of_step=STEP * 2,
        vector=COPY_BYTES,
        output=pitch,
        warps=config.warps_n,
        of_warp=2 * config.rows * sh * line,
        of_lane=config.columns * sw * channels * 2,
        of_outputs=config.outputs,
        neighbours=EIGHT * pitch,
        outputs=outputs,
        own=2 * outputs,
        rows=config.rows,
        columns=config.columns,
        below=sh * line,
        down=2 * sh * line,
        right=sw * channels * 2,
        high=2 * outputs * config.columns,
    )
    shared = single_instructions(kind) + once("tvmconv_load_pair", LOAD_PAIR)
    return name, shared + once(name, source), 3
