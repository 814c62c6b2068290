"""What the schedules for CUDA assume of every GPU; what differs between them is in `targets.devices`."""

SHARED_ALIGNMENT = 64
"""Bytes to which TVM aligns each buffer in shared memory."""

WARP = 32
"""Threads that run in step."""

REGISTERS = 65536
"""Of a multiprocessor: what its blocks have between them."""

BLOCK_BYTES = 1024
"""Of shared memory, which each block takes beside its own."""
