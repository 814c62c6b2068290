"""Loops for CPUs of the operators between convolutions."""
