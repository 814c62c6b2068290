"""Floating-point operations per second, with the prefixes of AutoTVM."""

from __future__ import annotations

from tvmconv.problem.errors import InvalidArgumentError

SI_PREFIXES = {" ": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def scale_of(si_prefix: str) -> float:
    """Return the factor that a prefix stands for."""
    if si_prefix not in SI_PREFIXES:
        raise InvalidArgumentError("si_prefix", si_prefix, f"one of {', '.join(map(repr, SI_PREFIXES))}")
    return SI_PREFIXES[si_prefix]


def rate(flop: float, seconds: float, si_prefix: str) -> float:
    """Return operations per second, in the unit of the prefix; 0 for a call that never ends."""
    return flop / seconds / scale_of(si_prefix)
