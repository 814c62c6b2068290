"""The operands that are compiled into sparse kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .errors import InvalidArgumentError

COMPILED_IN = ("w", "scale", "shift")
"""Names of the operands of a workload that its sparse kernels have in them."""

Constants = Mapping[str, np.ndarray]
"""The constants of a workload, by name: w of the shape `workload.w_shape`, scale and shift (K,)."""


def constants_of(operands: Mapping[str, np.ndarray]) -> Constants:
    """Return those of a workload's operands that are compiled in."""
    return {name: operands[name] for name in COMPILED_IN if name in operands}


def sparsity_of(weight: np.ndarray) -> float:
    """Return the share of zeros."""
    return 1 - float(np.count_nonzero(weight) / weight.size)


def require_finite(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array; raise `InvalidArgumentError` if it is not finite."""
    if not is_finite(array):
        raise InvalidArgumentError(name, "NaN or infinite in places", "finite numbers: they are compiled in")
    return array


def is_finite(array: np.ndarray) -> bool:
    """Say whether float32 makes neither NaN nor infinity of any number."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(np.float32)).all())
