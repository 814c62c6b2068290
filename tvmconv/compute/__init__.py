"""TE definitions of the convolutions, each beside its float64 NumPy reference."""

from .depthwise import depthwise, depthwise_reference

__all__ = ["depthwise", "depthwise_reference"]
