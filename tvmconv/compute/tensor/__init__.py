"""Definitions of dense convolutions for the tensor cores of GPUs."""
