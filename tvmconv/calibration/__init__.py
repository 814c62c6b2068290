"""Calibration: the rates of a GPU or a CPU are fitted to kernels that are measured on it.

`problems` draws problems, `trials` draws configurations of their templates, and `fit` fits the model of a machine to
records. `session` measures and fits one in a few minutes; where it is disturbed, `steadiness` tells. The
scripts `benchmarks/collect.py` and `benchmarks/fit.py` do so for the rates that the package has.
"""
