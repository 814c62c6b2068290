"""The CUDA function that multiplies rows of taps by columns of the input on tensor cores.

The first factor has the outputs of a band as rows, even ones first, and the columns of the input as terms. A row of
taps lies along its diagonals, so that each row has the same taps, among zeros, two columns further left. It is the same
for all bands. The second factor has a column for each of eight rows of outputs; `ldmatrix` loads it from the lines.

Products in float32 are those of TF32 numbers, as `tensor_intrinsics` has them: of three, the sums of a row of taps are
added to the others by the float32 units.

Zeros of a band are multiplied with what the input has there. Sums that are not finite are computed once more, from
their own terms alone.
"""

from __future__ import annotations

from tvmconv.compute.depthwise.bands import (
    BAND,
    BEFORE,
    EIGHT,
    STEP_BYTES,
    VECTOR_BYTES,
    in_planes,
    lines_read,
    reach,
    surplus,
)
from tvmconv.problem import Problem
from tvmconv.targets.cuda import once

from ..grouped.intrinsics import load_functions
from ..tensor.intrinsics import MMA, ROUND, TYPES, rest_functions, three_products
from ..tensor.tiles import tf32_products
from .tiles import Config, line_bytes, plane_bytes, products, taps_bytes

WORD = """
__device__ __forceinline__ unsigned tvmconv_load_word(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
"""

WIDEN = {
    "f16": """
__device__ __forceinline__ float tvmconv_widened_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
""",
    "bf16": """
__device__ __forceinline__ float tvmconv_widened_bf16(unsigned short bits) {
  return __uint_as_float((unsigned)bits << 16);
}
""",
    "tf32": """
__device__ __forceinline__ float tvmconv_widened_tf32(float value) { return value; }
""",
}

FINITE = """
__device__ __forceinline__ bool tvmconv_is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}
"""

ANEW = """
__device__ __forceinline__ void {name}_anew(float* sums, const {type}* lines, const {type}* taps, int y) {{
  #pragma unroll 1
  for (int i = 0; i < {sums}; ++i) {{
    int row = y + (threadIdx.x & 3) * 2 + (i & 1) - {first_row}, odd = i >> 1 & 1;
    int column = i % {of_image} / 4 * {band} + (threadIdx.x >> 2 & 7) * 2 + odd;
    const {type}* pixel = lines + i / {of_image} * {image} + column + {surplus} - {first_column};
    const {type}* tap = taps + odd * {copy} + {before} + odd + {surplus};
    float sum = 0.0f;
    #pragma unroll 1
    for (int r = max(0, -row); r < min({kernel_y}, {rows} - row); ++r)
      #pragma unroll 1
      for (int s = 0; s < {kernel_x}; ++s)
        if ((unsigned)(column + {surplus} - {first_column} + s) < {columns}u)
          sum += tvmconv_widened_{kind}(pixel[(row + r) * {line} + s])
            * tvmconv_widened_{kind}(tap[r * {taps_row} + s]);
    #pragma unroll
    for (int j = 0; j < {sums}; ++j) sums[j] = j != i || tvmconv_is_finite(sums[j]) ? sums[j] : sum;
  }}
}}
"""
"""Sums in the place of those that are not finite, in a loop over all of them, whose numbers are constants there."""

PRODUCT = """
__device__ __forceinline__ void {name}(float* sums, void* lines, void* taps) {{
  unsigned lane = threadIdx.x & 31;
  int y = (int)(threadIdx.x >> 5) % {warps_y} * {eight};
  unsigned line = (unsigned)__cvta_generic_to_shared(lines) + (y + (int)(lane & 7) - {first_row}) * {line}
    + (lane >> 3) * {vector};
  unsigned tap = (unsigned)__cvta_generic_to_shared(taps) + {before} - (lane >> 2) * {two} + (lane & 3) * 4;
  {span}
  #pragma unroll 1
  for (int r = first; r < last; ++r) {{
    {load_taps}
    #pragma unroll
    for (int i = 0; i < {images}; ++i) {{
      unsigned place = line + r * {line} + i * {image};
      float* all = sums + i * {of_image};
      {multiply}
    }}
  }}
  bool finite = true;
  #pragma unroll
  for (int i = 0; i < {sums}; ++i) finite &= tvmconv_is_finite(sums[i]);
  if (!finite) {name}_anew(sums, (const {type}*)lines, (const {type}*)taps, y);
}}
"""

ALL_ROWS = "int first = 0, last = {kernel_y};"

