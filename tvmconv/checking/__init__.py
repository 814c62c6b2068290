"""Checks that the tuner, benchmarks and tests share: operands, and the comparison with the float64 reference."""
