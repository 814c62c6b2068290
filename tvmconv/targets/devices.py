"""Rows of the numbers that schedules and their models count on, for GPUs and for CPUs.

A device that has no row is taken for the one that is most like it: it may get a configuration that is not its best, but
never one that is wrong.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm


WARP = 32
"""The number of threads of a GPU that run in step."""

KERNEL = 4000.0
"""The clocks that a kernel on a GPU takes beside its work."""

TURNS = 32
"""The least number of tasks that the threads of a CPU share: with enough of them threads end together."""

MAX_LANES = 16
"""The number of float32 elements in the widest vector of any CPU: AVX-512's."""


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. Its `model` is what a target names it by, where its architecture alone does not."""

    model: str
    """Words of the name that the driver gives it."""
    since: int | None
    """The least compute capability, 90 for 9.0, that the row stands for where no model is named; None for no one."""
    multiprocessors: int
    shared_bytes: int
    """Shared memory that the blocks of a multiprocessor have between them."""
    cached_shared_bytes: int
    """The shared memory above which almost nothing of a multiprocessor is left for its L1 cache."""
    warps: int
    """Warps that a multiprocessor has room for."""
    blocks: int
    """Blocks that a multiprocessor has room for."""
    memory_bytes: float
    """Bytes that memory moves, a clock and multiprocessor."""
    l2_room: float
    """Bytes that stay in the L2 cache until the next kernel: four fifths of it."""
    clock: float
    """The clocks of a second that estimates count with: the boost clock."""

    @property
    def row(self) -> str:
        """The name of its row in `schedules/cuda/model/rates.json`, where it was measured."""
        return self.model

    @property
    def bytes_per_clock(self) -> float:
        """Return the bytes that memory moves in a clock."""
        return self.memory_bytes * self.multiprocessors


H100 = Gpu(
    model="H100",
    since=90,
    multiprocessors=132,
    shared_bytes=227 * 1024,
    cached_shared_bytes=196 * 1024,
    warps=64,
    blocks=32,
    memory_bytes=14.1,
    l2_room=40e6,
    clock=1.755e9,
)
"""The GPU on which the templates' older models were fitted."""

H200 = replace(H100, model="H200", since=None, memory_bytes=20.2)
"""An H100 with other memory: the GPU of the records that the rates of `schedules.cuda.model` are fitted to."""

RTX_4090 = Gpu(
    model="RTX 4090",
    since=89,
    multiprocessors=128,
    shared_bytes=99 * 1024,
    cached_shared_bytes=68 * 1024,
    warps=48,
    blocks=24,
    memory_bytes=3.0,
    l2_room=58e6,
    clock=2.52e9,
)

GPUS = (
    Gpu("T4", 0, 40, 63 * 1024, 32 * 1024, 32, 16, 4.9, 3.2e6, 1.59e9),
    Gpu("A100", 80, 108, 163 * 1024, 132 * 1024, 64, 32, 13.0, 32e6, 1.41e9),
    Gpu("RTX 3090", 86, 82, 99 * 1024, 68 * 1024, 48, 16, 6.6, 4.8e6, 1.695e9),
    Gpu("Orin", 87, 16, 163 * 1024, 132 * 1024, 48, 16, 9.6, 3.2e6, 1.3e9),
    RTX_4090,
    replace(RTX_4090, model="L4", since=None, multiprocessors=58, memory_bytes=2.5, l2_room=38e6, clock=2.04e9),
    replace(RTX_4090, model="L40S", since=None, multiprocessors=142, memory_bytes=2.3, l2_room=77e6),
    H100,
    H200,
    replace(H100, model="B200", since=100, multiprocessors=148, memory_bytes=26.5, l2_room=101e6, clock=1.98e9),
    replace(RTX_4090, model="RTX 5090", since=120, multiprocessors=170, memory_bytes=4.3, l2_room=77e6, clock=2.407e9),
)
"""The GPUs that have a row. Limits of multiprocessors are those of the CUDA programming guide, table of compute
capabilities, with a kilobyte of shared memory to spare. Multiprocessors, clocks, bandwidths and caches are NVIDIA's:

- T4, A100 of 80 GB (SXM) and L40S: their data sheets and the white papers of Turing, Ampere (A100, tables 1 and 4) and
  Ada; 320, 2039 and 864 GB/s.
- RTX 3090, RTX 4090 and RTX 5090: the white papers of the GA102, of Ada (appendix A) and of RTX Blackwell (appendix A);
  936, 1008 and 1792 GB/s.
- Jetson AGX Orin of 64 GB: its technical brief, 16 multiprocessors, 4 MB of L2 cache and 204.8 GB/s.
- L4: its data sheet, 300 GB/s, and the white paper of Ada.
- H100 and H200 (SXM): their data sheets, 3.35 and 4.8 TB/s; 50 MB of L2 cache.
- B200: the data sheet of HGX B200, 8 TB/s, and 75 TFLOP/s in float32, which is a clock of 1.98 GHz with the 148
  multiprocessors that the driver tells of, beside 126 MB of L2 cache.

Rows count on 97% of the bandwidth at the boost clock, and on four fifths of the L2 cache: the shares that the models of
the H100 were fitted with."""


