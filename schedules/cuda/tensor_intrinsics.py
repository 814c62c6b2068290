"""The CUDA functions that multiply two chunks in shared memory on tensor cores.

A chunk is rows of 128 bytes along the reduction, in groups of eight rows, whose eight vectors of 16 bytes are permuted:
vector v of row r of a group lies at place `v ^ r`. That is the 128-byte swizzle of the PTX manual, which `wgmma` reads
by itself and `ldmatrix` without bank conflicts. Each function is called by all threads of a block, each with the
addresses of its own sums and of its own first row, without the permutation: row r of 8 for thread (r, q) of a warp in
the first factor, and row 2q in the second.

A product in float32 is three products of TF32 numbers, which have 11 bits of the 24: with a = a' + a'' and
b = b' + b'' it is a'b' + a'b'' + a''b', and what is left out is 2^-22 of it. Tensor cores round sums toward zero, which
would add up over a long reduction: each chunk has sums of its own, which are added to the others by the float32 units.

Integers of one byte go the way of half precision, with sums in int32 that are exact.
"""

from __future__ import annotations

from typing import NamedTuple

from tvmconv.compute.chunks import COPY_BYTES, ROW_BYTES, STEPS, row_bytes
from tvmconv.cuda import once
from tvmconv.problem import Problem

from .tensor_tiles import Config, tf32_products


class _Type(NamedTuple):
    """The words of PTX, and of CUDA, for a type of the first factor."""

    name: str
    depth: int
    """The terms of the reduction of an instruction, which are 32 bytes."""
    options: str
    """The last operands of `wgmma`: that factors are not negated, and those in shared memory not transposed; TF32 ones
    never are, and integers never are either."""
    second: str
    """The type of the second factor."""
    sums: str = "f32"
    number: str = "float"
    """The type of the sums in CUDA."""
    register: str = "f"
    """The letter for a register of the sums."""


HALF, BFLOAT16 = _Type("f16", 16, ", 1, 1, 0, 0", "f16"), _Type("bf16", 16, ", 1, 1, 0, 0", "bf16")
TF32 = _Type("tf32", 8, ", 1, 1", "tf32")
INT8, UINT8 = (_Type(name, 32, "", "s8", "s32", "int", "r") for name in ("s8", "u8"))
TYPES = {"float16": HALF, "bfloat16": BFLOAT16, "float32": TF32, "int8": INT8, "uint8": UINT8}

LOAD = """
__device__ __forceinline__ void tvmconv_load_matrices(unsigned* m, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
"""
"""Four matrices of eight rows of 16 bytes, of which lanes 8i to 8i + 7 give the addresses of the rows of the i-th."""

ROUND = """
__device__ __forceinline__ unsigned tvmconv_to_tf32(unsigned value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(value)));
  return rounded;
}
"""

REST = """
__device__ __forceinline__ unsigned tvmconv_rest(unsigned value) {
  return __float_as_uint(__uint_as_float(value) - __uint_as_float(value & 0xffffe000u)) + 0x1000u;
}
"""
"""The rest of a float32 number when a tensor core has cut off the bits that TF32 lacks, rounded in its turn."""

NEAREST = """
__device__ __forceinline__ unsigned tvmconv_nearest_finite(unsigned value) {
  unsigned rounded;
  asm("cvt.rna.satfinite.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(value)));
  return rounded;
}
__device__ __forceinline__ unsigned tvmconv_rest_of_nearest(unsigned value) {
  return __float_as_uint(__uint_as_float(value) - __uint_as_float(tvmconv_nearest_finite(value))) + 0x1000u;
}
"""
"""The same for a number that is rounded. The product of both rests is left out: one has to be of either sign, so that
what is left out is too, and does not add up. The largest float32 numbers do not become infinite, and the rest of an
infinite one is infinite."""

