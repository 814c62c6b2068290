"""The CUDA function that multiplies rows of taps by whole planes on tensor cores.

The first factor has sixteen columns of outputs as rows, and sixteen columns of the input as terms: a row of taps lies
along its diagonals. The second factor has a column for each of eight rows of the input, which threads load from planes
as they lie in shared memory. Eights of rows are interleaved, so that a row of the input is loaded once for all of them:
the first one multiplies it by a row of taps, the next one by the row of taps before, which stay in registers.

Zeros of the first factor are multiplied with what the input has there. Sums that are not finite are computed once more,
from their own terms alone. Behind it all is a barrier, since the outputs come to the place of the planes.
"""

from __future__ import annotations

from math import gcd, prod

from tvmconv.compute.depthwise.bands import BAND, EIGHT
from tvmconv.compute.depthwise.planes import eights, neighbours, side_by_side
from tvmconv.problem import Problem
from tvmconv.targets.cuda import once

from ..depthwise_bands.intrinsics import FINITE, WIDEN
from ..tensor.intrinsics import MMA, TYPES
from .tiles import (
    Config,
    channels_of,
    image_elements,
    in_registers,
    lines_of,
    matrices,
    pairs,
    pixel_lanes,
    store_lanes,
    sums_of,
)

ANEW = """
__device__ __forceinline__ void {name}_anew(float* sums, const unsigned short* lines, const unsigned short* taps) {{
  int g = threadIdx.x >> 2 & 7, j = threadIdx.x & 3;
  #pragma unroll 1
  for (int i = 0; i < {sums}; ++i) {{
    int own = i >> 1 & 1, unit = i >> 2, channel = unit / {of_channel} % {neighbours};
    int image = unit / {of_image} * {together} + ({together} == 2 ? own : 0);
    int row = {eights} * (2 * j + (i & 1)) + unit / {bands} % {eights} - {top};
    int column = ({together} == 2 ? g : unit % {bands} * {band} + 2 * g + own) - {left};
    float sum = 0.0f;
    #pragma unroll 1
    for (int r = max(0, -row); r < min({kernel_y}, {height} - row); ++r)
      #pragma unroll 1
      for (int s = max(0, -column); s < min({kernel_x}, {width} - column); ++s)
        sum += tvmconv_widened_{kind}(lines[image * {image} + channel * {channel} + (row + r) * {line} + (column + s)
            * {pixel}]) * tvmconv_widened_{kind}(taps[channel * {window} + r * {kernel_x} + s]);
    #pragma unroll
    for (int k = 0; k < {sums}; ++k) sums[k] = k != i || tvmconv_is_finite(sums[k]) ? sums[k] : sum;
  }}
}}
"""
"""Sums in the place of those that are not finite, in a loop over all of them, whose numbers are constants there."""

PRODUCT = """
__device__ __forceinline__ unsigned {name}_taps(const unsigned short* row, int s, bool there) {{
  unsigned low = there && (unsigned)s < {kernel_x}u ? row[s] : 0;
  return low | (there && (unsigned)(s + 1) < {kernel_x}u ? row[s + 1] : 0) << 16;
}}

__device__ __forceinline__ void {name}(float* sums, void* all_lines, void* all_taps) {{
  int g = threadIdx.x >> 2 & 7, j = threadIdx.x & 3, warp = threadIdx.x >> 5;
  const unsigned short* lines = (const unsigned short*)all_lines + warp * {of_warp};
  const unsigned short* taps = (const unsigned short*)all_taps + warp * {taps_of_warp};
  unsigned a[{neighbours}][{eights}][{matrices}][4] = {{}};
  {keep}
  #pragma unroll {unrolled}
  for (int d = {first}; d < {end}; ++d) {{
    #pragma unroll
    for (int c = 0; c < {neighbours}; ++c) {{
      #pragma unroll
      for (int e = {eights} - 1; e > 0; --e)
        #pragma unroll
        for (int i = 0; i < {matrices} * 4; ++i) a[c][e][i / 4][i % 4] = a[c][e - 1][i / 4][i % 4];
      const unsigned short* row = taps + c * {window} + d * {kernel_x};
      bool there = d < {kernel_y};
      {load_taps}
    }}
    int y = {eights} * g + d - {top};
    bool inside = (unsigned)y < {height}u;
    {line_of_d}
    {multiply}
  }}
  bool finite = true;
  #pragma unroll
  for (int i = 0; i < {sums}; ++i) finite &= tvmconv_is_finite(sums[i]);
  if (!finite) {name}_anew(sums, lines, taps);
  __syncthreads();
}}
"""

LINE = "const unsigned short* line = lines + y * {line} + 2 * j * {pixel};"
"""The first two columns of a thread, in the row of the input that it loads."""