@lru_cache(maxsize=64)  # models of templates ask for each of thousands of configurations
def gpu_of(target: tvm.target.Target) -> Gpu:
    """Return the row for a CUDA target: of its "model", if it has one with a row, else of its architecture."""
    return gpu_for(str(target.attrs.get("model", "")), str(target.attrs["arch"]))


def gpu_for(name: str, arch: str) -> Gpu:
    """Return the row for a GPU of a driver's name or a model: of its architecture, where the name has no row."""
    return gpu_named(name) or _of_arch(arch)


def model_of(name: str, arch: str) -> str | None:
    """Return the model that a target names for a GPU of a driver's name; None where the architecture is enough.

    It is for a GPU that differs in the bandwidth of memory alone, as an H200 does from an H100: kernels are for both.
    """
    found, usual = gpu_named(name), _of_arch(arch)
    if found is None or replace(found, model=usual.model, since=usual.since, memory_bytes=usual.memory_bytes) == usual:
        return None
    return found.model


def is_another(model: str, name: str) -> bool:
    """Return whether the model that a target names has a row, and a GPU of a driver's name is not that model."""
    wanted = gpu_named(model)
    return wanted is not None and gpu_named(name) is not wanted


def gpu_named(name: str) -> Gpu | None:
    """Return the row whose model a name has, such as "NVIDIA A100-SXM4-80GB"; None where there is none."""
    return next((gpu for gpu in GPUS if re.search(rf"\b{gpu.model}\b", name, re.IGNORECASE)), None)


def _of_arch(arch: str) -> Gpu:
    capability = int(arch.removeprefix("sm_"))
    older = {gpu.since: gpu for gpu in GPUS if gpu.since is not None and gpu.since <= capability}
    return older[max(older)]


@dataclass(frozen=True)
class Cpu:
    """A kind of CPU: its vectors, and one core's units and caches."""

    model: str
    """The name of the CPU, or of the instructions that kinds of CPUs have in common."""
    lanes: int
    """Float32 elements of a vector."""
    registers: int
    """Vector registers."""
    row: str
    """The row of `schedules/cpu/model/rates.json` that estimates use: the CPU's if measured, else a similar one's."""
    unit_lanes: int
    """Float32 elements that a unit multiplies, or that a load brings, in a cycle: wider vectors take several."""
    clock: float = 3.7e9
    """The frequency in Hz that turns clocks into seconds in a fit."""
    fma_units: int = 2
    """Vector multiply-adds, and vector loads, that begin in a cycle."""
    fma_latency: int = 4
    """Cycles until the result of a multiply-add can be added to."""
    factors: int = 1
    """The inputs that one load serves: multiply-adds take them from its lanes, one by one."""
    half_products: float = 1.0
    """The clocks of a unit for a dot product of bfloat16, divided by those for a multiply-add of float32."""
    l1_bytes: int = 32 * 1024
    """The part of the first cache that a schedule counts on for what it reads again and again."""
    l2_bytes: int = 768 * 1024
    """The part of the second cache that a schedule counts on for what it reads again and again."""
    l3_bytes: int = 16 * 1024 * 1024
    """Bytes of weights that stay in the last cache from one call of a network to the next; those of a larger network
    come from memory each time."""

    @property
    def unit_bytes(self) -> int:
        """The bytes of a unit's vector."""
        return 4 * self.unit_lanes


