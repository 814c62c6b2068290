"""Convolutions whose weight is compiled in: every non-zero is an immediate operand, and zeros leave nothing.

What users make is in `convolution` and `operator`; these read weights by `weights`, and get kernels from `compiling`.
There `template` lowers the scheduled convolution up to unrolling, whatever the weight is, and keeps the result as
`steps`, with the `hoisting` and the `copying` that GPUs want; `folding` binds a weight to it, in `blocks` of output
channels; `building` makes machine code of that, and `report` counts what is gone.
"""
