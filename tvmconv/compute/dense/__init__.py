"""Definitions of dense and sparse convolutions, for any target."""
