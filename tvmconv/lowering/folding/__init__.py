"""Folding constants into a lowered kernel: a step of lowering that only sparse kernels take.

`skeleton` lowers the scheduled convolution up to unrolling, independently of the weight, and returns the result as
`steps`, for GPUs with `hoisting` of shared expressions and asynchronous `copying`. `folding` binds `constants`, the
weight with its scale and shift, to it, in blocks of output channels. `tvmconv.lowering` makes machine code of that, in
its `launches`.
"""
