"""Instructions that add up products: on tensor cores by architecture, on CPUs by features of the target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .devices import architecture, host_arch

if TYPE_CHECKING:
    import tvm


class TensorInstruction(NamedTuple):
    """An instruction that multiplies matrices: of half precision or TF32 with sums in float32, of int8 in int32."""

    name: str
    """The name of the instruction in PTX."""
    since: int
    """The oldest architecture that the row stands for, such as 80 for sm_80."""
    until: int | None
    """The newest architecture; None for a row that stands for every later one."""
    products: int
    """The multiply-adds of half precision that a multiprocessor begins in a clock.

    Of TF32 they are half as many, and of integers of one byte twice as many.

    On an H100 989 TFLOP/s are 2048 by `wgmma` (data sheet); of `mma` half of them were seen in kernels. The others are
    from data sheets, by the rates with sums in float32: 312 TFLOP/s of an A100, 71 of an RTX 3090 and 165 of an RTX
    4090.
    """


TENSOR_INSTRUCTIONS = (
    TensorInstruction("mma", since=80, until=85, products=1024),
    TensorInstruction("mma", since=86, until=89, products=256),
    TensorInstruction("mma", since=90, until=119, products=1024),
    TensorInstruction("mma", since=120, until=None, products=256),
    TensorInstruction("wgmma", since=90, until=90, products=2048),
)


@lru_cache(maxsize=64)  # counts of templates ask for each of hundreds of configurations
def tensor_instructions(target: tvm.target.Target) -> Mapping[str, TensorInstruction]:
    """Return the rows of the instructions that a CUDA target has, by name."""
    arch = _architecture(target)
    return {
        row.name: row for row in TENSOR_INSTRUCTIONS if row.since <= arch and (row.until is None or arch <= row.until)
    }


CLUSTERS_SINCE = 90
"""The oldest architecture whose blocks read the shared memory of others in their cluster."""


def has_clusters(target: tvm.target.Target) -> bool:
    """Return whether a CUDA target has clusters of blocks."""
    return _architecture(target) >= CLUSTERS_SINCE


DEPENDENT_LAUNCHES = (90,)
"""The architectures whose kernels are launched while the one before ends.

Later ones can do it too, but it was measured on an H100 alone, and on sm_120 a CUDA graph is said to be refused where
kernels in it are launched so: github.com/sgl-project/sglang/pull/18596.
"""


def has_dependent_launches(target: tvm.target.Target) -> bool:
    """Return whether kernels for a CUDA target themselves wait for the previous kernel."""
    return _architecture(target) in DEPENDENT_LAUNCHES


def _architecture(target: tvm.target.Target) -> int:
    """Return the number of a CUDA target's architecture, such as 90."""
    return int(str(target.attrs["arch"]).removeprefix("sm_"))


class DotInstruction(NamedTuple):
    """An instruction of a CPU that adds the products of neighbouring terms to each lane's sum.

    The first factor is the same for all lanes, the second has the terms of a lane side by side. Sums of integers are
    exact. Factors in uint16 are the bits of bfloat16 numbers.
    """

    name: str
    """The name of the instruction in assembly."""
    arch: str
    features: tuple[str, ...]
    """The features that a target has to have, in LLVM's words."""
    intrinsic: str
    """LLVM's name for it; empty for a multiply-add that LLVM makes of plain code."""
    lanes: int
    """The sums of a vector."""
    terms: int
    """The products that are added to each."""
    takes: tuple[str, ...]
    """The types of x that it is for, the best row being the first that takes one."""
    first: str
    """The type of the first factor."""
    second: str
    """The type of the second factor."""
    sums: str = "int32"
    adds: bool = True
    """True if it adds to a sum; else another instruction does."""


BYTES = ("int8", "uint8")

DOT_INSTRUCTIONS = (
    *(
        DotInstruction(
            "vpdpbusd", "x86_64", features, f"llvm.x86.avx512.vpdpbusd.{bits}", lanes, 4, BYTES, "uint8", "int8"
        )
        for features, bits, lanes in ((("avx512vnni",), 512, 16), (("avxvnni",), 256, 8))
    ),
    *(
        DotInstruction("pmaddwd", "x86_64", features, f"llvm.x86.{name}", lanes, 2, BYTES, "int16", "int16", adds=False)
        for features, name, lanes in (
            (("avx512bw",), "avx512.pmaddw.d.512", 16),
            (("avx2",), "avx2.pmadd.wd", 8),
            ((), "sse2.pmadd.wd", 4),
        )
    ),
    DotInstruction(
        "vdpbf16ps",
        *("x86_64", ("avx512bf16",), "llvm.x86.avx512bf16.dpbf16ps.512", 16, 2),
        *(("bfloat16",), "uint16", "uint16", "float32"),
    ),
    DotInstruction("usdot", "aarch64", ("i8mm",), "llvm.aarch64.neon.usdot", 4, 4, ("uint8",), "uint8", "int8"),
    DotInstruction("sdot", "aarch64", ("dotprod",), "llvm.aarch64.neon.sdot", 4, 4, BYTES, "int8", "int8"),
    DotInstruction("smlal", "aarch64", (), "", 4, 1, BYTES, "int16", "int16"),
)
"""The instructions, the best first. `pmaddubsw`, of AVX2 too, is none of them: it saturates sums of two products."""


