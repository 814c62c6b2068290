"""Operators of torch that run tvmconv's kernels: how they are defined, and the same in torch's own operators."""
