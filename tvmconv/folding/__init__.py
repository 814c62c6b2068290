"""Folding constants into a lowered kernel: a step of lowering that only sparse kernels take."""
