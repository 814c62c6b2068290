"""The operators of ONNX that tvmconv converts itself, because Relax's importer lacks them or gets them wrong."""

from __future__ import annotations

from ..node import Converter
from .convolution import conv, conv_transpose
from .einsum import einsum
from .elementwise import (
    add_up,
    bit_shift,
    dropout,
    elu,
    is_inf,
    mish,
    modulo,
    power,
    prelu,
    selu,
    sign,
    softplus,
    thresholded_relu,
)
from .grid_sampling import grid_sample
from .indexing import gather, gather_elements, gather_nd, one_hot, scatter_elements, scatter_nd, top_k
from .normalization import group_normalization, layer_normalization, rms_normalization
from .pooling import lp_pool, maximum_pool, mean_pool
from .quantization import dequantize_linear, dynamic_quantize_linear, quantize_linear
from .recurrent import dynamic_quantize_lstm, recurrent
from .reductions import REDUCTIONS, reduction
from .resize import resize, upsample
from .shapes import constant_of_shape, expand, pad, range_, reshape, slice_, split, squeeze, tile, unsqueeze

CONVERTERS: dict[str, Converter] = {
    **{operator: reduction(how) for operator, how in REDUCTIONS.items()},
    "AveragePool": mean_pool,
    "BitShift": bit_shift,
    "ConstantOfShape": constant_of_shape,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DequantizeLinear": dequantize_linear,
    "Dropout": dropout,
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "Einsum": einsum,
    "Elu": elu,
    "Expand": expand,
    "GRU": recurrent("gru"),
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GridSample": grid_sample,
    "GroupNormalization": group_normalization,
    "IsInf": is_inf,
    "LayerNormalization": layer_normalization,
    "LSTM": recurrent("lstm"),
    "LpPool": lp_pool,
    "MaxPool": maximum_pool,
    "Mish": mish,
    "Mod": modulo,
    "OneHot": one_hot,
    "PRelu": prelu,
    "Pad": pad,
    "Pow": power,
    "QuantizeLinear": quantize_linear,
    "RNN": recurrent("rnn"),
    "RMSNormalization": rms_normalization,
    "Range": range_,
    "Reshape": reshape,
    "Resize": resize,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Selu": selu,
    "Sign": sign,
    "Slice": slice_,
    "Softplus": softplus,
    "Split": split,
    "Squeeze": squeeze,
    "Sum": add_up,
    "ThresholdedRelu": thresholded_relu,
    "Tile": tile,
    "TopK": top_k,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
}
