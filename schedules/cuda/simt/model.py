"""Numbers of an H100 that were fitted to products on CUDA cores, for the models of depthwise convolutions."""

from __future__ import annotations

from tvmconv.targets.devices import H100, Gpu

START = 8000
"""The clocks of launches, of which a first one lays out the weight."""

BYTES_PER_CLOCK = 1700
"""The bytes per clock that an H100's memory moves."""


def bytes_per_clock(gpu: Gpu) -> float:
    """Return `BYTES_PER_CLOCK` of another GPU, in proportion to its memory."""
    return BYTES_PER_CLOCK * (gpu.bytes_per_clock / H100.bytes_per_clock)
