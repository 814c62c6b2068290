"""Convolutions for the tensor cores, each with a configuration, that its serial twin and a GPU have to get right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tvmconv import ConvWorkload
from tvmconv.checking.draws import Draw
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.schedules.cuda.tensor import Config


class Layouts(NamedTuple):
    """The layouts of a convolution's operands."""

    layout: str
    w_layout: str
    out_layout: str


LAST, FIRST = Layouts("NHWC", "KRSC", "NHWC"), Layouts("NCHW", "KCRS", "NCHW")
"""The channels of all operands last in memory, or first."""


def layer(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: str = "float16",
    layouts: Layouts = LAST,
    precision: str = DEFAULT,
    **options: Any,
) -> Problem:
    workload = ConvWorkload.conv2d(x, w, dtype=dtype, **options)
    return Problem(msgspec.structs.replace(workload, **layouts._asdict()), precision=precision)


MMA = Config(block_m=32, block_n=32, warps_m=2, warps_n=1, num_stages=2)
WGMMA = Config(block_m=64, block_n=32, warps_m=1, warps_n=1, num_stages=3, wgmma=True)


def mma(block_m: int, block_n: int, warps_m: int, warps_n: int, num_stages: int = 2, **knobs: Any) -> Config:
    return Config(block_m, block_n, warps_m, warps_n, num_stages, **knobs)


def wgmma(block_m: int, block_n: int, warps_m: int, warps_n: int, num_stages: int = 3, **knobs: Any) -> Config:
    return Config(block_m, block_n, warps_m, warps_n, num_stages, wgmma=True, **knobs)


LAYER = layer((2, 64, 7, 9), (64, 64, 3, 3))
ONE_CHUNK = layer((1, 64, 8, 8), (32, 64, 1, 1))

