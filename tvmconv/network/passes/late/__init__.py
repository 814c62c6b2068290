"""Passes over the operators that no kernel has taken in, behind the plan of the layers."""
