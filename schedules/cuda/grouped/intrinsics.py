"""The CUDA function that multiplies pixels of a group by its weights on tensor cores.

Pixels lie in shared memory as in an image, the channels of each in vectors of 16 bytes. A matrix of tensor cores has as
its rows the vectors of eight neighbouring pixels, under a tap those that lie so many rows and columns further: one
address of each thread, and a constant for each tap. So `ldmatrix` makes the columns of im2col while it loads.

Two groups of four channels have a vector, and a matrix of sums, together. Each has its own product, of the pixels with
zeros in the place of the other group's channels: whatever these are, it comes to no sum of the first one.
"""

from __future__ import annotations

from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.compute.tensor.grouped_tiles import LANES, strip, unit_inputs, unit_outputs
from tvmconv.problem import Problem
from tvmconv.targets.cuda import once

from ..tensor.intrinsics import TYPES
from .tiles import Config, has_pairs, pitch, pixel_bytes, vectors

LOAD = """
__device__ __forceinline__ void tvmconv_load_{what}_x{count}(unsigned* m, unsigned address) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{option}.shared.b16 {{{places}}}, [%{count}];"
    : {outputs} : "r"(address) : "memory");
}}
"""
"""Matrices of eight rows of 16 bytes, of which lanes 8i to 8i + 7 give the addresses of the rows of the i-th."""

MMA = """
__device__ __forceinline__ void tvmconv_mma_k{depth}_{kind}(float* low, float* high, const unsigned* a,
    const unsigned* b) {{
  asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 "
    "{{%0, %1, %2, %3}}, {{{a}}}, {{{b}}}, {{%0, %1, %2, %3}};"
    : "+f"(low[0]), "+f"(low[1]), "+f"(high[0]), "+f"(high[1]) : {inputs});
}}
"""
"""The product of 16 pixels and 8 outputs, over one vector of channels or two."""

STEP = """
__device__ __forceinline__ unsigned {name}_k{depth}_place(int at, int column) {{
  return at + column / {width} * {strip} + column % {width} * {pixel};
}}

__device__ __forceinline__ void {name}_k{depth}(float* sums, float* others, unsigned pixels, unsigned second,
    unsigned weights, int at, int column, int next_at, int next_column) {{
  unsigned lane = threadIdx.x & 31;
  unsigned b[{outputs}][{terms}];
  #pragma unroll
  for (int j = 0; j < {outputs}; ++j) tvmconv_load_matrices_x{terms}(b[j], weights + j * {neighbours});
  #pragma unroll
  for (int k = 0; k < {columns}; ++k) {{
    unsigned one = {name}_k{depth}_place(at, column + k * {step});
    unsigned two = {name}_k{depth}_place(next_at, next_column + k * {step});
    unsigned place = pixels + second * (two - one) + one;
    #pragma unroll
    for (int i = 0; i < {rows}; ++i) {{
      unsigned a[{words}];
      tvmconv_load_matrices_x{words}(a, place + i * {down});
      float* low = sums + (2 * i * {columns} + k) * {own};
      {multiply}
    }}
  }}
}}
"""
"""The products of a thread under one vector of channels of a tap, or of the next one as well.

A vector lies so many bytes behind its line's begin, and in so many a column; matrices have their rows strips apart.
"""

MULTIPLY = """
      #pragma unroll
      for (int j = 0; j < {outputs}; ++j) tvmconv_mma_k{depth}_{kind}(low + j * 2, low + {high} + j * 2, a, b[j]);
"""

MULTIPLY_PAIR = """
      unsigned second[{words}];
      #pragma unroll
      for (int l = 0; l < {words}; ++l) {{
        second[l] = lane & 2 ? a[l] : 0;
        a[l] = lane & 2 ? 0 : a[l];
      }}
      float* other = others + (2 * i * {columns} + k) * 2;
      tvmconv_mma_k{depth}_{kind}(low, low + {high}, a, b[0]);
      tvmconv_mma_k{depth}_{kind}(other, other + {high}, second, b[0]);
"""
"""Lanes whose second bit is 0 hold the first group's channels and sums, the others those of the second one."""

