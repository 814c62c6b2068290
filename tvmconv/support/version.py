"""The version of tvmconv, which the records of tuning, saved files and cached kernels say that they are of."""

__version__ = "0.1.0"