OWN_ROWS = "int first = max(0, {top} - {eight} + 1 - y), last = min({kernel_y}, {top} + {height} - y);"
"""The rows of taps under which a warp reads more than padding."""


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    workload, parts = in_planes(problem.workload), tf32_products(problem)
    kind, itemsize = TYPES[workload.dtype].name, workload.itemsize
    line, row = line_bytes(workload, config), taps_bytes(workload)
    image = config.channels * plane_bytes(workload, config)
    rows, columns = lines_read(workload, config.tile)
    common = {
        "kind": kind,
        "type": "float" if parts else "unsigned short",
        "sums": config.sums,
        "of_image": config.block_x // 4,
        "eight": EIGHT,
        "first_row": rows[0],
        "kernel_y": workload.kernel[0],
    }
    own_rows = config.block_y >= workload.output_size[0]
    span = (OWN_ROWS if own_rows else ALL_ROWS).format(**common, top=workload.padding[0], height=workload.height)
    shape = config.images, config.block_x // BAND, config.warps_y, line, image, row
    read = rows[0], len(rows), columns[0], len(columns)
    ends = (workload.padding[0], workload.height) if own_rows else ()
    numbers = *shape, *workload.kernel, reach(workload), surplus(workload), *read, *ends
    name = f"tvmconv_bands_{'x'.join(map(str, numbers))}_{kind}{f'x{parts}' if parts else ''}"
    anew = ANEW.format(
        **common,
        name=name,
        image=image // itemsize,
        line=line // itemsize,
        band=BAND,
        surplus=surplus(workload),
        before=BEFORE,
        kernel_x=workload.kernel[1],
        taps_row=row // itemsize,
        copy=row // itemsize // 2,
        rows=len(rows),
        columns=len(columns),
        first_column=columns[0],
    )
    pairs = products(workload, config)
    source = PRODUCT.format(
        **common,
        name=name,
        warps_y=config.warps_y,
        line=line,
        image=image,
        vector=VECTOR_BYTES,
        before=BEFORE * itemsize,
        two=2 * itemsize,
        span=span,
        images=config.images,
        load_taps=_load_taps(pairs, row, parts),
        multiply=_multiply(pairs, kind, parts, config),
    )
    shared = load_functions() + once(f"tvmconv_mma_{kind}", MMA.format(**TYPES[workload.dtype]._asdict()))
    shared += once("tvmconv_load_word", WORD) + once(f"tvmconv_widened_{kind}", WIDEN[kind])
    shared += once("tvmconv_is_finite", FINITE)
    if parts == 1:
        shared += once("tvmconv_round", ROUND)
    elif parts:
        shared += rest_functions()
    return name, once(name, shared + anew + source)


def _load_taps(pairs: list[tuple[int, int, int]], row: int, parts: int) -> str:
    """Return the code that loads the first factors under a row of taps, one for each step of columns."""
    code = ""
    for step in sorted({step for _, step, _ in pairs}):
        code += f"unsigned a{step}[4]{f', a{step}_rest[4]' if parts > 1 else ''};\n"
        for register in range(4):  # of even outputs and odd ones, and of the first half of the columns and the second
            offset = step * STEP_BYTES + register // 2 * VECTOR_BYTES + register % 2 * row // 2
            code += f"    a{step}[{register}] = tvmconv_load_word(tap + r * {row} + {offset});\n"
            place = f"[{register}] = "
            if parts == 1:
                code += f"    a{step}{place}tvmconv_to_tf32(a{step}[{register}]);\n"
            elif parts:
                code += f"    a{step}_rest{place}tvmconv_rest_of_nearest(a{step}[{register}]);\n"
                code += f"    a{step}{place}tvmconv_nearest_finite(a{step}[{register}]);\n"
        code += "    "
    return code


def _multiply(pairs: list[tuple[int, int, int]], kind: str, parts: int, config: Config) -> str:
    """Return the code that loads columns, of two steps at a time, and multiplies each by all bands that have them."""
    own, count = "all" if parts < 2 else "own", config.block_x // 4
    code = f"float own[{count}] = {{}};\n      " if parts > 1 else ""
    blocks = sorted({block for *_, block in pairs})
    for first in range(0, len(blocks), 2):
        some = blocks[first : first + 2]
        words = 2 * len(some)
        code += f"unsigned b{first}[{words}]{f', b{first}_rest[{words}]' if parts > 1 else ''};\n"
        code += f"      tvmconv_load_matrices_x{words}(b{first}, place + {some[0] * STEP_BYTES});\n"
        for word in range(words if parts else 0):
            place, function = (f"b{first}", "to_tf32") if parts == 1 else (f"b{first}_rest", "rest")
            code += f"      {place}[{word}] = tvmconv_{function}(b{first}[{word}]);\n"
        for number, block in enumerate(some):
            for band, step, of_band in pairs:
                if of_band != block:
                    continue
                factors = f"a{step}", f"b{first}"
                for a, b in three_products(*factors) if parts > 1 else [factors]:
                    code += f"      tvmconv_mma_{kind}({own} + {band * 4}, {a}, {b} + {2 * number});\n"
        code += "      "
    if parts > 1:
        code += f"#pragma unroll\n      for (int j = 0; j < {count}; ++j) all[j] += own[j];\n"
    return code
