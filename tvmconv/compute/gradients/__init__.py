"""Definitions of the gradients of depthwise convolutions."""
