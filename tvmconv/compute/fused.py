"""The float64 reference of several layers in one kernel, in the form that each kind of fused problem returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tvmconv.problem import FusedProblem

DEVIATIONS = 5.0
"""The largest error of a sum whose terms have independent errors, as a multiple of its root mean square."""


class Sample(NamedTuple):
    """Some results in float64, and the errors that those of a kernel may have."""

    indices: np.ndarray
    """The index of each result in the output as it lies in memory."""
    result: np.ndarray
    error: np.ndarray
    """The error that each result may have beside the rounding errors of its sum."""
    magnitude: np.ndarray
    """The sum of absolute products of each result."""
    terms: int
    """The number of products in the sum of a result."""


class Reference(NamedTuple):
    """The expected output of a kernel."""

    stored: np.ndarray
    """The indices of all elements that the kernel stores in the output; it leaves others as they are."""
    samples: Sequence[Sample]
    """The results that are compared, a sample of them or all."""


ReferenceOf = Callable[[FusedProblem, Mapping[str, np.ndarray], np.random.Generator, int], Reference]
"""A function of a problem, its finite operands by name as they lie in memory, a generator that draws the sample, and
the number of results that are worth comparing."""
