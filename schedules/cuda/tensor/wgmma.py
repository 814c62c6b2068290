"""The CUDA functions of groups of four warps, whose instruction, `wgmma`, reads factors from shared memory by itself.

They are as `tensor_intrinsics` says. One factor may be in registers instead: that of float32 numbers, to be rounded.
"""

from __future__ import annotations

from functools import partial
from math import gcd

from tvmconv.compute.tensor.chunks import COPY_BYTES, ROW_BYTES, STEPS, row_bytes
from tvmconv.problem import Problem
from tvmconv.targets.cuda import once

from .intrinsics import ADD_OWN_SUMS, LOAD, REST, ROUND, TF32, TYPES, Type, mma_product, rest_functions
from .tiles import Config, converted_products, goes_on, tile_row_bytes

WGMMA = """
__device__ __forceinline__ void {name}_one({number}* c, {parameter}, unsigned long long b, int add) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{add}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k{depth}"
    ".{sums}.{type}.{second} {{{places}}}, {a}, %{b}, p{options}; }}"
    : {outputs} : {inputs}, "l"(b), "r"(add));
}}
"""
"""An instruction, which a group of four warps begins together."""

WGMMA_PRODUCT = """
__device__ __forceinline__ void {name}({number}* sums, void* rows, void* columns) {{
  {first}
  unsigned long long a = tvmconv_descriptor(first_row, {row_bytes}), b = tvmconv_descriptor(first_column, {row_bytes});
  #pragma unroll
  for (int i = 0; i < {tiles_m} * {registers}; ++i) asm volatile("" : "+{register}"(sums[i]));
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  #pragma unroll
  for (int step = 0; step < {steps}; ++step)
    #pragma unroll
    for (int i = 0; i < {tiles_m}; ++i)
      {name}_one(sums + i * {registers}, a + i * {row_bytes} * 4 + step * 2, b + step * 2, 1);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}}
"""
"""The product of a group of four warps, which goes on when the function returns, and the one before is complete.
Descriptors count 16 bytes: two are a step of the reduction, and four times the bytes of a row are 64 rows.

Sums are named before the fence, so that zeros are in their registers by then: else, where there is no loop over chunks,
they would be put there behind it, and `ptxas` would wait for each instruction."""

SETTLED_SUMS = """
__device__ __forceinline__ void {name}(float* sums, void* rows, void* columns) {{
  #pragma unroll
  for (int i = 0; i < {count}; ++i) asm volatile("add.f32 %0, %0, 0f00000000;" : "+f"(sums[i]));
}}
"""
"""Zero is added to sums that are complete, which changes none but a negative zero. Where they are rounded to half
precision one by one, and nothing else is computed of them, `ptxas` 13.0 would round some before it waits for them, and
then make products wait for each other."""

STORE_MATRICES = """
__device__ __forceinline__ void {name}(void* tile, const void* registers) {{
  unsigned lane = threadIdx.x & 31, first = (unsigned)__cvta_generic_to_shared(tile);
  first -= (lane & 3) * 2 * {row_bytes} + (lane >> 2) * 2;
  unsigned row = first + ((lane >> 4) * 8 + (lane & 7)) * {row_bytes} + (lane >> 3 & 1) * 16;
  const unsigned *pairs = (const unsigned*)registers, *below = pairs + {count};
  #pragma unroll
  for (int j = 0; j + 1 < {count}; j += 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {{%1, %2, %3, %4}};"
      :: "r"(row + j * 8 * {row_bytes}), "r"(pairs[j]), "r"(below[j]), "r"(pairs[j + 1]), "r"(below[j + 1]) : "memory");
  if ({count} % 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {{%1, %2}};"
      :: "r"(row + ({count} - 1) * 8 * {row_bytes}), "r"(pairs[{count} - 1]), "r"(below[{count} - 1]) : "memory");
}}
"""
"""The results of a warp in half precision, of one instruction with output channels as rows, are stored as rows of
pixels: matrices of eight channels by eight pixels are transposed. Lanes give the addresses of eight channels of a pixel
each. A thread has pairs of pixels in its registers, of the first eight channels and then of the other ones."""

FIRST = """
  unsigned lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
  unsigned first_row = (unsigned)__cvta_generic_to_shared(rows) - (warp * 16 + (lane >> 2)) * 128;
  unsigned first_column = (unsigned)__cvta_generic_to_shared(columns) - (lane & 3) * 256;
"""
"""The addresses of the first rows that a group of four warps multiplies, from those of the rows of a thread."""