PRODUCT = """
__device__ __forceinline__ void {name}(float* sums, void* own_pixels, void* own_weights) {{
  unsigned lane = threadIdx.x & 31, row = lane & 7;
  unsigned pixels = (unsigned)__cvta_generic_to_shared(own_pixels) - (lane >> 2) * {strip}
    + row * {strip} + ((lane >> 3) & 1) * {step_y};
  unsigned weights = (unsigned)__cvta_generic_to_shared(own_weights) - (lane & 3) * {of_lane}
    + (row >> 1) * {of_lane} + (row & 1) * {column} + ((lane >> 3) & 1) * {vector};
  unsigned second = lane >> 4;
  {begin}
  {steps}
  {end}
}}
"""

OTHERS = """
  float others[{count}];
  #pragma unroll
  for (int i = 0; i < {count}; ++i) others[i] = sums[i];
"""

CHOOSE = """
  #pragma unroll
  for (int i = 0; i < {count}; ++i) sums[i] = lane & 2 ? others[i] : sums[i];
"""


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a group's products to a thread's sums."""
    workload, kind = problem.workload, TYPES[problem.workload.dtype].name
    channels, outputs = unit_inputs(workload), unit_outputs(workload) // 8
    pixel, whole, row = pixel_bytes(workload, config)
    (sh, sw), (dh, dw), (kernel_y, kernel_x) = workload.stride, workload.dilation, workload.kernel
    places = [
        f"{r * dh * row + vector * COPY_BYTES}, {s * dw}"
        for r in range(kernel_y)
        for s in range(kernel_x)
        for vector in range(channels // LANES)
    ]
    count = config.rows * config.columns * 4 * outputs
    sizes = config.rows, config.columns, outputs, pixel, whole, row
    shape = *sizes, *workload.kernel, *workload.stride, *workload.dilation, workload.w_shape[1], kind
    name = f"tvmconv_groups_{'x'.join(map(str, shape))}"
    pairs, column = has_pairs(workload), pitch(vectors(workload))
    steps, functions = [], ""
    for depth, terms in ((16, 2), (8, 1)):
        multiply = (MULTIPLY_PAIR if pairs else MULTIPLY).format(
            depth=depth,
            kind=kind,
            outputs=outputs,
            high=2 * outputs * config.columns,
            columns=config.columns,
            words=2 * terms,
        )
        functions += STEP.format(
            name=name,
            depth=depth,
            terms=terms,
            words=2 * terms,
            outputs=outputs,
            own=2 * outputs,
            neighbours=2 * column,
            rows=config.rows,
            columns=config.columns,
            down=2 * sh * row,
            step=sw,
            width=strip(workload, config.block_x),
            strip=whole,
            pixel=pixel,
            multiply=multiply,
        )
    others = "others" if pairs else "sums"
    for first in range(0, len(places), 2):
        one, two = places[first], places[min(first + 1, len(places) - 1)]
        depth = 16 if first + 1 < len(places) else 8
        at = f"pixels, second, weights + {first * COPY_BYTES}, {one}, {two}"
        steps.append(f"{name}_k{depth}(sums, {others}, {at});")
    source = single_instructions(kind) + functions
    source += PRODUCT.format(
        name=name,
        strip=whole,
        step_y=sh * row,
        of_lane=2 * outputs * column,
        column=column,
        vector=COPY_BYTES,
        steps="\n  ".join(steps),
        begin=OTHERS.format(count=count) if pairs else "",
        end=CHOOSE.format(count=count) if pairs else "",
    )
    return name, once(name, source)


def load_functions(transposed: bool = False) -> str:
    """Return the functions that load matrices, or these transposed, which a module has once."""
    source, what = "", "transposed" if transposed else "matrices"
    for count in (1, 2, 4):
        places = ", ".join(f"%{place}" for place in range(count))
        outputs = ", ".join(f'"=r"(m[{place}])' for place in range(count))
        option = ".trans" if transposed else ""
        source += LOAD.format(what=what, option=option, count=count, places=places, outputs=outputs)
    return once(f"tvmconv_loads_of_{what}", source)


def single_instructions(kind: str) -> str:
    """Return the functions of single instructions, which a module has once."""
    source = load_functions()
    for depth, terms in ((16, 2), (8, 1)):
        a = ", ".join(f"%{4 + place}" for place in range(2 * terms))
        b = ", ".join(f"%{4 + 2 * terms + place}" for place in range(terms))
        inputs = [f'"r"(a[{place}])' for place in range(2 * terms)] + [f'"r"(b[{place}])' for place in range(terms)]
        one = MMA.format(depth=depth, kind=kind, a=a, b=b, inputs=", ".join(inputs))
        source += once(f"tvmconv_mma_k{depth}_{kind}", one)
    return source
