"""The operators of ONNX that tvmconv converts itself, because Relax's importer lacks them or gets them wrong."""

from __future__ import annotations

from .onnx_convolution import conv_transpose
from .onnx_elementwise import (
    add_up,
    bit_shift,
    dropout,
    elu,
    is_inf,
    mish,
    modulo,
    one_hot,
    power,
    prelu,
    selu,
    sign,
    softplus,
    thresholded_relu,
)
from .onnx_node import Converter
from .onnx_normalization import group_normalization, layer_normalization, rms_normalization
from .onnx_pooling import average_pool, lp_pool, max_pool
from .onnx_quantization import dequantize_linear, dynamic_quantize_linear, quantize_linear
from .onnx_reductions import REDUCTIONS, reduction
from .onnx_resize import grid_sample, resize, upsample

CONVERTERS: dict[str, Converter] = {
    **{operator: reduction(how) for operator, how in REDUCTIONS.items()},
    "AveragePool": average_pool,
    "BitShift": bit_shift,
    "ConvTranspose": conv_transpose,
    "DequantizeLinear": dequantize_linear,
    "Dropout": dropout,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "Elu": elu,
    "GridSample": grid_sample,
    "GroupNormalization": group_normalization,
    "IsInf": is_inf,
    "LayerNormalization": layer_normalization,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "Mish": mish,
    "Mod": modulo,
    "OneHot": one_hot,
    "PRelu": prelu,
    "Pow": power,
    "QuantizeLinear": quantize_linear,
    "RMSNormalization": rms_normalization,
    "Resize": resize,
    "Selu": selu,
    "Sign": sign,
    "Softplus": softplus,
    "Sum": add_up,
    "ThresholdedRelu": thresholded_relu,
    "Upsample": upsample,
}