CASES = {
    "1x1": (layer((2, 128, 6, 6), (32, 128, 1, 1), "bfloat16"), MMA),
    "1x1-wgmma": (layer((2, 128, 6, 6), (32, 128, 1, 1)), WGMMA),
    "3x3": (LAYER, MMA),
    "3x3-wgmma": (LAYER, WGMMA),
    "one-chunk": (ONE_CHUNK, mma(32, 32, 1, 1)),
    "one-chunk-wgmma": (ONE_CHUNK, WGMMA),
    "one-pixel": (layer((1, 64, 1, 1), (32, 64, 3, 3), "bfloat16"), mma(16, 32, 1, 2)),
    "row": (layer((1, 16, 1, 50), (16, 16, 1, 5)), mma(16, 16, 1, 1)),
    "odd-sizes": (layer((3, 32, 7, 5), (24, 32, 5, 2)), mma(32, 16, 1, 1)),
    "stride-2": (layer((2, 64, 9, 10), (32, 64, 3, 3), "bfloat16", stride=2), WGMMA),
    "stride-2x1-1x1": (layer((1, 64, 9, 9), (64, 64, 1, 1), stride=(2, 1), padding=0), mma(32, 64, 1, 2)),
    "stride-over-kernel": (layer((1, 24, 11, 11), (16, 24, 2, 2), stride=3, padding=0), mma(16, 16, 1, 1, 3)),
    "dilation": (layer((1, 40, 12, 9), (32, 40, 3, 3), dilation=(2, 3)), WGMMA),
    "dilation-stride-2": (layer((1, 64, 12, 9), (32, 64, 3, 3), dilation=2, stride=2), MMA),
    "asymmetric-padding": (layer((1, 32, 6, 7), (32, 32, 3, 3), padding=(0, 1, 2, 3)), MMA),
    "padding-past-kernel": (layer((1, 64, 3, 3), (32, 64, 3, 3), padding=5), WGMMA),
    "groups": (layer((1, 48, 8, 9), (64, 24, 3, 3), "bfloat16", groups=2), MMA),
    "groups-wgmma": (layer((2, 256, 5, 5), (128, 64, 1, 1), groups=4), WGMMA),
    "groups-in-tiles": (layer((1, 128, 6, 6), (96, 64, 3, 3), groups=2), mma(64, 16, 2, 1, 4)),
    "groups-split-k": (layer((1, 48, 6, 6), (64, 24, 3, 3), groups=2), wgmma(64, 32, 1, 1, 3, split_k=2)),
    "8-channels": (layer((1, 8, 9, 9), (32, 8, 3, 3)), WGMMA),
    "8-channels-7x7-stride-2": (layer((1, 8, 21, 21), (32, 8, 7, 7), "bfloat16", stride=2), mma(32, 32, 1, 2, 3)),
    "24-channels": (layer((2, 24, 7, 7), (32, 24, 3, 3), "bfloat16"), WGMMA),
    "40-channels": (layer((1, 40, 7, 7), (32, 40, 3, 3)), mma(32, 32, 2, 1, 3)),
    "72-channels": (layer((1, 72, 7, 7), (32, 72, 3, 3)), WGMMA),
    "72-channels-1x1": (layer((1, 72, 7, 7), (32, 72, 1, 1), "bfloat16"), MMA),
    "ragged-channels": (layer((1, 64, 8, 8), (40, 64, 3, 3)), MMA),
    "ragged-channels-wgmma": (layer((1, 64, 8, 8), (72, 64, 1, 1), "bfloat16"), wgmma(64, 64, 1, 1)),
    "ragged-pixels-and-channels": (layer((3, 24, 5, 7), (56, 24, 3, 3)), wgmma(64, 32, 1, 1, 4)),
    "split-k": (LAYER, mma(32, 32, 2, 1, 2, split_k=3)),
    "split-k-wgmma": (LAYER, wgmma(64, 64, 1, 1, 4, split_k=3)),
    "split-k-epilogue": (
        layer((1, 64, 6, 7), (40, 64, 3, 3), "bfloat16", scale=True, shift=True, residual=True, activation="relu"),
        mma(32, 32, 1, 2, 3, split_k=2),
    ),
    "split-k-in-planes": (
        layer((3, 64, 5, 7), (40, 64, 3, 3), layouts=FIRST, shift=True, residual=True),
        wgmma(64, 32, 1, 1, 3, split_k=2),
    ),
    "cluster": (LAYER, mma(32, 32, 2, 1, 2, split_k=2, in_cluster=True)),
    "cluster-wgmma": (LAYER, wgmma(64, 64, 1, 1, 4, split_k=2, in_cluster=True)),
    "cluster-of-four": (layer((1, 256, 6, 6), (32, 256, 1, 1)), wgmma(64, 32, 1, 1, 3, split_k=4, in_cluster=True)),
    "cluster-and-groups": (
        layer((1, 48, 6, 6), (64, 24, 3, 3), groups=2),
        wgmma(64, 32, 1, 1, 3, split_k=2, in_cluster=True),
    ),
    "cluster-epilogue": (
        layer((1, 64, 6, 7), (40, 64, 3, 3), "bfloat16", scale=True, shift=True, residual=True, activation="relu"),
        mma(32, 32, 1, 2, 3, split_k=2, in_cluster=True),
    ),
    "cluster-in-planes": (
        layer((2, 512, 5, 5), (64, 512, 1, 1), layouts=FIRST, shift=True),
        wgmma(64, 64, 1, 1, 3, split_k=8, in_cluster=True),
    ),
    "cluster-float32": (
        layer((1, 32, 9, 7), (48, 32, 3, 3), "float32"),
        wgmma(64, 32, 1, 1, 2, split_k=2, in_cluster=True),
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
    "as-many-chunks-as-stages": (layer((1, 64, 6, 6), (32, 64, 1, 3)), wgmma(64, 32, 1, 1, 5)),
    "room-for-more": (LAYER, mma(64, 64, 2, 2, 3, min_blocks_per_sm=3)),
    "scale-shift-relu": (layer((1, 32, 8, 8), (32, 32, 3, 3), scale=True, shift=True, activation="relu"), MMA),
    "residual-relu6": (layer((2, 32, 5, 7), (40, 32, 1, 1), residual=True, activation="relu6"), WGMMA),
    "clip": (layer((1, 32, 5, 7), (32, 32, 3, 3), "bfloat16", shift=True, activation=("clip", -0.5, 1.5)), WGMMA),
    "sums-over-chunks": (LAYER, mma(64, 48, 2, 1, 2)),
    "sums-over-chunks-float32": (layer((1, 16, 7, 9), (40, 16, 3, 3), "float32"), wgmma(64, 64, 1, 1, 2)),
    "sums-over-chunks-in-planes": (
        layer((1, 8, 7, 9), (36, 8, 3, 3), "float32", FIRST, "tf32"),
        wgmma(64, 128, 1, 1, 2),
    ),
    "three-groups-of-warps": (LAYER, wgmma(192, 64, 3, 1, 3)),
    "rounded-ahead": (
        layer((2, 40, 7, 5), (32, 40, 3, 3), "float32", precision="tf32"),
        wgmma(64, 32, 1, 1, 4, rounds_input=True),
    ),
    "batch-33": (layer((33, 16, 3, 3), (16, 16, 3, 3)), mma(64, 16, 2, 1, 3)),
    "channel-rows": (LAYER, wgmma(40, 64, 1, 1, 4, channel_rows=True)),
    "channel-rows-of-two-groups-of-warps": (
        layer((3, 48, 5, 7), (120, 48, 3, 3), "bfloat16", scale=True, shift=True, activation="relu"),
        wgmma(48, 128, 1, 2, 3, channel_rows=True),
    ),
    "channel-rows-residual": (
        layer((1, 64, 6, 7), (72, 64, 1, 1), shift=True, residual=True),
        wgmma(32, 128, 2, 1, 3, channel_rows=True),
    ),
    "channel-rows-split-k": (LAYER, wgmma(24, 64, 1, 1, 3, split_k=3, channel_rows=True)),
    "channel-rows-cluster": (LAYER, wgmma(32, 64, 1, 1, 3, split_k=2, in_cluster=True, channel_rows=True)),
    "channel-rows-and-groups": (
        layer((2, 256, 5, 5), (144, 64, 3, 3), groups=4),
        wgmma(40, 64, 1, 1, channel_rows=True),
    ),
}

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Layouts, dict[str, Any]]] = {
    "NCHW": ((2, 64, 7, 9), (64, 64, 3, 3), FIRST, {}),
    "NCHW-to-NHWC": ((1, 40, 6, 7), (32, 40, 3, 3), Layouts("NCHW", "KCRS", "NHWC"), {"shift": True}),
    "NHWC-to-NCHW": ((2, 24, 5, 7), (40, 24, 3, 1), Layouts("NHWC", "KRSC", "NCHW"), {"residual": True}),
    "KCRS": ((1, 32, 6, 7), (32, 32, 3, 3), Layouts("NHWC", "KCRS", "NHWC"), {"activation": "relu"}),
    "KRSC": ((1, 48, 7, 5), (48, 48, 1, 3), Layouts("NCHW", "KRSC", "NCHW"), {"scale": True}),
    "3-channels-7x7": ((1, 3, 20, 21), (32, 3, 7, 7), FIRST, {"stride": 2, "shift": True, "activation": "relu"}),
    "3-channels-7x7-last": ((2, 3, 15, 16), (64, 3, 7, 7), LAST, {"stride": 2}),
    "3-channels-11x11": ((1, 3, 31, 27), (96, 3, 11, 11), FIRST, {"stride": 4, "padding": 2}),
    "3-channels-11x11-last": ((1, 3, 31, 27), (32, 3, 11, 11), LAST, {"stride": 4, "padding": 2, "shift": True}),
    "2-channels": ((1, 2, 13, 12), (16, 2, 7, 7), FIRST, {}),
    "13-channels": ((1, 13, 9, 8), (24, 13, 3, 3), Layouts("NHWC", "KRSC", "NCHW"), {"dilation": 2}),
    "groups-of-5-channels": ((2, 10, 6, 7), (64, 5, 5, 5), FIRST, {"groups": 2, "shift": True}),
    "groups-of-7-channels-last": ((1, 21, 7, 6), (96, 7, 5, 5), LAST, {"groups": 3, "residual": True}),
    "groups-of-20-outputs": ((1, 48, 6, 7), (60, 16, 3, 3), FIRST, {"groups": 3, "shift": True}),
    "groups-of-12-outputs-last": ((2, 32, 5, 5), (24, 16, 3, 3), LAST, {"groups": 2, "residual": True}),
    "products": ((1, 408, 21, 1), (60, 136, 1, 1), Layouts("NCHW136c", "KRSC", "NCHW20c"), {"groups": 3}),
    "product": ((1, 200, 9, 1), (36, 200, 1, 1), Layouts("NCHW200c", "KRSC", "NCHW36c"), {"activation": "relu"}),
    "20-outputs": ((1, 32, 6, 7), (20, 32, 3, 3), FIRST, {"shift": True, "activation": "relu6"}),
    "20-outputs-last": ((3, 32, 5, 5), (20, 32, 3, 3), LAST, {"residual": True, "activation": "relu"}),
    "4-outputs": ((1, 36, 8, 5), (4, 36, 3, 3), Layouts("NCHW", "KCRS", "NHWC"), {}),
    "epilogue": (
        (3, 24, 5, 5),
        (40, 24, 3, 3),
        FIRST,
        {"scale": True, "shift": True, "residual": True, "activation": ("clip", -0.5, 1.5)},
    ),
    "one-pixel": ((5, 64, 1, 1), (32, 64, 3, 3), FIRST, {"residual": True}),
    "many-images": ((33, 16, 3, 3), (16, 16, 3, 3), FIRST, {"residual": True, "activation": "relu"}),
    "strides-and-padding": (
        (1, 40, 12, 9),
        (32, 40, 3, 2),
        FIRST,
        {"stride": (2, 1), "dilation": (1, 3), "padding": (0, 1, 2, 3)},
    ),
}
"""Convolutions in other layouts, or whose channels do not fill copies, or whose outputs fill stores of four alone."""

