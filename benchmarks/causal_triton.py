"""A causal convolution of sequences in Triton, to measure beside tvmconv's, with bias and SiLU in the same kernel.

A program sums a tile of channels and elements in float32, and loads it once for each tap, mostly from a cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton import language as tl

TILES = [(1, 1024), (1, 2048), (4, 512), (64, 32), (128, 16), (256, 8)]
"""Channels and elements of a tile: long ones for elements that follow each other in memory, wide ones for channels."""


@triton.autotune(
    [triton.Config({"tile_d": wide, "tile_l": long}, num_warps=warps) for wide, long in TILES for warps in (4, 8)],
    key=["d_stride", "l_stride", "length", "silu"],
)
@triton.jit
def causal(  # type: ignore[no-untyped-def]
    x, w, bias, y, channels, length, b_stride, d_stride, l_stride,
    taps: tl.constexpr, silu: tl.constexpr, tile_d: tl.constexpr, tile_l: tl.constexpr,
):  # fmt: skip
    """Write a tile of y, whose elements lie as those of x."""
    d = tl.program_id(1) * tile_d + tl.arange(0, tile_d)
    element = tl.program_id(0) * tile_l + tl.arange(0, tile_l)
    inside = d < channels
    start = tl.program_id(2).to(tl.int64) * b_stride
    place = start + d[:, None] * d_stride + element[None, :] * l_stride
    total = tl.load(bias + d, inside).to(tl.float32)[:, None] + tl.zeros((tile_d, tile_l), tl.float32)
    for tap in tl.static_range(taps):
        back = taps - 1 - tap
        known = inside[:, None] & (element[None, :] >= back) & (element[None, :] < length)
        factor = tl.load(w + d * taps + tap, inside).to(tl.float32)[:, None]
        total += factor * tl.load(x + place - back * l_stride, known, other=0).to(tl.float32)
    if silu:
        total = total * tl.sigmoid(total)
    tl.store(y + place, total.to(y.dtype.element_ty), inside[:, None] & (element[None, :] < length))


def by_triton(x: Any, w: Any, bias: Any, activation: str | None) -> Any:
    """Return the convolution (B, D, L) of x with w (D, K), plus bias (D,), in the order of x in memory."""
    y = torch.empty_like(x)
    batch, channels, length = x.shape

    def grid(tile: dict[str, Any]) -> tuple[int, int, int]:
        return triton.cdiv(length, tile["tile_l"]), triton.cdiv(channels, tile["tile_d"]), batch

    causal[grid](x, w, bias, y, channels, length, *x.stride(), w.shape[1], activation is not None)
    return y
