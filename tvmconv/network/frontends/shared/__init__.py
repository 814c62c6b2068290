"""Functions that ONNX and torch share, from plain arguments to expressions of Relax."""
