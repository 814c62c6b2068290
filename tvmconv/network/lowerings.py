"""The functions that lower operators to TE where TVM's own lose digits, lose NaN, or are slow."""

from __future__ import annotations

from . import comparisons, extremes, norms

LOWERINGS = {**comparisons.LOWERINGS, **extremes.LOWERINGS, **norms.LOWERINGS}
"""The functions by the names of the operators, for `LegalizeOps`."""

CPU_LOWERINGS = {**LOWERINGS, **norms.CPU_LOWERINGS}
"""The same for a CPU."""
