"""TE definitions of the convolutions, each beside its float64 NumPy reference."""

from .depthwise import depthwise
from .depthwise_bands import depthwise_bands
from .depthwise_dot import depthwise_dot
from .depthwise_planes import depthwise_planes
from .depthwise_rows import depthwise_rows
from .direct import direct
from .dot import dot
from .fragments import FragmentTile
from .functions import without_approximations
from .grouped_tiles import grouped_tiles
from .im2win import im2win
from .implicit_gemm import implicit_gemm
from .input_gradient import input_gradient, input_gradient_reference, phase_sizes, phases, window_shape
from .matvec import matvec
from .open_sizes import with_open_sizes, with_sizes
from .pointwise import pointwise
from .reference import conv2d_reference, from_logical, to_logical
from .shallow_tiles import shallow_tiles
from .sparse import sparse
from .sparse_rows import band_pitch, sparse_rows
from .tensor_gemm import TensorForm, tensor_gemm
from .tensor_winograd import tensor_winograd
from .weight_gradient import (
    Bands,
    Shares,
    Tiles,
    folds,
    weight_gradient_in_rows,
    weight_gradient_in_tiles,
    weight_gradient_reference,
)
from .weight_gradient_diagonals import DiagonalTiles, weight_gradient_on_diagonals
from .weight_gradient_nhwc import ChannelTiles, weight_gradient_in_channels
from .weight_gradient_planes import PlaneTiles, weight_gradient_in_planes
from .winograd import WinogradTile, winograd

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
