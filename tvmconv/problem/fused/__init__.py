"""The kinds of workloads of several layers that one kernel computes; nothing else lists them."""

from __future__ import annotations

from .attention import Attention
from .base import FusedWorkload
from .gate import Gate

__all__ = ["AnyFused", "Attention", "FusedWorkload", "Gate"]

AnyFused = Attention | Gate
"""A workload of any of the kinds, each of which JSON names by its tag."""
