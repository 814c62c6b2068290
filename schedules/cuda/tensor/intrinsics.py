"""The CUDA functions that multiply two chunks in shared memory on tensor cores: those of a warp, and what all have.

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

from tvmconv.targets.cuda import once

from .tiles import Config


class Type(NamedTuple):
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


HALF, BFLOAT16 = Type("f16", 16, ", 1, 1, 0, 0", "f16"), Type("bf16", 16, ", 1, 1, 0, 0", "bf16")
TF32 = Type("tf32", 8, ", 1, 1", "tf32")
INT8, UINT8 = (Type(name, 32, "", "s8", "s32", "int", "r") for name in ("s8", "u8"))
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


def rest_functions() -> str:
    """Return the functions that take float32 numbers apart, which a module has once."""
    return once("tvmconv_rest", REST) + once("tvmconv_nearest", NEAREST)


def three_products(a: str, b: str) -> list[tuple[str, str]]:
    """Return the factors of the products that make one in float32, of names whose rests have names of their own.

    The largest come last, so that fewer sums are rounded toward zero where they are large.
    """
    return [(f"{a}_rest", b), (a, f"{b}_rest"), (a, b)]


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

OWN_SUMS = """
  float own[{count}];
  #pragma unroll
  for (int i = 0; i < {count}; ++i) own[i] = 0.0f;
"""

ADD_OWN_SUMS = """
  #pragma unroll
  for (int i = 0; i < {count}; ++i) sums[i] += own[i];
"""


def mma_product(name: str, kind: Type, config: Config, products: int) -> str:
    """Return the source of the function of a warp."""
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
    multiply += converted("b", "tvmconv_nearest_finite") + "".join(each(*pair) for pair in three_products("a", "b"))
    own = {"begin": OWN_SUMS.format(count=config.sums), "end": ADD_OWN_SUMS.format(count=config.sums)}
    functions += rest_functions()
    return functions + MMA_PRODUCT.format(**shape, **own, name=name, multiply=multiply)
