"""The assumptions of the schedules about every GPU; `targets.devices` has the properties that differ."""

SHARED_ALIGNMENT = 64
"""The bytes to which TVM aligns each buffer in shared memory."""

WARP = 32
"""The number of threads that run in step."""

REGISTERS = 65536
"""The 32-bit registers of a multiprocessor, which its blocks share."""

MOST_REGISTERS = 255
"""The registers that a thread may have."""

BLOCK_BYTES = 1024
"""The bytes of shared memory that each block takes beside its own."""

SECTOR = 32
"""The bytes that a cache gets from memory at least."""
