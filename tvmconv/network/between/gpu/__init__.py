"""Kernels for a GPU of the operators between the convolutions of a network."""
