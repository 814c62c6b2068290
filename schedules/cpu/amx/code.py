"""The functions that multiply tiles of AMX, in LLVM's language.

Tile registers are named by numbers, and what they hold goes from one instruction to the next without LLVM's knowledge:
it neither moves nor spills them.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming with Intel AMX";
Linux, Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tvmconv.targets import DotInstruction
from tvmconv.targets.processors import ARCH_PRCTL, XFEATURE_XTILEDATA

TILES, TILE_ROWS, LINE_BYTES = 8, 16, 64
"""The tile registers, and the rows and the bytes of a row that one has at most."""

PALETTE = 1
"""The number of Intel's set of tile registers, which is the only one."""

REQUEST, END = "tvmconv_request_tiles", "tvmconv_end_tiles"

ARCH_REQ_XCOMP_PERM = 0x1023
"""The argument of Linux's system call with which a process asks for a feature, here for tiles."""

PERMISSION = f"""
@tvmconv_tiles_granted = linkonce_odr hidden global i32 0
define linkonce_odr hidden i32 @{REQUEST}() nounwind {{
  %before = load atomic i32, ptr @tvmconv_tiles_granted monotonic, align 4
  %granted = icmp ne i32 %before, 0
  br i1 %granted, label %done, label %ask
ask:
  %answer = call i64 asm sideeffect "syscall",
    "={{rax}},{{rax}},{{rdi}},{{rsi}},~{{rcx}},~{{r11}},~{{memory}},~{{dirflag}},~{{fpsr}},~{{flags}}"(
    i64 {ARCH_PRCTL}, i64 {ARCH_REQ_XCOMP_PERM}, i64 {XFEATURE_XTILEDATA})
  %refused = icmp ne i64 %answer, 0
  br i1 %refused, label %failed, label %first
failed:
  %negative = trunc i64 %answer to i32
  %error = sub i32 0, %negative
  ret i32 %error
first:
  store atomic i32 1, ptr @tvmconv_tiles_granted monotonic, align 4
  ret i32 0
done:
  ret i32 0
}}
"""
"""The function that asks Linux for tiles, once for all threads of a process.

Without them the first instruction that touches one would kill it. It returns 0, or the number of the error, and needs
nothing beside the library that it is in.
"""

PRODUCT = """
define linkonce_odr hidden void @{name}(ptr %c0, i64 %c_tile, i64 %c_pixel, ptr %a, i64 %a_tile, i64 %a_pixel,
    i64 %a_chunk, i64 %a_row, i64 %a_column, ptr %b, i64 %b_step, i64 %chunks, i64 %rows, i64 %columns) nounwind {{
entry:
{zero}
  br label %chunk
chunk:
  %chunk_a = phi ptr [%a, %entry], [%next_chunk_a, %end_of_chunk]
  %chunk_b = phi ptr [%b, %entry], [%next_b, %end_of_chunk]
  %chunks_left = phi i64 [%chunks, %entry], [%next_chunks, %end_of_chunk]
  br label %row
row:
  %row_a = phi ptr [%chunk_a, %chunk], [%next_row_a, %end_of_row]
  %row_b = phi ptr [%chunk_b, %chunk], [%next_b, %end_of_row]
  %rows_left = phi i64 [%rows, %chunk], [%next_rows, %end_of_row]
  br label %column
column:
  %a0 = phi ptr [%row_a, %row], [%next_a, %column]
  %b0 = phi ptr [%row_b, %row], [%next_b, %column]
  %columns_left = phi i64 [%columns, %row], [%next_columns, %column]
{multiply}
  %next_a = getelementptr i8, ptr %a0, i64 %a_column
  %next_b = getelementptr i8, ptr %b0, i64 %b_step
  %next_columns = sub i64 %columns_left, 1
  %more_columns = icmp ne i64 %next_columns, 0
  br i1 %more_columns, label %column, label %end_of_row
end_of_row:
  %next_row_a = getelementptr i8, ptr %row_a, i64 %a_row
  %next_rows = sub i64 %rows_left, 1
  %more_rows = icmp ne i64 %next_rows, 0
  br i1 %more_rows, label %row, label %end_of_chunk
end_of_chunk:
  %next_chunk_a = getelementptr i8, ptr %chunk_a, i64 %a_chunk
  %next_chunks = sub i64 %chunks_left, 1
  %more_chunks = icmp ne i64 %next_chunks, 0
  br i1 %more_chunks, label %chunk, label %store
store:
{store}
  ret void
}}
"""
"""The function for tiles of sums: it sets them to zero, goes over chunks, rows and columns of windows, and stores them.

Strides count bytes. Each step multiplies all tiles of pixels with all tiles of output channels, which lie side by side.
"""

