"""The operators of ONNX that tvmconv converts itself, as Relax's importer has them not or wrong."""

from __future__ import annotations

from functools import reduce

from tvm import relax

from .grid_sampling import MODES, PADDINGS, grid_sample
from .faults import Refused
from .onnx_convolution import conv_transpose
from .onnx_node import Converter, Node
from .onnx_pooling import average_pool, lp_pool, max_pool
from .onnx_resize import resize, upsample


def add_up(node: Node) -> relax.Expr:
    """Sum, pair by pair, which kernels can take in; Relax's importer would stack all that is to be added."""
    return reduce(lambda x, y: node.builder.normalize(relax.op.add(x, y)), node.operands)


def sample(node: Node) -> relax.Expr:
    """GridSample, of planes and of volumes."""
    mode = node.text("mode", "linear").removeprefix("bi")
    padding = node.text("padding_mode", "zeros")
    if mode not in MODES or padding not in PADDINGS:
        raise Refused(f"the mode {mode} with {padding} is unknown")
    align_corners = bool(node.attributes.get("align_corners", 0))
    return grid_sample(node.builder, *node.operands, mode, padding, align_corners)


CONVERTERS: dict[str, Converter] = {
    "AveragePool": average_pool,
    "ConvTranspose": conv_transpose,
    "GridSample": sample,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "Resize": resize,
    "Sum": add_up,
    "Upsample": upsample,
}
