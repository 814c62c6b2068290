"""Passes over the kernels of GPUs; `modules.build` and `side_by_side` have their order."""