NARROW = """
  unsigned group = threadIdx.x / 128 % {groups};
  first_row -= group / {groups_n} * {rows} * (128 - {row_bytes});
  first_column -= group % {groups_n} * {columns} * (128 - {row_bytes});
"""
"""The same where rows are narrow: their chunk begins where a whole one does, and they follow one another in it."""

DESCRIPTOR = """
__device__ __forceinline__ unsigned long long tvmconv_descriptor(unsigned address, int row_bytes) {
  address = __shfl_sync(0xffffffffu, address, 0);
  unsigned long long eight_rows = row_bytes / 2, permutation = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  // The leading offset, 1, is not used; the other one is that between groups of eight rows, in units of 16 bytes.
  return ((address >> 4) & 0x3fff) | (1ull << 16) | (eight_rows << 32) | (permutation << 62);
}
"""

WGMMA_TF32_PRODUCT = """
__device__ __forceinline__ void {name}(float* sums, void* rows, void* columns{rests_parameter}) {{
  {first}
  unsigned own_row = first_row + (warp * 16 + (lane & 15)) * {row_bytes};
  unsigned long long b = tvmconv_descriptor(first_column, {row_bytes});
  {rests_descriptor}
  unsigned a[{count}][4];
  auto load = [&](int at) {{
    unsigned i = at / {steps}, step = at % {steps};
    tvmconv_load_matrices(a[at], own_row + i * 64 * {row_bytes} + (((step * 2 + (lane >> 4)) ^ {permuted}) << 4));
  }};
  {begin}
  load(0);
  #pragma unroll
  for (int at = 0; at < {count}; ++at) {{
    {convert_before}
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    {multiply}
    if (at + 1 < {count}) load(at + 1);
    {convert_meanwhile}
  }}
  {multiply_on}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  {end}
}}
"""
"""The product of a group of four warps of float32 numbers: the first factor goes through registers, where each step of
the reduction is read and rounded, or taken apart, while the one before is multiplied; the second one was so before. It
is complete when the function returns.

A fence makes the registers of its step known to `wgmma`, and keeps `ptxas` from waiting for each instruction. Were all
steps read before the first fence, it would round all of them behind the first instruction."""

ROUND_IN_TWO = """
__device__ __forceinline__ unsigned tvmconv_raised(unsigned value) {
  return fabsf(__uint_as_float(value)) < __uint_as_float(0x7f800000u) ? value + 0x1000u : value;
}
__device__ __forceinline__ void tvmconv_cut(unsigned* rounded, unsigned raised) {
  asm volatile("and.b32 %0, %1, 0xffffe000;" : "=r"(*rounded) : "r"(raised));
}
"""
"""The two halves of `cvt.rna.tf32.f32`, of which the second one stays behind a wait."""

WGMMA_ROUNDED_PRODUCT = """
__device__ __forceinline__ void {name}(float* sums, void* rows, void* columns) {{
  {first}
  unsigned own_row = first_row + (warp * 16 + (lane & 15)) * {row_bytes};
  unsigned long long b = tvmconv_descriptor(first_column, {row_bytes});
  unsigned a[{count}][4];
  #pragma unroll
  for (int i = 0; i < {tiles_m} * {registers}; ++i) asm volatile("" : "+f"(sums[i]));
  #pragma unroll
  for (int part = 0; part < {parts}; ++part) {{
    unsigned next[{of_part}][4];
    #pragma unroll
    for (int of = 0; of < {of_part}; ++of) {{
      unsigned at = part * {of_part} + of, i = at / {steps}, step = at % {steps};
      tvmconv_load_matrices(next[of], own_row + i * 64 * {row_bytes} + (((step * 2 + (lane >> 4)) ^ {permuted}) << 4));
    }}
    #pragma unroll
    for (int of = 0; of < {of_part}; ++of)
      #pragma unroll
      for (int l = 0; l < 4; ++l) next[of][l] = tvmconv_raised(next[of][l]);
    asm volatile("wgmma.wait_group.sync.aligned {pending};" ::: "memory");
    #pragma unroll
    for (int of = 0; of < {of_part}; ++of)
      #pragma unroll
      for (int l = 0; l < 4; ++l) tvmconv_cut(&a[part * {of_part} + of][l], next[of][l]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int of = 0; of < {of_part}; ++of) {{
      int at = part * {of_part} + of;
      {name}_one(sums + at / {steps} * {registers}, a[at], b + at % {steps} * 2, 1);
    }}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }}
}}
"""
"""The product of a group of four warps of float32 numbers, of which the second factor is rounded already and the first
one goes through registers. It goes on when the function returns, and the one before is complete.

It is begun in parts, which have registers of their own. A part is read and raised first, then waits for the same part
of the product before, whose registers it takes, while the other one may go on."""

