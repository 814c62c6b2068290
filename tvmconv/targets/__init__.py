"""Targets: every way to name one, the abilities of each kind, and the numbers of each device.

Anything that depends on the kind of a target is a field or a method of its `Backend`: nothing else compares kinds.
"""

from .backend import Backend, DeviceFacts
from .devices import Cpu, Gpu, cpu_of, gpu_of
from .instructions import (
    ROUNDING_INSTRUCTION,
    DotInstruction,
    LookupInstruction,
    TensorInstruction,
    dot_instruction,
    has_clusters,
    has_dependent_launches,
    has_rounding,
    lookup_instruction,
    multiplies,
    tensor_instructions,
    tile_instruction,
)
from .nvidia import CUDA_LIMITS, DEFAULT_CUDA_ARCH, GPU_ALIGNMENT, cuda_arch, has_gpu
from .resolving import (
    BACKENDS,
    arch_of,
    backend_named,
    backend_of,
    backend_on,
    computes_with,
    device_facts,
    device_for,
    device_of,
    is_for,
    require_tvm_compiler,
    resolve_target,
)
from .toolchain import cross_triple

__all__ = [
    "BACKENDS",
    "CUDA_LIMITS",
    "DEFAULT_CUDA_ARCH",
    "GPU_ALIGNMENT",
    "ROUNDING_INSTRUCTION",
    "Backend",
    "Cpu",
    "DeviceFacts",
    "DotInstruction",
    "Gpu",
    "LookupInstruction",
    "TensorInstruction",
    "arch_of",
    "backend_named",
    "backend_of",
    "backend_on",
    "computes_with",
    "cpu_of",
    "cross_triple",
    "cuda_arch",
    "device_facts",
    "device_for",
    "device_of",
    "dot_instruction",
    "gpu_of",
    "has_clusters",
    "has_dependent_launches",
    "has_gpu",
    "has_rounding",
    "is_for",
    "lookup_instruction",
    "multiplies",
    "require_tvm_compiler",
    "resolve_target",
    "tensor_instructions",
    "tile_instruction",
]
