"""The CUDA function that multiplies rows of x by rows of dy on tensor cores, for their gradient's diagonals.

Rows of images are the terms of the product: of eight rows of two images an instruction has all terms. `ldmatrix` loads
them transposed, so that columns of x become the rows of the first factor, and columns of dy the columns of the second.
Under another row of taps x begins so many rows further, and dy is the same.

A product in float32 is three products of TF32 numbers, as `tensor_intrinsics` has them, of eight rows of one image.
There threads load their elements one by one, and the sums of an image are added to the others by the float32 units.
"""

from __future__ import annotations

from itertools import product

from tvmconv.compute.depthwise.bands import EIGHT, VECTOR_BYTES
from tvmconv.compute.gradients.weight_diagonals import TILE, DiagonalTiles, columns_there, diagonals, products
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.cuda import once

from ..depthwise_bands.intrinsics import WORD
from ..grouped.intrinsics import load_functions
from ..tensor.intrinsics import MMA, TYPES, rest_functions, three_products
from .diagonals_tiles import line_bytes, of_three_products

FEW = 4
"""The most products of a row of taps that are few."""

PRODUCT = """
__device__ __forceinline__ void {name}(float* sums, void* lines, void* given) {{
  unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned low = lane & 7, middle = lane >> 3 & 1, high = lane >> 4, own = warp / {groups} * {own_images};
  int first = warp % {groups} * {block_r};
  unsigned line = (unsigned)__cvta_generic_to_shared(lines) + own * {x_image};
  unsigned lines_of_two = line + middle * {vector} + high * {x_image}, lines_of_one = line + middle * {x_image};
  unsigned of_dy = (unsigned)__cvta_generic_to_shared(given) + own * {dy_image} + low * {dy_line}
    + middle * {dy_image} + high * {vector};
  #pragma unroll 1
  for (int step = 0; step < {steps}; ++step) {{
    int pair = step / {eights}, y = step % {eights} * {eight};
    unsigned place = of_dy + pair * {dy_pair} + y * {dy_line};
    {load_dy}
    #pragma unroll
    for (int r = 0; r < {block_r}; ++r) {{
      int row = y + first + r - {first_line};
      {test}{{
        unsigned offset = pair * {x_pair} + {line} * {x_line};
        float* own_sums = sums + r * {of_row};
        {multiply}
      }}
    }}
  }}
}}
"""

PRODUCT_IN_FLOAT32 = """
__device__ __forceinline__ void {name}(float* sums, void* lines, void* given) {{
  unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, low = lane & 3, own = warp / {groups} * {own_images};
  int first = warp % {groups} * {block_r};
  unsigned line = (unsigned)__cvta_generic_to_shared(lines) + own * {x_image} + (lane >> 2) * 4;
  unsigned of_dy = (unsigned)__cvta_generic_to_shared(given) + own * {dy_image} + low * {dy_line} + (lane >> 2) * 4;
  #pragma unroll
  for (int r = 0; r < {block_r}; ++r) {{
    #pragma unroll 1
    for (int image = 0; image < {own_images}; ++image) {{
      float own_sums[{of_row}];
      #pragma unroll
      for (int i = 0; i < {of_row}; ++i) own_sums[i] = 0.0f;
      #pragma unroll 1
      for (int y = 0; y < {rows}; y += {eight}) {{
        int row = y + first + r - {first_line};
        {test}{{
          unsigned place = of_dy + image * {dy_image} + y * {dy_line};
          {load_dy}
          unsigned upper = line + image * {x_image} + {line} * {x_line};
          row += 4;
          unsigned lower = line + image * {x_image} + {line} * {x_line};
          {multiply}
        }}
      }}
      #pragma unroll
      for (int i = 0; i < {of_row}; ++i) sums[r * {of_row} + i] += own_sums[i];
    }}
  }}
}}
"""