PARTS = 2
"""The parts of such a product, where its steps are even: on an H100 blocks of 128x128 took, for 4608 terms, 66.9 µs in
one part, 61.0 in two and 63.3 in four."""

CONVERTED_STEP = """
    #pragma unroll
    for (int l = 0; l < 4; ++l) {target}[at][l] = {function}(a[at][l]);
"""

MULTIPLY_ON = """
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  #pragma unroll
  for (int at = 0; at < {count}; ++at) {of_rests}
  #pragma unroll
  for (int at = 0; at < {count}; ++at) {of_numbers}
"""
"""The other two of three products. Those of the rests of the second factor come first, which need no rest of the first
one, and the largest come last, so that fewer sums are rounded toward zero where they are large."""


def product_function(problem: Problem, config: Config, steps: int = STEPS, nearest: bool = False) -> tuple[str, str]:
    """Return the name and the source of the function that adds the product of two chunks to a thread's sums.

    It multiplies so many steps of the chunks, of `wgmma`; what is behind them is not read. Of three products `nearest`
    rounds each number of the first factor, which the tensor core cuts off else: its rest is half as large then, and may
    be negative. On an H100 they take 1.06 to 1.1 times as long.
    """
    products = converted_products(problem, config)
    kind = TYPES[problem.workload.dtype]
    family = "wgmma" if config.wgmma else "mma"
    name = (
        f"tvmconv_{family}_{kind.name}{f'x{products}' if products else ''}_{config.tile.tiles_m}x{config.tile.tiles_n}"
    )
    if not config.wgmma:
        return name, mma_product(name, kind, config, products)
    name += f"_{steps}_steps" if steps < STEPS else ""
    name += "_nearest" if nearest else ""
    if products == 0:
        return name, _wgmma(name, kind, config, steps)
    as_they_come = partial(_wgmma_tf32, products=products, nearest=nearest)
    of_float32 = _wgmma_rounded if goes_on(problem, config) else as_they_come
    return name, of_float32(name, config, steps=steps)