TILE_INSTRUCTIONS = (
    DotInstruction("tdpbusd", "x86_64", ("amx-int8",), "llvm.x86.tdpbusd", 16, 4, ("uint8",), "uint8", "int8"),
    DotInstruction("tdpbssd", "x86_64", ("amx-int8",), "llvm.x86.tdpbssd", 16, 4, ("int8",), "int8", "int8"),
    DotInstruction(
        "tdpbf16ps",
        *("x86_64", ("amx-bf16",), "llvm.x86.tdpbf16ps", 16, 2),
        *(("bfloat16",), "uint16", "uint16", "float32"),
    ),
)
"""The instructions of AMX, which multiply whole tiles: a row of their sums is as `DotInstruction` says, and its
factors fill a row of a tile. Weights have a sign, so that `tdpbsud` and `tdpbuud` have no row."""


@lru_cache(maxsize=64)
def dot_instruction(target: tvm.target.Target, dtype: str) -> DotInstruction | None:
    """Return the best instruction of a target of kind "llvm" for x of a type; None where it has none."""
    return _best(DOT_INSTRUCTIONS, target, dtype)


@lru_cache(maxsize=64)
def tile_instruction(target: tvm.target.Target, dtype: str) -> DotInstruction | None:
    """Return the instruction for tiles of a target of kind "llvm" for x of a type; None where it has none."""
    return _best(TILE_INSTRUCTIONS, target, dtype)


def _best(rows: tuple[DotInstruction, ...], target: tvm.target.Target, dtype: str) -> DotInstruction | None:
    arch = _arch_of_cpu(target)
    known = (row for row in rows if row.arch == arch and dtype in row.takes)
    return next((row for row in known if _has(target, row.features)), None)


def _arch_of_cpu(target: tvm.target.Target) -> str:
    return architecture(str(json.loads(str(target)).get("mtriple") or host_arch()))


def _has(target: tvm.target.Target, features: tuple[str, ...]) -> bool:
    from tvm.target import codegen

    return all(codegen.target_has_features(feature, target) for feature in features)


class LookupInstruction(NamedTuple):
    """An instruction of a CPU that takes a byte of a table in registers for each byte of a vector, by its last bits."""

    name: str
    """The name of the instruction in assembly."""
    features: tuple[str, ...]
    """The features that a target has to have, in LLVM's words."""
    intrinsic: str
    """LLVM's name for it."""
    lanes: int
    """The bytes of a vector."""
    entries: int
    """The bytes of its table."""

    @property
    def takes_two(self) -> bool:
        """True if the table fills two registers, with the indices between them; else it is repeated to fill one."""
        return self.entries > self.lanes


LOOKUP_INSTRUCTIONS = (
    LookupInstruction("vpermi2b", ("avx512vbmi",), "llvm.x86.avx512.vpermi2var.qi.512", 64, 128),
    LookupInstruction("vpshufb", ("avx512bw",), "llvm.x86.avx512.pshuf.b.512", 64, 16),
    LookupInstruction("vpshufb", ("avx2",), "llvm.x86.avx2.pshuf.b", 32, 16),
)
"""The instructions of x86_64, the best first. Indices of tables of 16 bytes have to be below 16."""


class RoundingInstruction(NamedTuple):
    """An instruction of a CPU that rounds a vector of float32 numbers to bfloat16, to nearest even."""

    name: str
    """The name of the instruction in assembly."""
    feature: str
    """The feature that a target has to have, in LLVM's words."""
    intrinsic: str
    """LLVM's name for it."""
    lanes: int


ROUNDING_INSTRUCTION = RoundingInstruction("vcvtneps2bf16", "avx512bf16", "llvm.x86.avx512bf16.cvtneps2bf16.512", 16)
"""The instruction of x86_64. It takes denormal numbers for zeros, as `vdpbf16ps` does."""


@lru_cache(maxsize=64)
def has_rounding(target: tvm.target.Target) -> bool:
    """Return whether a target has `ROUNDING_INSTRUCTION`."""
    return _arch_of_cpu(target) == "x86_64" and _has(target, (ROUNDING_INSTRUCTION.feature,))


TILE_FEATURES = frozenset({"amx-tile"}.union(*(row.features for row in TILE_INSTRUCTIONS)))
"""The features of x86_64 that tiles of AMX need."""

FEATURES = tuple(
    sorted(
        {"avx2", "avx512f", *TILE_FEATURES}.union(
            *(row.features for row in DOT_INSTRUCTIONS if row.arch == "x86_64"),
            *(row.features for row in LOOKUP_INSTRUCTIONS),
        )
    )
)
"""The features of x86_64 that kernels are chosen by: those of vectors, and those of instructions."""


@lru_cache(maxsize=64)
def lookup_instruction(target: tvm.target.Target) -> LookupInstruction | None:
    """Return the best instruction of a target; None where it has none."""
    if target.kind.name != "llvm" or _arch_of_cpu(target) != "x86_64":
        return None
    return next((row for row in LOOKUP_INSTRUCTIONS if _has(target, row.features)), None)


def multiplies(target: tvm.target.Target, dtype: str) -> bool:
    """Return whether a target has an instruction that adds up products of numbers of half precision in float32."""
    if target.kind.name == "cuda":
        return bool(tensor_instructions(target))
    return (tile_instruction(target, dtype) or dot_instruction(target, dtype)) is not None