DECLARATIONS = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @{intrinsic}(i8 immarg, i8 immarg, i8 immarg)
"""

TASK = f"""
@{{begin}}_config = linkonce_odr hidden constant [64 x i8] c"{{config}}", align 64
define linkonce_odr hidden void @{{begin}}() nounwind {{{{
  call void @llvm.x86.ldtilecfg(ptr @{{begin}}_config)
  ret void
}}}}
define linkonce_odr hidden void @{END}() nounwind {{{{
  call void @llvm.x86.tilerelease()
  ret void
}}}}
"""
"""The functions that begin and end the use of tiles of one shape in a thread; a thread must not skip the second."""


class TileCode(NamedTuple):
    """The text of a template's functions, and the names of those that depend on its tiles."""

    text: str
    begin: str
    product: str


def fits(tiles: int, vectors: int) -> bool:
    """Return whether the registers hold such sums, the tiles of pixels and one of the weight."""
    return tiles * vectors + tiles + 1 <= TILES


def tile_code(instruction: DotInstruction, tiles: int, vectors: int, pixels: int, channels: int) -> TileCode:
    """Return the functions for `tiles` tiles of pixels by `vectors` tiles of output channels, which `fits` allows.

    A tile has `pixels` pixels, and a step `channels` input channels.
    """
    sums = tiles * vectors
    begin = f"tvmconv_begin_{instruction.name}_{tiles}x{vectors}_{pixels}x{channels}"
    product = f"tvmconv_{instruction.name}_{tiles}x{vectors}"
    weights = range(sums + tiles, TILES)

    zero = [_call("tilezero", each) for each in range(sums)]
    multiply = [*_addresses("a", tiles, "%a_tile"), *_addresses("b", vectors, LINE_BYTES)]
    multiply += [_call("tileloadd64", sums + tile, f"ptr %a{tile}", "i64 %a_pixel") for tile in range(tiles)]
    for vector in range(vectors):
        weight = weights[vector % len(weights)]
        multiply.append(_call("tileloadd64", weight, f"ptr %b{vector}", f"i64 {vectors * LINE_BYTES}"))
        multiply += [_call(instruction.name, tile * vectors + vector, sums + tile, weight) for tile in range(tiles)]
    store = _addresses("c", tiles, "%c_tile")
    for tile in range(tiles):
        store += [f"%s{tile}_0 = getelementptr i8, ptr %c{tile}, i64 0", *_addresses(f"s{tile}_", vectors, LINE_BYTES)]
        for vector in range(vectors):
            store.append(_call("tilestored64", tile * vectors + vector, f"ptr %s{tile}_{vector}", "i64 %c_pixel"))

    body = {"zero": zero, "multiply": multiply, "store": store}
    config = _config(sums, tiles, pixels, channels // instruction.terms)
    text = [
        DECLARATIONS.format(intrinsic=instruction.intrinsic),
        PERMISSION,
        TASK.format(begin=begin, config="".join(f"\\{byte:02X}" for byte in config)),
        PRODUCT.format(name=product, **{name: "\n".join(f"  {line}" for line in each) for name, each in body.items()}),
    ]
    return TileCode("".join(text), begin, product)


def _call(name: str, first: int, *others: int | str) -> str:
    """Return a call of an intrinsic for a tile register: others are registers, or operands with their types."""
    operands = ", ".join(each if isinstance(each, str) else f"i8 {each}" for each in (first, *others))
    return f"call void @llvm.x86.{name}({operands})"


def _addresses(name: str, count: int, step: int | str) -> list[str]:
    """Return the code of addresses %name1, ... behind %name0, each `step` bytes after the preceding one."""
    return [f"%{name}{each} = getelementptr i8, ptr %{name}{each - 1}, i64 {step}" for each in range(1, count)]


def _config(sums: int, tiles: int, pixels: int, words: int) -> bytes:
    """Return what LDTILECFG reads: the bytes of a row and the rows of each register.

    Registers of sums come first, then tiles of pixels, of so many words of 4 bytes, then the weight's.
    """
    shapes = [(LINE_BYTES, pixels)] * sums + [(4 * words, pixels)] * tiles
    shapes += [(LINE_BYTES, words)] * (TILES - len(shapes))
    line_bytes, rows = zip(*shapes, strict=True)
    return struct.pack("<B15x8H16x8B8x", PALETTE, *line_bytes, *rows)
