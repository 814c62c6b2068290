"""Convolutions whose weight is compiled in: every non-zero is an immediate operand, and zeros leave nothing.

Users make the objects of `convolution`, which have an `operator` for each shape of input; `report` counts what is gone.
The kernels are built as dense ones are, by `tvmconv.lowering`, with `lowering.folding` as a step of it.
"""