KINDS = {"half": ("float16", DEFAULT), "float32": ("float32", "float32"), "tf32": ("float32", "tf32")}
"""The dtypes and precisions, of which each shape is tried in all."""

CONFIGS = (
    (MMA, WGMMA),
    (mma(16, 32, 1, 2, 3), wgmma(64, 16, 1, 1, 4)),
    (mma(32, 16, 1, 1, 2, split_k=2), wgmma(64, 32, 1, 1, 3, split_k=2)),
    (mma(64, 32, 2, 2, 4), wgmma(128, 32, 2, 1, 3)),
)
"""The configurations that shapes have in turn."""


def _in_all_kinds() -> Iterator[tuple[str, tuple[Problem, Config]]]:
    for number, (name, (x, w, layouts, options)) in enumerate(SHAPES.items()):
        for kind, (dtype, precision) in KINDS.items():
            narrow = ("float16", "bfloat16")[number % 2] if kind == "half" else dtype
            for config in CONFIGS[number % len(CONFIGS)]:
                family = "-wgmma" if config.wgmma else ""
                yield f"{name}-{kind}{family}", (layer(x, w, narrow, layouts, precision, **options), config)


IN_ALL_KINDS = dict(_in_all_kinds())


def nothing_read(channels: int, dtype: str, layouts: Layouts) -> Problem:
    """Return a convolution whose outputs read padding alone, in columns."""
    return layer(
        (1, channels, 4, 1), (32, channels, 1, 1), dtype, layouts, stride=(1, 2), padding=(0, 1, 0, 0), shift=True
    )


