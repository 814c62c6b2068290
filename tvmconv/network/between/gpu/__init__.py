"""Kernels for a GPU of what stands between the convolutions of a network."""
