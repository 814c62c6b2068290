"""Convolutions whose weight is compiled in: every non-zero an immediate operand, nothing left of the zeros.

`template` lowers the scheduled convolution up to unrolling, whatever the weight is, and keeps the result; `folding`
binds a weight to it; `report` counts what that removed.
"""
