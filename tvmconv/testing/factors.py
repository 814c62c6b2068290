"""Factors of convolutions that try how exact sums are, and float32 multiply-adds as the yardstick.

Axis 1 of both factors has the channels: of x (N, C, H, W) and w (K, C, R, S), or of matrices whose product is x @ w.T.
A function of `DATA` gets a generator, the shapes of both factors, and the type that they are for; it returns float64.
"""

from __future__ import annotations

from math import floor, log10
from typing import Any

import numpy as np

Factors = tuple[np.ndarray, np.ndarray]
Shape = tuple[int, ...]


def limits(dtype: str) -> np.finfo[Any]:
    """Return the limits of a type's exponents: bfloat16 has those of float32."""
    found: np.finfo[Any] = np.finfo(np.float16 if dtype == "float16" else np.float32)
    return found


def decades(dtype: str) -> int:
    """Return the powers of ten up to which factors of a type go: 30, in float16 3."""
    return floor(0.8 * log10(limits(dtype).max))


def normal(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return normally distributed factors."""
    return rng.standard_normal(x), rng.standard_normal(w)


def positive(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return factors whose sums only grow, so that the errors of rounding toward zero add up."""
    return rng.random(x), rng.random(w)


def wide(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return factors of 1e-30 to 1e30, a power for each channel, whose products are all about 1."""
    reach = decades(dtype)
    factors = normal(rng, x, w, dtype)
    powers = 10 ** rng.uniform(-reach, reach, (x[1], *[1] * len(x[2:])))
    return factors[0] * powers, factors[1] / powers


def scattered(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return factors of 1e-15 to 1e15, with a random exponent for each: a few products outweigh the others."""
    reach = decades(dtype) / 2
    one, other = (each * 10 ** rng.uniform(-reach, reach, each.shape) for each in normal(rng, x, w, dtype))
    return one, other


def with_denormals(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return factors of which half of the channels are denormal in one or the other, beside products of about 1."""
    factors = normal(rng, x, w, dtype)
    for first, factor in enumerate(factors):
        factor[:, first::4] *= float(limits(dtype).smallest_normal) / 128
    return factors


def tiny(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return an x of which most elements are denormal, and a w whose products with it are not."""
    factors = normal(rng, x, w, dtype)
    return factors[0] * float(limits(dtype).smallest_normal), factors[1] * 1024


def with_spike(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return factors of which one element of either is a million times the others, in float16 a thousand times."""
    factors, spike = normal(rng, x, w, dtype), 10 ** min(6, decades(dtype))
    for factor, place in zip(factors, ((5, 7, 5, 5), (11, w[1] // 2, 1, 1)), strict=True):
        factor[tuple(map(min, place, (extent - 1 for extent in factor.shape)))] *= spike
    return factors


DATA = {each.__name__: each for each in (normal, positive, wide, scattered, with_denormals, tiny, with_spike)}


def fma_sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return `x @ w.T` of matrices by fused multiply-adds in float32, one term after the other."""
    sums = np.zeros((len(x), len(w)), np.float32)
    for a, b in zip(x.T.astype(np.float64), w.T.astype(np.float64), strict=True):
        sums = (sums + a[:, None] * b).astype(np.float32)
    return sums


def rounded(array: np.ndarray, bits: int, up: bool = True) -> np.ndarray:
    """Return float32 numbers with `bits` bits behind the point: rounded to nearest, or with `up` false cut off."""
    dropped = 23 - bits
    patterns = array.view(np.uint32) + np.uint32(up << (dropped - 1))
    return np.asarray((patterns & np.uint32(-1 << dropped & 0xFFFFFFFF)).view(np.float32))