NOTHING_READ = {
    "channels last": nothing_read(8, "float16", LAST),
    "channels first": nothing_read(8, "bfloat16", FIRST),
    "ragged": nothing_read(3, "float16", LAST),
    "float32": nothing_read(8, "float32", FIRST),
    "between taps": layer(
        (1, 8, 3, 7), (8, 8, 2, 5), layouts=FIRST, stride=(4, 2), padding=(1, 2, 1, 2), dilation=(4, 1)
    ),
}


def one_chunk(problem: Problem, wgmma: bool) -> Config:
    """Return a configuration with as few stages as there can be."""
    stages = 3 if wgmma and problem.workload.dtype != "float32" else 2
    return Config(64, 32, 1 if wgmma else 2, 1, stages, wgmma=wgmma)


def random_layer(draw: Draw, dtype: str, precision: str = DEFAULT) -> Problem:
    """Return a random convolution in random layouts, whose output channels fill stores and, with groups, tiles."""
    groups = draw.of((1, 1, 1, 2, 3))
    outputs = 4 * draw.logarithmic(1, 48) if groups == 1 else 16 * draw.logarithmic(1, 6)
    inputs = 8 * draw.logarithmic(1, 24) if draw.chance(0.5) else draw.logarithmic(2, 96)
    layouts = Layouts(*(draw.of(pair) for pair in zip(LAST, FIRST, strict=True)))
    while True:
        x = draw.logarithmic(1, 4), groups * inputs, draw.logarithmic(1, 24), draw.logarithmic(1, 24)
        try:
            return layer(
                x,
                (groups * outputs, inputs, *draw.pair(1, draw.of((1, 3, 5)))),
                dtype,
                layouts,
                precision,
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


ALL_CASES = CASES | IN_ALL_KINDS