STORE = """
template <typename Vector, typename Piece>
__device__ __forceinline__ void {name}_by(char* output, long long next, const char* staged) {{
  const int count = sizeof(Vector) / sizeof(Piece), vectors = {run} / (int)sizeof(Vector);
  for (int i = threadIdx.x; i < {images} * {runs} * vectors; i += {threads}) {{
    int image = i / ({runs} * vectors), run = i / vectors % {runs}, place = i % vectors * (int)sizeof(Vector);
    const Piece* pieces = (const Piece*)(staged + (i / vectors) * {own_pitch} + place);
    Vector value;
    #pragma unroll
    for (int k = 0; k < count; ++k) ((Piece*)&value)[k] = pieces[k];
    *(Vector*)(output + image * next + run * {pitch} + place) = value;
  }}
}}

__device__ __forceinline__ void {name}(void* output, void* following, void* staged) {{
  long long next = (char*)following - (char*)output;
  __syncthreads();
  if (((unsigned long long)output | (unsigned long long)next) % sizeof({vector}))
    {name}_by<{element}, {element}>((char*)output, next, (const char*)staged);
  else
    {name}_by<{vector}, {piece}>((char*)output, next, (const char*)staged);
}}
"""
"""The copy of runs of outputs from shared memory to where they lie apart in memory, in vectors there.

Kernels may write into a part of a larger tensor, which tells how far images are apart, and may begin within a vector.
"""

VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
"""Types of CUDA by their bytes."""


def product_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    workload, last = problem.workload, problem.workload.layout == "NHWC"
    kind, (rows, bands), together = TYPES[workload.dtype].name, eights(workload), side_by_side(workload, config.images)
    (top, left, _, _), (kernel_y, kernel_x) = workload.padding, workload.kernel
    plane, pixel = workload.height * workload.width, _pixel(problem, config)
    image, own = image_elements(workload, config), neighbours(workload)
    shape = config.images, together, own, rows, bands, image, pixel
    numbers = *shape, workload.height, workload.width, kernel_y, kernel_x, top, left
    name = f"tvmconv_planes_{'x'.join(map(str, numbers))}_{kind}"
    values = {
        "name": name,
        "kind": kind,
        "sums": sums_of(workload, config),
        "of_channel": rows * bands,
        "of_image": rows * bands * own,
        "neighbours": own,
        "together": together,
        "eights": rows,
        "unrolled": max(2, rows),
        "bands": bands,
        "band": BAND,
        "top": top,
        "left": left,
        "height": workload.height,
        "width": workload.width,
        "kernel_y": kernel_y,
        "kernel_x": kernel_x,
        "window": prod(workload.kernel),
        "image": image,
        "channel": 1 if last else plane,
        "line": workload.width * pixel,
        "pixel": pixel,
        "of_warp": own if last else plane,
        "taps_of_warp": own * prod(workload.kernel),
        "matrices": len(matrices(workload)),
        "first": lines_of(workload).start,
        "end": lines_of(workload).stop,
    }
    line = "" if in_registers(workload) else LINE.format(**values)
    code = {"line_of_d": line, "keep": _keep(problem, config), "multiply": _multiply(problem, config)}
    source = ANEW.format(**values) + PRODUCT.format(**values, load_taps=_load_taps(problem, config, name), **code)
    shared = once(f"tvmconv_mma_{kind}", MMA.format(**TYPES[workload.dtype]._asdict()))
    shared += once(f"tvmconv_widened_{kind}", WIDEN[kind]) + once("tvmconv_is_finite", FINITE)
    return name, once(name, shared + source)


