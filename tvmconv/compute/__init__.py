"""TE definitions of the convolutions, each beside its float64 NumPy reference."""

from .dense.direct import direct
from .dense.dot import dot
from .dense.im2win import im2win
from .dense.implicit_gemm import implicit_gemm
from .dense.matvec import matvec
from .dense.pointwise import pointwise
from .dense.sparse import band_pitch, sparse, sparse_rows
from .dense.winograd import WinogradTile, winograd
from .depthwise import depthwise, depthwise_rows
from .depthwise.bands import depthwise_bands
from .depthwise.dot import depthwise_dot
from .depthwise.planes import depthwise_planes
from .functions import without_approximations
from .gradients.input import input_gradient, input_gradient_reference, phase_sizes, phases, window_shape
from .gradients.weight import (
    Bands,
    Shares,
    Tiles,
    folds,
    weight_gradient_in_rows,
    weight_gradient_in_tiles,
    weight_gradient_reference,
)
from .gradients.weight_diagonals import DiagonalTiles, weight_gradient_on_diagonals
from .gradients.weight_nhwc import ChannelTiles, weight_gradient_in_channels
from .gradients.weight_planes import PlaneTiles, weight_gradient_in_planes
from .open_sizes import with_open_sizes, with_sizes
from .reference import conv2d_reference, from_logical, to_logical
from .tensor.fragments import FragmentTile
from .tensor.gemm import TensorForm, tensor_gemm
from .tensor.grouped_tiles import grouped_tiles
from .tensor.shallow_tiles import shallow_tiles
from .tensor.winograd import tensor_winograd

__all__ = [
    "Bands",
    "ChannelTiles",
    "DiagonalTiles",
    "FragmentTile",
    "PlaneTiles",
    "Shares",
    "TensorForm",
    "Tiles",
    "WinogradTile",
    "band_pitch",
    "conv2d_reference",
    "depthwise",
    "depthwise_bands",
    "depthwise_dot",
    "depthwise_planes",
    "depthwise_rows",
    "direct",
    "dot",
    "folds",
    "from_logical",
    "grouped_tiles",
    "im2win",
    "implicit_gemm",
    "input_gradient",
    "input_gradient_reference",
    "matvec",
    "phase_sizes",
    "phases",
    "pointwise",
    "shallow_tiles",
    "sparse",
    "sparse_rows",
    "tensor_gemm",
    "tensor_winograd",
    "to_logical",
    "weight_gradient_in_channels",
    "weight_gradient_in_planes",
    "weight_gradient_in_rows",
    "weight_gradient_in_tiles",
    "weight_gradient_on_diagonals",
    "weight_gradient_reference",
    "window_shape",
    "winograd",
    "with_open_sizes",
    "with_sizes",
    "without_approximations",
]
