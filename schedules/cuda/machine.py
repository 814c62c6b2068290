"""The properties of the machine that the schedules for CUDA assume."""

MULTIPROCESSORS = 132
"""The multiprocessors of an H100, for which default configurations are chosen."""

SHARED_ALIGNMENT = 64
"""The bytes to which TVM aligns each buffer in shared memory."""

WARP = 32
"""The number of threads that run in step."""

REGISTERS, SHARED_BYTES, WARPS = 65536, 227 * 1024, 64
"""The registers, bytes of shared memory and warps of a multiprocessor, which its blocks share."""

BLOCK_BYTES = 1024
"""The bytes of shared memory that each block takes beside its own."""
