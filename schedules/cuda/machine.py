"""What the schedules for CUDA assume of the machine."""

MULTIPROCESSORS = 132
"""Of an H100, for which default configurations are chosen."""

SHARED_ALIGNMENT = 64
"""Bytes to which TVM aligns each buffer in shared memory."""

WARP = 32
"""Threads that run in step."""

REGISTERS, SHARED_BYTES, WARPS = 65536, 227 * 1024, 64
"""Of a multiprocessor: what its blocks have between them, in registers, bytes of shared memory and warps."""

BLOCK_BYTES = 1024
"""Of shared memory, which each block takes beside its own."""
