"""Passes over quantized networks."""