AVX512 = Cpu("AVX-512", lanes=16, registers=32, row="Zen 5", unit_lanes=16)
"""Cores with AVX-512 whose units are as wide as its vectors."""

AMX = replace(AVX512, model="AVX-512 and AMX", half_products=4.0, l2_bytes=1536 * 1024)
"""Intel's cores with AMX; the second cache is the 2 MB that all of them have."""

AVX2 = Cpu("AVX2", lanes=8, registers=16, row="Zen 4, AVX2", unit_lanes=8)
"""Cores with AVX2, whose multiply-adds cannot broadcast an input. The rates are of code for a Zen 3, run on a Zen 4."""

SSE = replace(AVX2, model="SSE", lanes=4, unit_lanes=4)

NEON = Cpu("NEON", lanes=4, registers=32, row="Zen 4", unit_lanes=4, factors=4)
"""Cores whose multiply-adds take one element of a vector as a factor, so that no instruction broadcasts inputs."""

WIDE_NEON = replace(NEON, model="NEON with four units", fma_units=4, l1_bytes=64 * 1024)
"""Large cores have two vector pipes more."""

ZEN2 = replace(AVX2, model="Zen 2", fma_latency=5, l2_bytes=384 * 1024)

CPUS: Mapping[str, Cpu] = {
    "znver2": ZEN2,
    "znver3": replace(ZEN2, model="Zen 3", fma_latency=4),
    "znver4": replace(AVX512, model="Zen 4", row="Zen 4", unit_lanes=8),
    "znver5": replace(AVX512, model="Zen 5", clock=4.2e9),
    "icelake-server": replace(AVX512, model="Ice Lake", l2_bytes=960 * 1024),
    "neoverse-n1": replace(NEON, model="Neoverse N1", l1_bytes=64 * 1024),
    **dict.fromkeys(
        ("neoverse-v1", "neoverse-v2", "neoverse-v3", "cortex-x1", "cortex-x2", "cortex-x3", "cortex-x4"), WIDE_NEON
    ),
}
"""The CPUs that have a row, by the names that LLVM knows them by; others have those of their instructions.

Rates were measured on a Zen 4 and a Zen 5 (EPYC). Others are not measured: units, latencies and caches are those of
AMD's and Arm's optimization guides for Zen 2 to 5, Neoverse N1 and larger cores, and of Intel's manual of optimization
for Ice Lake and the cores with AMX, Sapphire and Granite Rapids. Rows count on three quarters of the second cache."""

ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("haswell", "znver5"),
    "aarch64": ("generic", "neoverse-n1"),
}
"""The architectures of CPUs that there are rows for, each with names that LLVM knows."""

SYNONYMS = {"amd64": "x86_64", "arm64": "aarch64"}


def architecture(triple: str) -> str:
    """Return the architecture in a target triple, or in the name that a system gives to its architecture."""
    name = triple.partition("-")[0].lower()
    return SYNONYMS.get(name, name)


def host_arch() -> str:
    """Return the architecture of this machine's CPU, such as "x86_64"."""
    return architecture(platform.machine())


@lru_cache(maxsize=64)  # estimates and features ask for each configuration of a space, and LLVM takes 0.3 ms
def cpu_of(target: tvm.target.Target) -> Cpu:
    """Return the row for a target of kind "llvm", by its architecture, its mcpu and its features."""
    from tvm.target import codegen

    if architecture(str(target.attrs.get("mtriple") or host_arch())) == "aarch64":
        usual = NEON
    else:  # llvm_get_vector_width answers 512 for every x86.
        features = {"amx-tile": AMX, "avx512f": AVX512, "avx2": AVX2}
        usual = next((cpu for feature, cpu in features.items() if codegen.target_has_features(feature, target)), SSE)
    cpu = CPUS.get(str(target.attrs.get("mcpu")), usual)
    return cpu if cpu.lanes == usual.lanes else usual  # a virtual machine may hide instructions that the CPU has