def product_function(workload: ConvWorkload, tiles: DiagonalTiles) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    kind, lines, found = TYPES[workload.dtype].name, tiles.lines(workload), diagonals(workload)
    x_line, dy_line = (line_bytes(width, workload.itemsize) for width in (workload.width, workload.output_size[1]))
    x_image, dy_image = lines * x_line, tiles.rows * dy_line
    first, of_lane, tests, whole = 0, "(row + low)", [], tiles.bands(workload) == 1
    # Beyond the last row of taps there is nothing to load, but of whole planes zeros, which are cheaper than a test of
    # few products.
    if tiles.groups * tiles.block_r > workload.kernel[0] and not (whole and len(products(workload)) <= FEW):
        tests.append(f"first + r < {workload.kernel[0]}")
    if whole:
        # A row below zero is a large number, too.
        first, of_lane = workload.padding[0], f"min((unsigned)row + low, {workload.height}u)"
        if first >= EIGHT or tiles.rows + workload.kernel[0] - 1 - first >= workload.height + EIGHT:
            tests.append(f"row > -{EIGHT} && row < {workload.height}")
    shape = tiles.block_r, tiles.groups, tiles.pairs, tiles.rows, x_line, x_image, dy_line, dy_image
    columns = workload.width, workload.output_size[1], workload.kernel[1], workload.padding[1]
    numbers = *shape, workload.kernel[0], first, lines, -found[0], len(found), *columns
    in_float32, eights = of_three_products(workload), columns_there(workload.output_size[1]) // EIGHT
    name = f"tvmconv_diagonals_{'x'.join(map(str, numbers))}_{kind}{'x3' if in_float32 else ''}"
    source = (PRODUCT_IN_FLOAT32 if in_float32 else PRODUCT).format(
        name=name,
        groups=tiles.groups,
        own_images=2 * tiles.pairs,
        block_r=tiles.block_r,
        x_image=x_image,
        x_line=x_line,
        x_pair=2 * x_image,
        dy_image=dy_image,
        dy_line=dy_line,
        dy_pair=2 * dy_image,
        vector=VECTOR_BYTES,
        rows=tiles.rows,
        steps=tiles.pairs * (tiles.rows // EIGHT),
        eights=tiles.rows // EIGHT,
        eight=EIGHT,
        first_line=first,
        line=of_lane,
        test=f"if ({' && '.join(tests)}) " if tests else "",
        of_row=4 * len(found),
        load_dy=_load_dy_in_float32(eights, dy_line) if in_float32 else _load_dy(eights),
        multiply=_multiply_in_float32(workload, kind) if in_float32 else _multiply(workload, kind),
    )
    shared = once("tvmconv_load_word", WORD) + rest_functions() if in_float32 else load_functions(transposed=True)
    shared += once(f"tvmconv_mma_{kind}", MMA.format(**TYPES[workload.dtype]._asdict()))
    return name, once(name, shared + source)


def _load_dy(eights: int) -> str:
    """Return the code that loads the second factors, of two eights of columns at a time."""
    code = f"unsigned b[{eights}][2];\n"
    for eight in range(0, eights, 2):
        count = 2 * min(2, eights - eight)
        code += f"    tvmconv_load_transposed_x{count}(b[{eight}], place + {eight * VECTOR_BYTES});\n"
    return code


def _multiply(workload: ConvWorkload, kind: str) -> str:
    """Return the code that loads first factors, and multiplies each by the columns of dy that it meets taps with."""
    code, found, pairs = "", diagonals(workload), products(workload)
    for m in sorted({m for m, _ in pairs}):
        if m * TILE + EIGHT < workload.width:
            code += f"unsigned a{m}[4];\n"
            code += f"        tvmconv_load_transposed_x4(a{m}, lines_of_two + offset + {2 * m * VECTOR_BYTES});\n"
        else:
            code += f"unsigned a{m}_low[2];\n"
            code += f"        tvmconv_load_transposed_x2(a{m}_low, lines_of_one + offset + {2 * m * VECTOR_BYTES});\n"
            code += f"        unsigned a{m}[4] = {{a{m}_low[0], 0u, a{m}_low[1], 0u}};\n"
        for n in [n for other, n in pairs if other == m]:
            place = (2 * m - n - found[0]) * 4
            code += f"        tvmconv_mma_{kind}(own_sums + {place}, a{m}, b[{n}]);\n"
        code += "        "
    return code


def _load_dy_in_float32(eights: int, line: int) -> str:
    """Return the code that loads the second factors and takes them apart, for eights of columns."""
    code = f"unsigned b[{eights}][2], b_rest[{eights}][2];\n"
    for eight, half in product(range(eights), range(2)):
        place = f"[{eight}][{half}] = "
        code += f"          b{place}tvmconv_load_word(place + {eight * EIGHT * 4 + half * 4 * line});\n"
        code += f"          b_rest{place}tvmconv_rest_of_nearest(b[{eight}][{half}]);\n"
        code += f"          b{place}tvmconv_nearest_finite(b[{eight}][{half}]);\n"
    return code


def _multiply_in_float32(workload: ConvWorkload, kind: str) -> str:
    """Return the code that loads first factors, takes them apart, and multiplies each as `_multiply` does."""
    code, found, pairs = "", diagonals(workload), products(workload)
    for m in sorted({m for m, _ in pairs}):
        code += f"unsigned a{m}[4], a{m}_rest[4];\n"
        for register in range(4):
            half, rows = register % 2 * EIGHT, ("upper", "lower")[register // 2]
            there = m * TILE + half < workload.width
            value = f"tvmconv_load_word({rows} + {(m * TILE + half) * 4})" if there else "0u"
            code += f"          a{m}[{register}] = {value};\n"
            code += f"          a{m}_rest[{register}] = tvmconv_rest(a{m}[{register}]);\n"
        for first, second in three_products(f"a{m}", "b"):
            for n in [n for other, n in pairs if other == m]:
                place = (2 * m - n - found[0]) * 4
                code += f"          tvmconv_mma_{kind}(own_sums + {place}, {first}, {second}[{n}]);\n"
        code += "          "
    return code
