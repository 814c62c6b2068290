"""Targets: every way in which a user may name a machine, turned into one complete TVM target."""

from __future__ import annotations

import json
import re
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .cuda import device_arch, load_runtime
from .errors import CompileError, InvalidArgumentError, NoDeviceError
from .threads import get_num_threads

if TYPE_CHECKING:
    import tvm

DEFAULT_CUDA_ARCH = "sm_90"
"""The architecture that "cuda" means where there is no GPU to ask."""

CUDA_LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
"""The limits of a block on every NVIDIA GPU, without opting in to more."""


def resolve_target(target: str | dict[str, Any] | tvm.target.Target) -> tvm.target.Target:
    """Return a complete TVM target from a name, a tag, JSON, a dict or a target.

    - "cuda" is this machine's GPU, or sm_90 where there is none; "llvm" is this machine's CPU, all its instructions.
    - "nvidia/nvidia-h100" and TVM's other tags, `{"kind": "cuda", "arch": "sm_80"}` as a dict or as JSON.
    - "cuda -arch=sm_80", the form that TVM dropped, is turned into today's with a warning that shows it.

    Missing parts are filled in: the host, the limits of a block, the CPU's name, and as its cores the threads that
    kernels run on. Anything else raises `InvalidArgumentError`.
    """
    import tvm

    if isinstance(target, tvm.target.Target):
        config = json.loads(str(target))
    elif isinstance(target, dict):
        config = dict(target)
    elif isinstance(target, str) and target.strip():
        config = _parse(target.strip())
    else:
        raise InvalidArgumentError("target", target, _EXPECTED)
    if config.get("kind") == "cuda":
        config = _complete_cuda(config)
    elif config.get("kind") == "llvm":
        config = _complete_llvm(config)
    else:
        raise InvalidArgumentError("target", target, "a target whose kind is 'cuda' or 'llvm'")
    try:
        return tvm.target.Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidArgumentError("target", target, f"{_EXPECTED} ({_first_line(error)})") from None


def require_tvm_compiler() -> None:
    """Raise `CompileError` in a process that has loaded TVM's runtime alone, which runs networks and no more."""
    from tvm.base import _RUNTIME_ONLY

    if _RUNTIME_ONLY:
        raise CompileError("this needs TVM's compiler, and TVM has loaded its runtime alone (TVM_USE_RUNTIME_LIB)")


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """Return the device that runs the target's kernels; `NoDeviceError` says what is missing."""
    return device_for(str(target.kind.name))


def device_for(kind: str) -> tvm.runtime.Device:
    """Return the device for a kind of target, "llvm" or "cuda"; `NoDeviceError` says what is missing."""
    import tvm

    if kind == "llvm":
        return tvm.cpu(0)
    device = _first_gpu()
    if device is None:
        raise NoDeviceError(
            "this needs an NVIDIA GPU and its driver, and none is visible here; building for 'cuda' works without. "
            "`tvmconv doctor` says what is missing"
        )
    return device


def has_gpu() -> bool:
    """Return whether TVM can run kernels on a GPU here."""
    return _first_gpu() is not None


def cuda_arch(target: tvm.target.Target) -> str:
    """Return the architecture of a CUDA target, such as "sm_90"."""
    return str(target.attrs["arch"])


class DeviceFacts(msgspec.Struct, frozen=True):
    """The device that a kernel was measured on: figures of one device say little about another."""

    name: str
    """The name that the driver has for a GPU, or the CPU for itself."""
    driver: str | None = None
    """The version of the NVIDIA driver; None for a CPU."""
    threads: int | None = None
    """The number of threads that kernels are spread over; None for a GPU."""

    def __str__(self) -> str:
        return self.name if self.threads is None else f"{self.name}, {self.threads} thread{'s' * (self.threads > 1)}"


def device_facts(kind: str, number: int = 0) -> DeviceFacts | None:
    """Return this machine's device for a kind of target, of several GPUs that of a number; None if there is none."""
    return DeviceFacts(_cpu_name(), threads=get_num_threads()) if kind == "llvm" else _gpu_facts(number)


@cache
def _gpu_facts(number: int) -> DeviceFacts | None:
    device = _gpu(number)
    return None if device is None else DeviceFacts(str(device.device_name), driver=_driver())


_EXPECTED = "'llvm', 'cuda', a tag of TVM such as 'nvidia/nvidia-h100', or a target as JSON or a dict"


def _parse(text: str) -> dict[str, Any]:
    import tvm

    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise InvalidArgumentError("target", text, f"valid JSON ({error})") from None
    kind, *options = text.split()
    if options:
        config = {"kind": kind, **dict(_parse_option(text, option) for option in options)}
        warnings.warn(f"target {text!r}: TVM has dropped options in a string; write {json.dumps(config)}", stacklevel=4)
        return config
    if kind in ("cuda", "llvm"):
        return {"kind": kind}
    try:
        return dict(json.loads(str(tvm.target.Target(kind))))
    except ValueError:
        raise InvalidArgumentError("target", text, _EXPECTED) from None


def _parse_option(text: str, option: str) -> tuple[str, Any]:
    name, equals, value = option.lstrip("-").partition("=")
    if not option.startswith("-") or not equals:
        raise InvalidArgumentError("target", text, "options of the form -name=value")
    if name == "mattr":
        return name, value.split(",")
    return name, int(value) if value.isdigit() else value


def _complete_cuda(config: dict[str, Any]) -> dict[str, Any]:
    if "arch" not in config:
        device = _first_gpu()
        config["arch"] = device_arch(device) if device else DEFAULT_CUDA_ARCH
    arch = re.fullmatch(r"(sm_[1-9]\d{1,2})[af]?", str(config["arch"]))
    if arch is None:
        raise InvalidArgumentError("target", config["arch"], "an arch such as sm_80 or sm_90")
    config["arch"] = arch[1]  # TVM's own schedules fail their version check on a name such as sm_90a
    return CUDA_LIMITS | {"host": "llvm"} | config


def _first_gpu() -> tvm.runtime.Device | None:
    return _gpu(0)


def _gpu(number: int) -> tvm.runtime.Device | None:
    import tvm

    load_runtime()
    device = tvm.cuda(number)
    return device if device.exist else None


def _complete_llvm(config: dict[str, Any]) -> dict[str, Any]:
    import tvm
    from tvm.target import codegen

    ours = str(tvm.target.Target("llvm").attrs["mtriple"])
    triple = str(config.get("mtriple", ours))
    if triple.partition("-")[0] != ours.partition("-")[0]:
        raise InvalidArgumentError("target", triple, f"an mtriple of this machine's kind, such as {ours}")
    config.setdefault("mcpu", codegen.llvm_get_system_cpu())
    if not codegen.llvm_is_valid_cpu(config["mcpu"], triple):
        raise InvalidArgumentError("target", config["mcpu"], "an mcpu that LLVM knows, such as haswell or znver5")
    return {"num-cores": get_num_threads()} | config


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


@cache
def _cpu_name() -> str:
    """Return the CPU's own name, with LLVM's name for its kind: the first is vague on rented machines."""
    from tvm.target import codegen

    info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return f"{model[1].strip() if model else 'CPU'} ({codegen.llvm_get_system_cpu()})"


def _driver() -> str | None:
    version = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", version.read_text()) if version.is_file() else None
    return found[1] if found else None
