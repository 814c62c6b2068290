"""Calls of compiled convolutions on arrays, with gradients, for sparse weights, and as operators of torch."""
