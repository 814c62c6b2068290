"""Attention on the tensor cores of a GPU: scores and their softmax stay in registers."""