MMA = """
__device__ __forceinline__ void tvmconv_mma_{name}({number}* c, const unsigned* a, const unsigned* b) {{
  asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{name}.{second}.{sums} "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
    : "+{register}"(c[0]), "+{register}"(c[1]), "+{register}"(c[2]), "+{register}"(c[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""

MMA_PRODUCT = """
__device__ __forceinline__ void {name}({number}* sums, void* rows, void* columns) {{
  unsigned lane = threadIdx.x & 31;
  unsigned first_row = (unsigned)__cvta_generic_to_shared(rows) - (lane >> 2) * 128 + (lane & 15) * 128;
  unsigned first_column = (unsigned)__cvta_generic_to_shared(columns) - (lane & 3) * 256
    + (lane & 7) * 128 + (lane >> 4) * 1024;
  {begin}
  #pragma unroll
  for (int step = 0; step < 4; ++step) {{
    unsigned a[{tiles_m}][4], b[{tiles_n}][2];
    #pragma unroll
    for (int i = 0; i < {tiles_m}; ++i)
      tvmconv_load_matrices(a[i], first_row + i * 2048 + (((step * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
    #pragma unroll
    for (int j = 0; j < {tiles_n}; j += 2)
      tvmconv_load_matrices(b[j], first_column + j * 1024 + (((step * 2 + ((lane >> 3) & 1)) ^ (lane & 7)) << 4));
    {multiply}
  }}
  {end}
}}
"""
"""A warp's product."""

EACH = """
    #pragma unroll
    for (int i = 0; i < {tiles_m}; ++i)
      #pragma unroll
      for (int j = 0; j < {tiles_n}; ++j) tvmconv_mma_{type}({sums} + (i * {tiles_n} + j) * 4, {a}[i], {b}[j]);
"""

CONVERTED = """
    #pragma unroll
    for (int i = 0; i < {tiles}; ++i)
      #pragma unroll
      for (int l = 0; l < {words}; ++l) {target}[i][l] = {function}({matrix}[i][l]);
"""

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
}}
"""
"""The product of a group of four warps, which goes on when the function returns. Descriptors count 16 bytes: two are a
step of the reduction, and four times the bytes of a row are 64 rows.

Sums are named before the fence, so that zeros are in their registers by then: else, where there is no loop over chunks,
they would be put there behind it, and `ptxas` would wait for each instruction."""

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

OWN_SUMS = """
  float own[{count}];
  #pragma unroll
  for (int i = 0; i < {count}; ++i) own[i] = 0.0f;
"""

ADD_OWN_SUMS = """
  #pragma unroll
  for (int i = 0; i < {count}; ++i) sums[i] += own[i];
"""


def product_function(problem: Problem, config: Config, steps: int = STEPS) -> tuple[str, str]:
    """Return the name and the source of the function that adds the product of two chunks to a thread's sums.

    It multiplies so many steps of the chunks, of `wgmma`; what is behind them is not read.
    """
    products = tf32_products(problem)
    kind = TYPES[problem.workload.dtype]
    family = "wgmma" if config.wgmma else "mma"
    name = (
        f"tvmconv_{family}_{kind.name}{f'x{products}' if products else ''}_{config.tile.tiles_m}x{config.tile.tiles_n}"
    )
    if not config.wgmma:
        return name, _mma(name, kind, config, products)
    name += f"_{steps}_steps" if steps < STEPS else ""
    return name, _wgmma_tf32(name, config, products, steps) if products else _wgmma(name, kind, config, steps)


def _mma(name: str, kind: _Type, config: Config, products: int) -> str:
    tile, sums = config.tile, "own" if products == 3 else "sums"
    shape = {"tiles_m": tile.tiles_m, "tiles_n": tile.tiles_n, "number": kind.number}
    factors = {"a": (tile.tiles_m, 4), "b": (tile.tiles_n, 2)}

    def converted(target: str, function: str) -> str:
        tiles, words = factors[target[0]]
        return CONVERTED.format(tiles=tiles, words=words, target=target, matrix=target[0], function=function)

    def each(a: str, b: str) -> str:
        return EACH.format(**shape, type=kind.name, sums=sums, a=a, b=b)

    one = once(f"tvmconv_mma_{kind.name}", MMA.format(**kind._asdict()))
    functions = once("tvmconv_load", LOAD) + one
    if products == 0:
        return functions + MMA_PRODUCT.format(**shape, name=name, begin="", end="", multiply=each("a", "b"))
    if products == 1:
        multiply = converted("a", "tvmconv_to_tf32") + converted("b", "tvmconv_to_tf32") + each("a", "b")
        return (
            functions
            + once("tvmconv_round", ROUND)
            + MMA_PRODUCT.format(**shape, name=name, begin="", end="", multiply=multiply)
        )
    rests = "".join(f"unsigned {matrix}_rest[{tiles}][{words}];\n" for matrix, (tiles, words) in factors.items())
    multiply = rests + converted("a_rest", "tvmconv_rest") + converted("b_rest", "tvmconv_rest_of_nearest")
    multiply += converted("b", "tvmconv_nearest_finite") + each("a_rest", "b") + each("a", "b_rest") + each("a", "b")
    own = {"begin": OWN_SUMS.format(count=config.sums), "end": ADD_OWN_SUMS.format(count=config.sums)}
    functions += once("tvmconv_rest", REST) + once("tvmconv_nearest", NEAREST)
    return functions + MMA_PRODUCT.format(**shape, **own, name=name, multiply=multiply)


def _wgmma(name: str, kind: _Type, config: Config, steps: int) -> str:
    one = _instruction(name, kind, config, "unsigned long long a", ['"l"(a)'])
    shape = {"tiles_m": config.tile.tiles_m, "steps": steps, "registers": config.tile.tiles_n * 4}
    parts = {"first": _first(config, steps), "number": kind.number, "register": kind.register}
    product = WGMMA_PRODUCT.format(name=name, row_bytes=row_bytes(steps), **shape, **parts)
    return once("tvmconv_descriptor", DESCRIPTOR) + one + product


def _wgmma_tf32(name: str, config: Config, products: int, steps: int) -> str:
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
        functions += once("tvmconv_rest", REST)
        of_rests, of_numbers = multiply("own", "rest", "b", "1"), multiply("own", "a", "b", "1")
        parts = {
            "rests_parameter": ", void* rests",
            "rests_descriptor": "unsigned long long low = tvmconv_descriptor("
            f"first_column + (unsigned)((char*)rests - (char*)columns), {size});",
            "begin": f"unsigned rest[{count}][4];\n  float own[{config.sums}];",
            "convert_before": "",
            "multiply": multiply("own", "a", "low", f"at % {steps} > 0"),
            "convert_meanwhile": CONVERTED_STEP.format(target="rest", function="tvmconv_rest"),
            "multiply_on": MULTIPLY_ON.format(count=count, of_rests=of_rests, of_numbers=of_numbers),
            "end": ADD_OWN_SUMS.format(count=config.sums),
        }
    # Of rows in the same banks each has its vectors in an order of its own.
    permuted = f"(lane / {ROW_BYTES // size} % {size // COPY_BYTES})"
    parts |= {"first": _first(config, steps), "row_bytes": str(size), "permuted": permuted}
    return functions + WGMMA_TF32_PRODUCT.format(name=name, count=count, steps=steps, **parts)


def _first(config: Config, steps: int) -> str:
    """Return the statements that find the first rows of both factors in chunks of so many steps."""
    size, tile = row_bytes(steps), config.tile
    if size == ROW_BYTES:
        return FIRST
    groups = {"groups": config.warps_m * config.warps_n, "groups_n": config.warps_n}
    return FIRST + NARROW.format(**groups, rows=tile.tiles_m * 64, columns=tile.tiles_n * 8, row_bytes=size)


def _instruction(name: str, kind: _Type, config: Config, parameter: str, inputs: list[str]) -> str:
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
