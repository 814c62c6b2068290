"""Indices that a model computes: their bounds, and the checks that they lie inside the array."""
