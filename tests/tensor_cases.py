"""Convolutions for the tensor cores, each with a configuration, that its serial twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv import ConvWorkload
from tvmconv.checking.draws import Draw
from tvmconv.errors import InvalidArgumentError
from tvmconv.schedules.cuda.tensor import Config


def channels_last(workload: ConvWorkload) -> ConvWorkload:
    """Return the workload with the channels of its operands last in memory."""
    return msgspec.structs.replace(workload, layout="NHWC", w_layout="KRSC", out_layout="NHWC")


def half(x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float16", **options: Any) -> ConvWorkload:
    return channels_last(ConvWorkload.conv2d(x, w, dtype=dtype, **options))


MMA = Config(block_m=32, block_n=32, warps_m=2, warps_n=1, num_stages=2)
WGMMA = Config(block_m=64, block_n=32, warps_m=1, warps_n=1, num_stages=3, wgmma=True)


def mma(block_m: int, block_n: int, warps_m: int, warps_n: int, num_stages: int = 2, **knobs: Any) -> Config:
    return Config(block_m, block_n, warps_m, warps_n, num_stages, **knobs)


def wgmma(block_m: int, block_n: int, warps_m: int, warps_n: int, num_stages: int = 3, **knobs: Any) -> Config:
    return Config(block_m, block_n, warps_m, warps_n, num_stages, wgmma=True, **knobs)


LAYER = half((2, 64, 7, 9), (64, 64, 3, 3))
ONE_CHUNK = half((1, 64, 8, 8), (32, 64, 1, 1))

CASES = {
    "1x1": (half((2, 128, 6, 6), (32, 128, 1, 1), "bfloat16"), MMA),
    "1x1-wgmma": (half((2, 128, 6, 6), (32, 128, 1, 1)), WGMMA),
    "3x3": (LAYER, MMA),
    "3x3-wgmma": (LAYER, WGMMA),
    "one-chunk": (ONE_CHUNK, mma(32, 32, 1, 1)),
    "one-chunk-wgmma": (ONE_CHUNK, WGMMA),
    "one-pixel": (half((1, 64, 1, 1), (32, 64, 3, 3), "bfloat16"), mma(16, 32, 1, 2)),
    "row": (half((1, 16, 1, 50), (16, 16, 1, 5)), mma(16, 16, 1, 1)),
    "odd-sizes": (half((3, 32, 7, 5), (24, 32, 5, 2)), mma(32, 16, 1, 1)),
    "stride-2": (half((2, 64, 9, 10), (32, 64, 3, 3), "bfloat16", stride=2), WGMMA),
    "stride-2x1-1x1": (half((1, 64, 9, 9), (64, 64, 1, 1), stride=(2, 1), padding=0), mma(32, 64, 1, 2)),
    "stride-over-kernel": (half((1, 24, 11, 11), (16, 24, 2, 2), stride=3, padding=0), mma(16, 16, 1, 1, 3)),
    "dilation": (half((1, 40, 12, 9), (32, 40, 3, 3), dilation=(2, 3)), WGMMA),
    "dilation-stride-2": (half((1, 64, 12, 9), (32, 64, 3, 3), dilation=2, stride=2), MMA),
    "asymmetric-padding": (half((1, 32, 6, 7), (32, 32, 3, 3), padding=(0, 1, 2, 3)), MMA),
    "padding-past-kernel": (half((1, 64, 3, 3), (32, 64, 3, 3), padding=5), WGMMA),
    "groups": (half((1, 48, 8, 9), (64, 24, 3, 3), "bfloat16", groups=2), MMA),
    "groups-wgmma": (half((2, 256, 5, 5), (128, 64, 1, 1), groups=4), WGMMA),
    "groups-in-tiles": (half((1, 128, 6, 6), (96, 64, 3, 3), groups=2), mma(64, 16, 2, 1, 4)),
    "groups-split-k": (half((1, 48, 6, 6), (64, 24, 3, 3), groups=2), wgmma(64, 32, 1, 1, 3, split_k=2)),
    "8-channels": (half((1, 8, 9, 9), (32, 8, 3, 3)), WGMMA),
    "8-channels-7x7-stride-2": (half((1, 8, 21, 21), (32, 8, 7, 7), "bfloat16", stride=2), mma(32, 32, 1, 2, 3)),
    "24-channels": (half((2, 24, 7, 7), (32, 24, 3, 3), "bfloat16"), WGMMA),
    "40-channels": (half((1, 40, 7, 7), (32, 40, 3, 3)), mma(32, 32, 2, 1, 3)),
    "72-channels": (half((1, 72, 7, 7), (32, 72, 3, 3)), WGMMA),
    "72-channels-1x1": (half((1, 72, 7, 7), (32, 72, 1, 1), "bfloat16"), MMA),
    "ragged-channels": (half((1, 64, 8, 8), (40, 64, 3, 3)), MMA),
    "ragged-channels-wgmma": (half((1, 64, 8, 8), (72, 64, 1, 1), "bfloat16"), wgmma(64, 64, 1, 1)),
    "ragged-pixels-and-channels": (half((3, 24, 5, 7), (56, 24, 3, 3)), wgmma(64, 32, 1, 1, 4)),
    "split-k": (LAYER, mma(32, 32, 2, 1, 2, split_k=3)),
    "split-k-wgmma": (LAYER, wgmma(64, 64, 1, 1, 4, split_k=3)),
    "split-k-epilogue": (
        half((1, 64, 6, 7), (40, 64, 3, 3), "bfloat16", scale=True, shift=True, residual=True, activation="relu"),
        mma(32, 32, 1, 2, 3, split_k=2),
    ),
    "four-warps": (LAYER, mma(64, 64, 2, 2, 3)),
    "warps-along-channels": (LAYER, mma(16, 128, 1, 4)),
    "warps-along-pixels": (LAYER, mma(128, 32, 4, 1)),
    "large-tiles": (LAYER, mma(128, 64, 2, 2, 4)),
    "two-groups-of-warps": (LAYER, wgmma(128, 32, 2, 1, 4)),
    "groups-of-warps-along-channels": (LAYER, wgmma(64, 64, 1, 2, 5)),
    "tiles-of-a-group-of-warps": (LAYER, wgmma(128, 64, 1, 1, 3)),
    "many-stages": (LAYER, mma(32, 32, 2, 1, 7)),
    "many-stages-wgmma": (LAYER, wgmma(64, 32, 1, 1, 8)),
    "as-many-chunks-as-stages": (half((1, 64, 6, 6), (32, 64, 1, 3)), wgmma(64, 32, 1, 1, 5)),
    "room-for-more": (LAYER, mma(64, 64, 2, 2, 3, min_blocks_per_sm=3)),
    "scale-shift-relu": (half((1, 32, 8, 8), (32, 32, 3, 3), scale=True, shift=True, activation="relu"), MMA),
    "residual-relu6": (half((2, 32, 5, 7), (40, 32, 1, 1), residual=True, activation="relu6"), WGMMA),
    "clip": (half((1, 32, 5, 7), (32, 32, 3, 3), "bfloat16", shift=True, activation=("clip", -0.5, 1.5)), WGMMA),
    "batch-33": (half((33, 16, 3, 3), (16, 16, 3, 3)), mma(64, 16, 2, 1, 3)),
}

NOTHING_READ = half((1, 8, 4, 1), (32, 8, 1, 1), stride=(1, 2), padding=(0, 1, 0, 0), shift=True)
"""A convolution whose outputs read padding alone: TVM finds that its input is not needed, and there are no copies."""


def random_layer(draw: Draw, dtype: str) -> ConvWorkload:
    """Return a random convolution whose channels fill copies and, with several groups, tiles."""
    groups = draw.of((1, 1, 1, 2, 3))
    outputs = 8 * draw.logarithmic(1, 24) if groups == 1 else 16 * draw.logarithmic(1, 6)
    inputs = 8 * draw.logarithmic(1, 24)
    while True:
        x = draw.logarithmic(1, 4), groups * inputs, draw.logarithmic(1, 24), draw.logarithmic(1, 24)
        try:
            return half(
                x,
                (groups * outputs, inputs, *draw.pair(1, draw.of((1, 3, 5)))),
                dtype,
                stride=draw.pair(1, 3),
                padding=tuple(draw.uniform(0, 3) for _ in range(4)),
                dilation=draw.pair(1, draw.of((1, 1, 3))),
                groups=groups,
                scale=draw.chance(0.3),
                shift=draw.chance(0.4),
                residual=draw.chance(0.3),
                activation=draw.of((None, "relu", "relu6", ("clip", -0.5, 1.5))),
            )
        except InvalidArgumentError:  # a window that is larger than the image
            continue
