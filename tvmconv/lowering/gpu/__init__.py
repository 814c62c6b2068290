"""Passes over the kernels of GPUs."""