def settled_function(config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that a thread's complete sums of float32 go through."""
    name = f"tvmconv_settled_{config.sums}"
    return name, SETTLED_SUMS.format(name=name, count=config.sums)


def matrices_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that stores the results of an instruction in a tile's rows."""
    count, size = config.tile.tiles_n, tile_row_bytes(problem, config)
    name = f"tvmconv_store_matrices_{count}_{size}"
    return name, STORE_MATRICES.format(name=name, count=count, row_bytes=size)


def _wgmma(name: str, kind: Type, config: Config, steps: int) -> str:
    one = _instruction(name, kind, config, "unsigned long long a", ['"l"(a)'])
    shape = {"tiles_m": config.tile.tiles_m, "steps": steps, "registers": config.tile.tiles_n * 4}
    parts = {"first": _first(config, steps), "number": kind.number, "register": kind.register}
    product = WGMMA_PRODUCT.format(name=name, row_bytes=row_bytes(steps), **shape, **parts)
    return once("tvmconv_descriptor", DESCRIPTOR) + one + product


def _wgmma_rounded(name: str, config: Config, steps: int) -> str:
    count, size = config.tile.tiles_m * steps, row_bytes(steps)
    parts = gcd(PARTS, count)
    one = _instruction(name, TF32, config, "const unsigned* a", [f'"r"(a[{word}])' for word in range(4)])
    product = WGMMA_ROUNDED_PRODUCT.format(
        name=name,
        first=_first(config, steps),
        row_bytes=size,
        permuted=_permuted(size),
        tiles_m=config.tile.tiles_m,
        registers=config.tile.tiles_n * 4,
        count=count,
        steps=steps,
        parts=parts,
        of_part=count // parts,
        pending=parts - 1,
    )
    functions = once("tvmconv_load", LOAD) + once("tvmconv_descriptor", DESCRIPTOR)
    return functions + once("tvmconv_round_in_two", ROUND_IN_TWO) + one + product


def _permuted(size: int) -> str:
    """Return the number that the places of a lane's vectors are permuted by, in rows of so many bytes.

    Of rows in the same banks each has its vectors in an order of its own.
    """
    return f"(lane / {ROW_BYTES // size} % {size // COPY_BYTES})"


def _wgmma_tf32(name: str, config: Config, products: int, steps: int, nearest: bool) -> str:
    count, registers, size = config.tile.tiles_m * steps, config.tile.tiles_n * 4, row_bytes(steps)
    one = _instruction(name, TF32, config, "const unsigned* a", [f'"r"(a[{word}])' for word in range(4)])
    functions = once("tvmconv_load", LOAD) + once("tvmconv_descriptor", DESCRIPTOR) + one

    def multiply(sums: str, a: str, b: str, add: str) -> str:
        return f"{name}_one({sums} + at / {steps} * {registers}, {a}[at], {b} + at % {steps} * 2, {add});"

    if products == 1:
        functions += once("tvmconv_round", ROUND)
        parts = {
            "rests_parameter": "",
            "rests_descriptor": "",
            "begin": "",
            "convert_before": CONVERTED_STEP.format(target="a", function="tvmconv_to_tf32"),
            "multiply": multiply("sums", "a", "b", "1"),
            "convert_meanwhile": "",
            "multiply_on": "",
            "end": "",
        }
    else:
        functions += rest_functions() if nearest else once("tvmconv_rest", REST)
        rest = CONVERTED_STEP.format(target="rest", function="tvmconv_rest" + ("_of_nearest" if nearest else ""))
        rounded = CONVERTED_STEP.format(target="a", function="tvmconv_nearest_finite")
        of_rests, of_numbers = multiply("own", "rest", "b", "1"), multiply("own", "a", "b", "1")
        parts = {
            "rests_parameter": ", void* rests",
            "rests_descriptor": "unsigned long long low = tvmconv_descriptor("
            f"first_column + (unsigned)((char*)rests - (char*)columns), {size});",
            "begin": f"unsigned rest[{count}][4];\n  float own[{config.sums}];",
            "convert_before": rest + rounded if nearest else "",
            "multiply": multiply("own", "a", "low", f"at % {steps} > 0"),
            "convert_meanwhile": "" if nearest else rest,
            "multiply_on": MULTIPLY_ON.format(count=count, of_rests=of_rests, of_numbers=of_numbers),
            "end": ADD_OWN_SUMS.format(count=config.sums),
        }
    parts |= {"first": _first(config, steps), "row_bytes": str(size), "permuted": _permuted(size)}
    return functions + WGMMA_TF32_PRODUCT.format(name=name, count=count, steps=steps, **parts)


def _first(config: Config, steps: int) -> str:
    """Return the statements that find the first rows of both factors in chunks of so many steps."""
    size, tile = row_bytes(steps), config.tile
    if size == ROW_BYTES:
        return FIRST
    groups = {"groups": tile.warps_m * tile.warps_n, "groups_n": tile.warps_n}
    return FIRST + NARROW.format(**groups, rows=tile.tiles_m * 64, columns=tile.tiles_n * 8, row_bytes=size)


def _instruction(name: str, kind: Type, config: Config, parameter: str, inputs: list[str]) -> str:
    """Return the function of one `wgmma`, whose first factor is given by some inputs."""
    registers = config.tile.tiles_n * 4
    places = [f"%{registers + place}" for place in range(len(inputs))]
    in_memory = len(inputs) == 1
    return WGMMA.format(
        name=name,
        parameter=parameter,
        columns=config.tile.tiles_n * 8,
        depth=kind.depth,
        type=kind.name,
        second=kind.second,
        sums=kind.sums,
        number=kind.number,
        places=", ".join(f"%{place}" for place in range(registers)),
        a=places[0] if in_memory else f"{{{', '.join(places)}}}",
        b=registers + len(inputs),
        add=registers + len(inputs) + 1,
        options=kind.options,
        outputs=", ".join(f'"+{kind.register}"(c[{place}])' for place in range(registers)),
        inputs=", ".join(inputs),
    )
