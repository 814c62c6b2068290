"""Operators of torch that run tvmconv's kernels: their definition, and equivalents in torch's own operators."""