def store_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that stores the outputs of a block."""
    workload, pixels = problem.workload, prod(problem.workload.output_size)
    last, itemsize = workload.layout == "NHWC", workload.output_storage.itemsize
    runs, run = (pixels, itemsize) if last else (1, pixels * itemsize)
    run *= channels_of(workload, config)
    own_pitch, vector = pixel_lanes(config) * itemsize if last else run, store_lanes(workload, config) * itemsize
    numbers = {"images": config.images, "runs": runs, "run": run, "own_pitch": own_pitch, "threads": config.threads}
    numbers["pitch"] = workload.out_channels * itemsize
    name = f"tvmconv_store_{'x'.join(map(str, numbers.values()))}_{vector}"
    types = {"vector": vector, "piece": gcd(own_pitch, vector), "element": itemsize}
    named = {each: VECTORS[size] for each, size in types.items()}
    return name, once(name, STORE.format(name=name, **numbers, **named))


def _load_taps(problem: Problem, config: Config, name: str) -> str:
    """Return the code that loads a row of taps into the matrices of the first eight rows, of one channel."""
    workload, left = problem.workload, problem.workload.padding[1]
    if side_by_side(workload, config.images) == 2:
        return f"""a[c][0][0][0] = a[c][0][0][3] = {name}_taps(row, 2 * j - g + {left}, there);"""
    code = ""
    for number, behind in enumerate(matrices(workload)):
        for register, more in enumerate((0, -1, 8, 7)):  # of even outputs and odd ones; then the last eight columns
            place = f"2 * (j - g) + {behind * BAND + left + more}"
            code += f"a[c][0][{number}][{register}] = {name}_taps(row, {place}, there);\n      "
    return code


def _keep(problem: Problem, config: Config) -> str:
    """Return the code that loads planes into registers, where a warp has a row of each image for each four lanes."""
    workload = problem.workload
    if not in_registers(workload):
        return ""
    planes, own = config.images // side_by_side(workload, config.images), neighbours(workload)
    steps = sorted({step for _, step in pairs(workload)})
    code = "".join(f"unsigned kept{step}[{planes}][{own}][2];\n  " for step in steps)
    code += f"{{\n    bool inside = g < {workload.height};\n    const unsigned short* line = lines + "
    code += f"g * {workload.width * _pixel(problem, config)} + 2 * j * {_pixel(problem, config)};\n"
    code += f"    #pragma unroll\n    for (int i = 0; i < {planes}; ++i) {{\n"
    return code + "".join(_load(problem, config, f"kept{step}[i]", step) for step in steps) + "    }\n  }"


def _multiply(problem: Problem, config: Config) -> str:
    """Return the code that loads columns of the input and multiplies them by all taps that they are under."""
    workload = problem.workload
    (rows, bands), own = eights(workload), neighbours(workload)
    numbers, kind = matrices(workload), TYPES[workload.dtype].name
    planes = config.images // side_by_side(workload, config.images)
    code = f"#pragma unroll\n    for (int i = 0; i < {planes}; ++i) {{\n"
    for step in sorted({step for _, step in pairs(workload)}):
        code += f"      unsigned b{step}[{own}][2];\n"
        if in_registers(workload):  # the last four lanes have zeros
            code += f"      #pragma unroll\n      for (int k = 0; k < {2 * own}; ++k)\n        b{step}[k / 2][k % 2] = "
            code += f"__shfl_sync(0xffffffffu, kept{step}[i][k / 2][k % 2], (inside ? y : {EIGHT - 1}) * 4 + j);\n"
        else:
            code += _load(problem, config, f"b{step}", step)
    code += f"      #pragma unroll\n      for (int c = 0; c < {own}; ++c)\n"
    code += f"        #pragma unroll\n        for (int e = 0; e < {rows}; ++e) {{\n"
    code += f"          float* own = sums + ((i * {own} + c) * {rows} + e) * {bands * 4};\n"
    for band, step in pairs(workload):
        matrix = numbers.index(step - band)
        code += f"          tvmconv_mma_{kind}(own + {band * 4}, a[c][e][{matrix}], b{step}[c]);\n"
    return code + "        }\n    }"


def _load(problem: Problem, config: Config, name: str, step: int) -> str:
    """Return the code that loads two neighbouring columns of each half of sixteen of a row, in a warp's channels."""
    workload, together = problem.workload, side_by_side(problem.workload, config.images)
    width, pixel, image, code = workload.width, _pixel(problem, config), image_elements(workload, config), ""
    for half in range(2):
        column = 0 if together == 2 else step * BAND + half * (BAND // 2)
        most = column + BAND // 2 - 2  # the first column of the last thread
        low, high = (
            "inside" if most + more < width else f"inside && 2 * j + {column + more} < {width}" for more in range(2)
        )
        at = f"line[(i * {together} + {half if together == 2 else 0}) * {image} + {column * pixel}"
        if workload.layout == "NHWC":
            words = [f"{test} ? *(const unsigned*)&{at} + {more}] : 0" for test, more in ((low, 0), (high, pixel))]
            code += f"      {{\n        unsigned one = {words[0]}, two = {words[1]};\n"
            code += f"        {name}[0][{half}] = __byte_perm(one, two, 0x5410);\n"
            code += f"        {name}[1][{half}] = __byte_perm(one, two, 0x7632);\n      }}\n"
        elif width % 2 == 0:
            code += f"      {name}[0][{half}] = {low} ? *(const unsigned*)&{at}] : 0;\n"
        else:
            code += f"      {name}[0][{half}] = ({low} ? {at}] : 0) | ({high} ? {at} + 1] : 0) << 16;\n"
    return code


def _pixel(problem: Problem, config: Config) -> int:
    """Return the elements in shared memory from one column of a channel to the next."""
    return pixel_lanes(config) if problem.workload.layout == "NHWC" else 1
