"""Folding constants into a lowered kernel: a step of lowering that only sparse kernels take.

`skeleton` lowers the scheduled convolution up to unrolling, whatever the weight is, and keeps the result as `steps`,
with the `hoisting` and the `copying` that GPUs want. `folding` binds `constants`, the weight with its scale and shift,
to it, in blocks of output channels. `tvmconv.lowering` makes machine code of that, in its `launches`.
"""
