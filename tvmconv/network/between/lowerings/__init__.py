"""The functions that lower operators to TE where TVM's lowerings lose digits, lose NaN, or are slow."""

from __future__ import annotations

from . import comparisons, norms

LOWERINGS = {**comparisons.LOWERINGS, **norms.LOWERINGS}
"""The lowering of each operator on every target, by its name, for `LegalizeOps`."""

CPU_LOWERINGS = {**LOWERINGS, **norms.CPU_LOWERINGS}
"""The lowerings for CPUs: those above, and softmax."""
