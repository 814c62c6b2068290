"""Convolutions whose weight is compiled in: every non-zero is an immediate operand, and zeros leave nothing.

Users make the objects of `convolution` and `operator`, which read weights by `weights`, and kernels by `compiling`.
There `template` lowers the scheduled convolution up to unrolling, whatever the weight is, and keeps the result as
`steps`, with the `hoisting` and the `copying` that GPUs want; `folding` binds a weight to it, in `blocks` of output
channels; `building` makes machine code of that, and `report` counts what is gone.
"""
