"""Convolutions of integers for the tensor cores, each with a configuration, for their serial twins and for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from tests.schedules.cases.tensor import CONFIGS, FIRST, LAST, SHAPES, layer, mma, random_layer, wgmma
from tvmconv.checking.draws import Draw
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED, STORAGE_TYPES
from tvmconv.problem.epilogue import Epilogue
from tvmconv.schedules.cuda.tensor import Config
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.targets import resolve_target

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})

OUTPUTS = ("int8", "uint8", "float32", "int32", "float16")
"""The types of outputs that shapes have in turn."""

ZERO_POINTS = {"int8": (0, -128, 127, 5), "uint8": (0, 255, 128, 3)}
"""Zero points that are tried of each type, the extreme ones among them."""

Case = tuple[Problem, Config]


def _in_all_types() -> Iterator[tuple[str, Case]]:
    for number, (name, (x, w, layouts, options)) in enumerate(SHAPES.items()):
        dtype, out_dtype = QUANTIZED[number % 2], OUTPUTS[number % len(OUTPUTS)]
        points: dict[str, Any] = {"x_zero_point": ZERO_POINTS[dtype][number // 2 % 4]}
        if out_dtype in QUANTIZED:
            points["out_zero_point"] = ZERO_POINTS[out_dtype][number // 3 % 4]
        kept = {"stride", "padding", "dilation", "groups"} if out_dtype == "int32" else options.keys()
        options = {key: options[key] for key in options.keys() & kept}
        options |= {} if out_dtype == "int32" else {"scale": True}
        problem = layer(x, w, dtype, layouts, out_dtype=out_dtype, **points, **options)
        legal = tensor.constraints(problem, SM_90).values()
        for family, configs in zip(("", "-wgmma"), zip(*CONFIGS, strict=True), strict=True):
            in_turn = configs[number % len(configs) :] + configs
            config = next(config for config in in_turn if all(holds(config) for holds in legal))
            yield f"{name}-{dtype}-to-{out_dtype}{family}", (problem, config)


LARGE = (1, 144, 5, 6), (32, 144, 3, 3)
"""A convolution whose channels are no whole chunks, of 1296 terms."""

INTEGERS: dict[str, Case] = {
    **dict(_in_all_types()),
    "past-the-last-channel": (
        layer(
            *((56, 24, 1, 1), (32, 24, 1, 1), "int8", FIRST),
            x_zero_point=96,
            out_dtype="uint8",
            out_zero_point=119,
            scale=True,
            activation="elu",
        ),
        wgmma(32, 192, 4, 1, channel_rows=True),
    ),
    "128-channels": (layer((2, 128, 7, 9), (64, 128, 3, 3), "int8"), mma(32, 32, 2, 1)),
    "128-channels-wgmma": (layer((2, 128, 7, 9), (64, 128, 3, 3), "uint8"), wgmma(64, 32, 1, 1)),
    "256-channels-1x1": (layer((1, 256, 7, 7), (24, 256, 1, 1), "uint8", FIRST), wgmma(64, 48, 1, 1, 3)),
    "groups": (
        layer((1, 48, 8, 9), (64, 24, 3, 3), "int8", groups=2, x_zero_point=-7),
        mma(32, 32, 2, 1),
    ),
    "groups-split-k": (
        layer((1, 96, 6, 6), (64, 48, 3, 3), "uint8", FIRST, groups=2, x_zero_point=7),
        wgmma(64, 32, 1, 1, 3, split_k=2),
    ),
    "no-padding": (
        layer((1, 64, 6, 6), (32, 64, 3, 3), "uint8", padding=0, x_zero_point=200, out_dtype="float32", scale=True),
        mma(32, 32, 1, 1),
    ),
    "split-k-in-integers": (
        layer(*LARGE, "int8", x_zero_point=3, out_dtype="int8", scale=True, shift=True, residual=True),
        mma(32, 32, 1, 2, 3, split_k=3),
    ),
    "cluster-in-integers": (
        layer(*LARGE, "int8", x_zero_point=3, out_dtype="int8", scale=True, shift=True, residual=True),
        mma(32, 32, 1, 2, 3, split_k=2, in_cluster=True),
    ),
    "one-pixel-of-padding": (
        layer((3, 40, 1, 1), (32, 40, 3, 3), "uint8", LAST, padding=1, x_zero_point=9),
        mma(16, 32, 1, 2),
    ),
    "padding-alone": (
        layer((1, 16, 4, 1), (32, 16, 1, 1), "int8", stride=(1, 2), padding=(0, 1, 0, 0), x_zero_point=5),
        mma(32, 32, 1, 1),
    ),
    "gelu": (
        layer(*LARGE, "int8", out_dtype="uint8", out_zero_point=40, scale=True, activation="gelu"),
        wgmma(64, 32, 1, 1),
    ),
}
"""Convolutions of integers in all layouts, into outputs of all types."""


def random_integers(draw: Draw) -> Problem:
    """Return a random convolution of integers, with an output of a random type."""
    workload = random_layer(draw, "float16").workload
    dtype, out_dtype = draw.of(QUANTIZED), draw.of(tuple(STORAGE_TYPES))
    activation = draw.of((None, "relu", ("clip", -20.0, 60.5)))
    epilogue = Epilogue.of(activation, draw.chance(0.8), draw.chance(0.5), workload.epilogue.residual)
    if out_dtype in QUANTIZED:
        epilogue = msgspec.structs.replace(epilogue, zero_point=draw.of(ZERO_POINTS[out_dtype]))
    return Problem(
        msgspec.structs.replace(
            workload,
            dtype=dtype,
            out_dtype=out_dtype,
            x_zero_point=draw.of(ZERO_POINTS[dtype]),
            epilogue=Epilogue() if out_dtype == "int32" else epilogue,
        )
    )


Exact = tuple[Problem, dict[str, np.ndarray], np.ndarray]
"""A convolution, operands without an output, and what they have to give, without any error."""


def long_sums(dtype: str, value: int, zero_point: int) -> Exact:
    """Return a convolution whose sums, of 57,600 terms where padding is none, are near 2^31."""
    problem = layer((1, 6400, 3, 3), (32, 6400, 3, 3), dtype, x_zero_point=zero_point)
    (x, _), (w, _), (output, _) = problem.workload.operands.values()
    taps = np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]])
    expected = np.broadcast_to((6400 * taps * (value - zero_point) * -128)[None, :, :, None], output)
    return problem, {"x": np.full(x, value, dtype), "w": np.full(w, -128, np.int8)}, expected


MIDDLES = (-300.5, -128.5, -127.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 128.5, 254.5, 255.5, 256.5)
"""Numbers in the middle between integers, some past what types hold."""


def middles(out_dtype: str, zero_point: int) -> Exact:
    """Return a convolution of zeros whose shift is rounded: to even, and then the zero point is added."""
    numbers = (*MIDDLES, np.nan, np.inf, -np.inf, 1e30, -1e30, 0.49999997, -0.49999997, 2.5000002, 3.0)
    options = {"out_dtype": out_dtype, "out_zero_point": zero_point, "shift": True}
    problem = layer((1, 16, 1, 2), (32, 16, 1, 1), "int8", **options)
    shift = np.resize(np.array(numbers, np.float32), 32)
    low, high = np.iinfo(out_dtype).min, np.iinfo(out_dtype).max
    rounded = np.rint(np.where(np.isnan(shift), -np.inf, shift).astype(np.float64))
    expected = np.broadcast_to(np.clip(rounded + zero_point, low, high), (1, 1, 2, 32))
    return (
        problem,
        {"x": np.zeros((1, 1, 2, 16), "int8"), "w": np.zeros((32, 1, 1, 16), "int8"), "shift": shift},
        expected,
    )


EXACT: dict[str, Callable[[], Exact]] = {
    **{
        f"long-{dtype}-{value}-{zero_point}": partial(long_sums, dtype, value, zero_point)
        for dtype, value, zero_point in (("int8", -128, 0), ("int8", -128, 127), ("uint8", 255, 0), ("uint8", 0, 255))
    },
    **{
        f"middles-{out_dtype}-{zero_point}": partial(middles, out_dtype, zero_point)
        for out_dtype in QUANTIZED
        for zero_point in (0, 1)
    },
}
