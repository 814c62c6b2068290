"""Lowering: from a selected schedule to machine code."""

from .kept import bitcode, declare, from_bitcode, kept_function, name_for
from .kernels import (
    KERNEL_NAME,
    Folded,
    Kernel,
    build_function,
    build_kernel,
    build_twin,
    build_twin_function,
    fold,
    lower,
)
from .launches import machine_code
from .modules import build
from .open_sizes.divisions import with_nonnegative_dividends
from .open_sizes.planes import MAX_TILES
from .open_sizes.ranges import MAX_BYTES, RangeFunction, join, limited
from .signatures import OPAQUE, as_scheduled, given_in_channels_last, is_scheduled, with_alignment, with_launch_bounds
from .subtensors import Interleaved, Span, Subtensor, with_subtensors

__all__ = [
    "KERNEL_NAME",
    "MAX_BYTES",
    "MAX_TILES",
    "OPAQUE",
    "Folded",
    "Interleaved",
    "Kernel",
    "RangeFunction",
    "Span",
    "Subtensor",
    "as_scheduled",
    "bitcode",
    "build",
    "build_function",
    "build_kernel",
    "build_twin",
    "build_twin_function",
    "declare",
    "fold",
    "from_bitcode",
    "given_in_channels_last",
    "is_scheduled",
    "join",
    "kept_function",
    "limited",
    "lower",
    "machine_code",
    "name_for",
    "with_alignment",
    "with_launch_bounds",
    "with_nonnegative_dividends",
    "with_subtensors",
]
