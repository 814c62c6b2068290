"""Calls of compiled convolutions on arrays: arrays, operators, and the cache of compiled kernels."""
