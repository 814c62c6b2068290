"""What the schedules for CUDA assume of the machine."""

MULTIPROCESSORS = 132
"""Of an H100, for which default configurations are chosen."""

SHARED_ALIGNMENT = 64
"""Bytes to which TVM aligns each buffer in shared memory."""
