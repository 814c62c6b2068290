"""Problems and a network with open planes for a GPU, and kernels of them as those of known ones."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx

from tests.open_sizes.batches import EPILOGUE, Open, dense, depthwise
from tests.schedules.cases.nhwc import CASES as DEPTHWISE_NHWC
from tests.schedules.cases.tensor import FIRST, LAST, MMA, WGMMA, layer, mma, wgmma
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.problem import OPEN_SIZES

ASYNCHRONOUS = {"split_k": 1, "num_stages": 3, "asynchronous": True}

GEMMS = {
    "direct": dense((1, 16, 20, 20), (24, 16, 3, 3), knobs={"split_k": 1, "store": 4}, **EPILOGUE),
    "direct-split-k": dense((2, 16, 20, 20), (24, 16, 3, 3), knobs={"split_k": 4, "store": 4}, **EPILOGUE),
    "direct-asynchronous": dense((1, 64, 20, 20), (32, 64, 1, 1), knobs=ASYNCHRONOUS),
    "direct-strided": dense((1, 16, 21, 21), (24, 16, 3, 2), stride=(2, 3), padding=(0, 2, 1, 0), dtype="float16"),
    "direct-groups": dense((3, 16, 12, 12), (64, 8, 3, 3), groups=2, dilation=2, scale=True),
    "im2win": dense((1, 16, 20, 20), (24, 16, 3, 3), "im2win", knobs={"split_k": 1}, **EPILOGUE),
    "im2win-split-k": dense((2, 16, 19, 20), (24, 16, 3, 5), "im2win", knobs={"split_k": 2}, stride=2, padding=1),
    "mma": Open(layer((1, 64, 20, 20), (64, 64, 3, 3), **EPILOGUE), "tensor", config=MMA),
    "wgmma": Open(layer((1, 64, 20, 20), (64, 64, 3, 3), "bfloat16"), "tensor", config=WGMMA),
    "nchw": Open(layer((1, 24, 20, 20), (32, 24, 3, 3), layouts=FIRST, **EPILOGUE), "tensor", config=MMA),
    "tensor-strided": Open(layer((1, 64, 20, 20), (32, 64, 1, 3), stride=2, padding=0), "tensor", config=WGMMA),
    "first": Open(
        layer((1, 3, 20, 20), (32, 3, 5, 3), layouts=FIRST, stride=2, padding=(2, 0, 1, 1)), "tensor", config=MMA
    ),
    "tensor-split-k": Open(
        layer((1, 64, 20, 20), (64, 64, 3, 3), **EPILOGUE), "tensor", config=mma(32, 32, 2, 1, split_k=3)
    ),
    "groups-nchw-split-k": Open(
        layer((1, 48, 6, 6), (64, 24, 3, 3), groups=2, layouts=FIRST), "tensor", config=wgmma(64, 32, 1, 1, split_k=2)
    ),
    "float32": Open(layer((1, 32, 20, 20), (32, 32, 3, 3), "float32", FIRST, **EPILOGUE), "tensor", config=MMA),
    "int8": Open(
        layer((1, 64, 9, 9), (32, 64, 3, 3), "uint8", out_dtype="int8", x_zero_point=7, out_zero_point=3, scale=True),
        "tensor",
        config=MMA,
    ),
    "tf32": Open(layer((1, 32, 20, 20), (32, 32, 3, 3), "float32", LAST, precision="tf32"), "tensor", config=WGMMA),
}

DEPTHWISE = {
    "depthwise": depthwise((2, 6, 56, 56), (6, 1, 3, 3), scale=True, shift=True, activation="relu6"),
    "depthwise-small": depthwise((8, 12, 7, 7), (12, 2, 3, 3), stride=2, dtype="float16"),
    "depthwise-residual": depthwise((1, 8, 14, 14), (8, 1, 5, 5), residual=True, dtype="bfloat16"),
    "depthwise-large": depthwise((1, 4, 28, 28), (4, 1, 11, 11), dilation=2),
}

NHWC = {
    f"nhwc-{name}": Open(problem, "depthwise_nhwc", config=config)
    for name, (problem, config) in DEPTHWISE_NHWC.items()
    if name in ("half", "no-padding", "stride-2")
}

CASES = {name: case._replace(open_sizes=OPEN_SIZES) for name, case in {**GEMMS, **DEPTHWISE, **NHWC}.items()}
CASES["int8-height"] = GEMMS["int8"]._replace(open_sizes=("height",))
CASES["depthwise-rows"] = depthwise(
    (1, 6, 1, 64), (6, 1, 1, 4), padding=(0, 3, 0, 0), shift=True, activation="silu"
)._replace(open_sizes=("batch", "width"))
CASES["int8-width"] = Open(
    layer((1, 44, 5, 12), (4, 44, 5, 5), "int8", LAST, padding=(2, 3, 2, 3), x_zero_point=-9),
    "tensor",
    config=wgmma(64, 16, 1, 1, 5),
    open_sizes=("width",),
)

SIZES = ((1, 5, 13), (3, 4, 8), (1, 1, 1), (2, 3, 43), (1, 50, 4), (1, 11, 11))
"""Batches, heights and widths: just past a tile of 64 pixels, whole vectors, the least, wide, high, just below two."""


def unet(size: tuple[int | str, int | str] = ("height", "width")) -> onnx.ModelProto:
    """Return a model that halves its planes, doubles them, and joins both."""
    graph = Graph(("n", 3, *size))
    wide = graph.node("Relu", graph.conv("x", (8, 3, 3, 3), True, pads=[1, 1, 1, 1]))
    half = graph.node("MaxPool", wide, kernel_shape=[2, 2], strides=[2, 2])
    deep = graph.node("Relu", graph.conv(half, (16, 8, 3, 3), pads=[1, 1, 1, 1]))
    scales = graph.constant([1, 1, 2, 2], "float32")
    double = graph.node("Resize", deep, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    joined = graph.node("Concat", wide, double, axis=1)
    return graph.model(graph.conv(joined, (4, 24, 1, 1)))


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[-1]).standard_normal(shape).astype("float32")


def fitting(case: Open) -> list[ConvWorkload]:
    """Return a case's workload with each of `SIZES` that are open, or its least planes if these are larger."""
    workload = case.problem.workload
    (top, left, bottom, right), window = workload.padding, workload.window
    least = 1, window[0] - top - bottom, window[1] - left - right
    each = (dict(zip(OPEN_SIZES, map(max, sizes, least), strict=True)) for sizes in SIZES)
    return [
        msgspec.structs.replace(workload, **{name: size for name, size in sizes.items() if name in case.open_sizes})
        for sizes in each
    ]
