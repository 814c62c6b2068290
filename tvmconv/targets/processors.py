"""CPUs, this machine's and others: targets of kind "llvm"."""

from __future__ import annotations

import ctypes
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmconv.problem.dtypes import StorageType
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError

from .backend import Backend, DeviceFacts
from .devices import ARCHITECTURES, architecture, host_arch
from .instructions import FEATURES, TILE_FEATURES
from .threads import get_num_threads

if TYPE_CHECKING:
    import tvm

ARCH_PRCTL, ARCH_GET_XCOMP_SUPP, XFEATURE_XTILEDATA = 158, 0x1021, 18
"""Linux's system call on x86_64 for features of the CPU, its argument to ask which exist, and the bit of tiles."""

FORMS = {"source": "ll", "asm": "asm"}
"""TVM's words for the texts of a kernel."""

SPINNING, SETTLE = 0.1, 0.02
"""The seconds on a CPU before a kernel is timed: first of rest, then of untimed calls.

Threads of the BLAS that computed its reference spin on the cores for a while, and its own threads find a core each
during the untimed calls.
"""


@dataclass(frozen=True)
class CpuBackend(Backend):
    """The backend of CPUs, whose code LLVM makes: for this machine's kind, or for another one."""

    def complete(self, config: dict[str, Any]) -> dict[str, Any]:
        from tvm.target import codegen

        triple, arch = _triple(config), self.arch(config)
        if arch not in ARCHITECTURES or "linux" not in triple.split("-"):
            known = " or ".join(f"{each}-linux-gnu" for each in ARCHITECTURES)
            raise InvalidArgumentError("target", triple, f"an mtriple such as {known}")
        here = arch == host_arch()
        if here and "mcpu" not in config:
            config["mcpu"] = codegen.llvm_get_system_cpu()
            if unlike := _unlike(config["mcpu"]):
                config["mattr"] = [*unlike, *config.get("mattr", ())]
        config.setdefault("mcpu", "generic")
        if not codegen.llvm_is_valid_cpu(config["mcpu"], triple):
            examples = " or ".join(ARCHITECTURES[arch])
            raise InvalidArgumentError("target", config["mcpu"], f"an mcpu that LLVM knows, such as {examples}")
        return ({"num-cores": get_num_threads()} if here else {}) | config

    def arch(self, config: Mapping[str, Any]) -> str:
        return architecture(_triple(config))

    def computes_with(self, config: Mapping[str, Any], storage: StorageType) -> bool:
        return True

    def is_for(self, config: Mapping[str, Any], device: DeviceFacts) -> bool:
        return True

    def arch_here(self, number: int = 0) -> str | None:
        return host_arch()

    def device(self, config: Mapping[str, Any]) -> tvm.runtime.Device:
        import tvm

        require_cpu(config)
        return tvm.cpu(0)

    def facts(self, number: int = 0) -> DeviceFacts | None:
        return DeviceFacts(_name(), threads=get_num_threads())

    def require_timer(self) -> None: ...

    def costs(
        self,
        module: tvm.runtime.Module,
        name: str,
        arguments: Sequence[tvm.runtime.Tensor],
        device: tvm.runtime.Device,
        number: int,
        repeat: int,
        min_repeat_ms: int,
        flush: bool = False,
    ) -> list[float]:
        time.sleep(SPINNING)
        settled = time.perf_counter() + SETTLE
        while time.perf_counter() < settled:
            module[name](*arguments)
        evaluator = module.time_evaluator(
            name,
            device,
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            f_preproc="cache_flush_cpu_non_first_arg" if flush else "",
        )
        return [float(cost) for cost in evaluator(*arguments).results]

    def text(self, module: tvm.runtime.Module, view: str, target: tvm.target.Target) -> str:
        return str(module.inspect_source(FORMS[view]))


CPU = CpuBackend(
    kind="llvm",
    device_type="cpu",
    templates="cpu",
    views=("config", "tvmscript", *FORMS),
    on_gpu=False,
    uses_host_cores=True,
    kernels_by_batch=False,
    limits_open_arrays=False,
    keeps_kernels=False,
    asynchronous_copies=False,
    rounds_bfloat16=False,
    alignment=None,
    workspace_is_passed=False,
    any_strided_output=True,
    channels_in_blocks=True,
    max_products=60_000,
    gemm_size=None,
    missing="a CPU",
)


def require_cpu(config: Mapping[str, Any]) -> None:
    """Raise `NoDeviceError` for a target, by its fields, whose code is for another kind of CPU than this machine's."""
    if (arch := CPU.arch(config)) != host_arch():
        raise NoDeviceError(
            f"this needs a CPU of {arch}, and this machine's is of {host_arch()}; building for it works here. "
            "`tvmconv verify` runs kernels in an emulator, docs/deploying.md says how to run and to tune them there"
        )


def _triple(config: Mapping[str, Any]) -> str:
    """Return the triple of a target, by its fields: the one that it names, or this machine's."""
    return str(config.get("mtriple", f"{host_arch()}-linux-gnu"))


@cache
def _unlike(mcpu: str) -> tuple[str, ...]:
    """Return the features in which this machine differs from the CPU that LLVM takes it for, as for "mattr".

    LLVM goes by the number of the CPU's model. A virtual machine may have that of an older CPU and the features of a
    newer one, or hide some features of its CPU. Only features that kernels are chosen by are compared.
    """
    from tvm.target import Target, codegen

    target, here = Target({"kind": "llvm", "mcpu": mcpu}), _features_here()
    if here is None:
        return ()
    known = {feature for feature in FEATURES if codegen.target_has_features(feature, target)}
    return tuple(f"{'+' if feature in here else '-'}{feature}" for feature in FEATURES if feature in here ^ known)


def _features_here() -> frozenset[str] | None:
    """Return those of `FEATURES` that this machine has; None where it is no x86 or Linux does not tell."""
    if (flags := _flags()) is None:
        return None
    names = {flag.replace("_", "") for flag in flags}  # Linux writes avx512_vnni and amx_int8
    here = {feature for feature in FEATURES if feature.replace("-", "") in names}
    return frozenset(here if has_tiles() else here - TILE_FEATURES)


def _flags() -> list[str] | None:
    """Return Linux's names of the features of an x86; None on other machines."""
    flags = _cpuinfo("flags")
    return flags.split() if flags is not None else None


def _cpuinfo(field: str) -> str | None:
    """Return a field of /proc/cpuinfo; None where there is no such field, or no Linux."""
    info = Path("/proc/cpuinfo")
    found = re.search(rf"^{field}\s*:(.*)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return found[1].strip() if found else None


def has_tiles() -> bool:
    """Return whether this machine gives processes the tiles of AMX, if they ask for them."""
    if host_arch() != "x86_64" or sys.platform != "linux":
        return False
    features = ctypes.c_uint64()
    failed = ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_SUPP, ctypes.byref(features))
    return not failed and bool(features.value >> XFEATURE_XTILEDATA & 1)


@cache
def _name() -> str:
    """Return the CPU's name followed by LLVM's name of its kind: the first is vague on rented machines."""
    from tvm.target import codegen

    model = _cpuinfo("model name")
    return f"{'CPU' if model is None else model} ({codegen.llvm_get_system_cpu()})"
