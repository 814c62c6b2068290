"""Passes that bring a model into the form in which kernels are found, before the plan of its layers."""
