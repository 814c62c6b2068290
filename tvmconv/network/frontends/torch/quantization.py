"""Quantization and dequantization in programs of torch, as PT2E leaves them: `torch.ops.quantized_decomposed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tvm import relax

from ...sites.quantized import parameter_problem
from .types import relax_dtype

Parameter = Callable[[Any], Any]
"""A function that returns the number or the array that an argument of a node is; None where it is computed."""

OPERATORS = (
    "dequantize_per_channel.default",
    "dequantize_per_tensor.default",
    "dequantize_per_tensor.tensor",
    "quantize_per_channel.default",
    "quantize_per_tensor.default",
    "quantize_per_tensor.tensor",
)


def convert(builder: relax.BlockBuilder, x: relax.Expr, node: torch.fx.Node, parameter: Parameter) -> relax.Expr:
    """Return a node's tensor quantized or dequantized; raise `ValueError` where its parameters make no sense.

    For integers in a part of their type's range, as of 7 bits, numbers are clipped before they are quantized.
    """
    name, _ = str(node.target.__name__).split(".")
    values = dict(zip((each.name for each in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    per_channel, quantizes = name.endswith("per_channel"), name.startswith("quantize")
    scales, points = ("scales", "zero_points") if per_channel else ("scale", "zero_point")
    scale, point = parameter(values[scales]), parameter(values[points])
    if scale is None or (point is None and values[points] is not None):
        raise ValueError("its scale or zero point is known only when the model runs")
    scale = np.asarray(scale, np.float32)
    point = np.zeros(scale.shape, np.int32) if point is None else np.asarray(point, np.int32)
    dtype, axis = relax_dtype(values["dtype"]), int(values["axis"]) if per_channel else 0
    shape = node.args[0].meta["val"].shape
    size = int(shape[axis]) if per_channel else 1
    operands = relax.const(scale), relax.const(point)
    if problem := parameter_problem(*operands, dtype, size, "output" if quantizes else "input"):
        raise ValueError(problem)
    if not quantizes:
        wanted = relax_dtype(node.meta["val"].dtype)
        y = builder.emit(relax.op.dequantize(x, *operands, axis, "float32"))
        return y if wanted == "float32" else relax.op.astype(y, wanted)
    if str(x.ty.dtype) != "float32":
        x = builder.emit(relax.op.astype(x, "float32"))
    least, largest = int(values["quant_min"]), int(values["quant_max"])
    limits = np.iinfo(dtype)
    if (least, largest) != (limits.min, limits.max):
        if per_channel:
            raise ValueError(
                f"its channels go from {least} to {largest}, and {dtype} from {limits.min} to {limits.max}"
            )
        low, high = ((bound - int(point)) * float(scale) for bound in (least, largest))
        x = builder.emit(relax.op.clip(x, low, high))
    return relax.op.quantize(x, *operands, axis, dtype)
