"""Passes over the functions of CPUs."""
