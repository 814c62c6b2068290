"""Calibration: the rates of a GPU are fitted to kernels that are measured on it.

`problems` draws problems, `trials` draws configurations of their templates, and `fit` fits the model of a GPU to
records. `session` measures and fits a GPU in a few minutes; where the machine is disturbed, `steadiness` tells. The
scripts `benchmarks/collect.py` and `benchmarks/fit.py` do so for the rates that the package has.
"""
