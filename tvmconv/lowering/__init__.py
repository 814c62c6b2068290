"""Lowering: from a selected schedule to machine code."""

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
from .signatures import OPAQUE, as_scheduled, with_alignment

__all__ = [
    "KERNEL_NAME",
    "OPAQUE",
    "Folded",
    "Kernel",
    "as_scheduled",
    "build",
    "build_function",
    "build_kernel",
    "build_twin",
    "build_twin_function",
    "fold",
    "lower",
    "machine_code",
    "with_alignment",
]
