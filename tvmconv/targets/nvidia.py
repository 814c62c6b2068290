"""NVIDIA's GPUs, targets of kind "cuda", and the timing of kernels on them without the time that launching takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmconv.problem.dtypes import StorageType
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError, NoDeviceError

from . import cuda
from .backend import Backend, DeviceFacts
from .devices import is_another, model_of
from .processors import CPU, require_cpu

if TYPE_CHECKING:
    import tvm

DEFAULT_CUDA_ARCH = "sm_90"
"""The architecture that "cuda" means where there is no GPU to ask."""

CUDA_LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
"""Limits of a block that every NVIDIA GPU allows without opting in to more."""

GPU_ALIGNMENT = 16
"""Bytes: the widest load and store of a CUDA kernel."""


@dataclass(frozen=True)
class CudaBackend(Backend):
    """The backend of CUDA, whose code NVRTC or nvcc compile."""

    def complete(self, config: dict[str, Any]) -> dict[str, Any]:
        if "arch" not in config:
            device = gpu(0)
            config["arch"] = cuda.device_arch(device) if device else DEFAULT_CUDA_ARCH
            if device and "model" not in config and (model := model_of(str(device.device_name), config["arch"])):
                config["model"] = model
        arch = re.fullmatch(r"(sm_[1-9]\d{1,2})[af]?", str(config["arch"]))
        if arch is None:
            raise InvalidArgumentError("target", config["arch"], "an arch such as sm_80 or sm_90")
        _check_host(config.get("host", "llvm"))
        config["arch"] = arch[1]  # TVM's own schedules fail their version check on a name such as sm_90a
        return CUDA_LIMITS | {"host": "llvm"} | config

    def arch(self, config: Mapping[str, Any]) -> str:
        return str(config["arch"])

    def computes_with(self, config: Mapping[str, Any], storage: StorageType) -> bool:
        return int(self.arch(config).removeprefix("sm_")) >= storage.cuda_arch

    def is_for(self, config: Mapping[str, Any], device: DeviceFacts) -> bool:
        return not is_another(str(config.get("model", "")), device.name)

    def arch_here(self, number: int = 0) -> str | None:
        device = gpu(number)
        return None if device is None else cuda.device_arch(device)

    def device(self, config: Mapping[str, Any]) -> tvm.runtime.Device:
        require_cpu(config.get("host", {}))
        device, facts = gpu(0), self.facts(0)
        if device is None or facts is None:
            raise NoDeviceError(
                "this needs an NVIDIA GPU and its driver, and none is visible here; building for 'cuda' works without. "
                "`tvmconv doctor` says what is missing"
            )
        if not self.is_for(config, facts):
            raise NoDeviceError(
                f"this target is for the model {config['model']}, and the GPU here is {facts}; building for it works "
                "here. A target without a model runs on every GPU of its arch"
            )
        return device

    def facts(self, number: int = 0) -> DeviceFacts | None:
        return _facts(number)

    def require_timer(self) -> None:
        cuda_driver()

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
        return graph_costs(partial(module[name], *arguments), device, number, repeat, min_repeat_ms)

    def text(self, module: tvm.runtime.Module, view: str, target: tvm.target.Target) -> str:
        sources = cuda.sources(module)
        if view == "ptx":
            sources = [cuda.to_ptx(each, cuda_arch(target)) for each in sources]
        return "\n".join(sources)


CUDA = CudaBackend(
    kind="cuda",
    device_type="cuda",
    templates="cuda",
    views=("config", "tvmscript", "source", "ptx", "resources"),
    on_gpu=True,
    uses_host_cores=False,
    kernels_by_batch=True,
    limits_open_arrays=True,
    keeps_kernels=True,
    asynchronous_copies=True,
    rounds_bfloat16=True,
    alignment=GPU_ALIGNMENT,
    workspace_is_passed=True,
    any_strided_output=False,
    channels_in_blocks=False,
    max_products=200_000,
    gemm_size=8192,
    missing="an NVIDIA GPU and its driver",
)


def _check_host(host: Any) -> None:
    """Raise `InvalidArgumentError` for a target's host that is no CPU that LLVM makes code for."""
    if isinstance(host, str):
        fields = {"kind": host}
    else:
        fields = dict(host) if isinstance(host, Mapping) else json.loads(str(host))
    if fields.get("kind") != CPU.kind:
        raise InvalidArgumentError("host of target", fields.get("kind"), f"one whose kind is {CPU.kind!r}")
    CPU.complete(fields)


def has_gpu() -> bool:
    """Return true where TVM can run kernels on a GPU."""
    return gpu(0) is not None


def gpu(number: int) -> tvm.runtime.Device | None:
    """Return this machine's GPU of a number, as TVM has it; None where it is not there."""
    import tvm

    cuda.load_runtime()
    device = tvm.cuda(number)
    return device if device.exist else None


def cuda_arch(target: tvm.target.Target) -> str:
    """Return the architecture of a CUDA target, such as "sm_90"."""
    return str(target.attrs["arch"])


@cache
def _facts(number: int) -> DeviceFacts | None:
    device = gpu(number)
    return None if device is None else DeviceFacts(str(device.device_name), driver=_driver())


def _driver() -> str | None:
    version = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", version.read_text()) if version.is_file() else None
    return found[1] if found else None


def cuda_driver() -> Any:
    """Return the CUDA driver's functions; raise `MissingPackageError` where their package is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise MissingPackageError("cuda-bindings", "cuda", "timing kernels on a GPU") from None
    return driver


def graph_costs(
    call: Callable[[], object], device: tvm.runtime.Device, number: int, repeat: int, min_repeat_ms: float
) -> list[float]:
    """Return the seconds of one call, averaged over each of `repeat` measurements; the call has run once before.

    `number` calls are captured in a CUDA graph. Each measurement replays it, between two events, for `min_repeat_ms`
    at least: a small kernel is over before Python, or TVM, could launch the next one.
    """
    import tvm_ffi

    driver = cuda_driver()

    def done(answer: tuple[Any, ...]) -> Any:
        if answer[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA: {driver.cuGetErrorString(answer[0])[1].decode()}")
        return answer[1] if len(answer) > 1 else None

    device.sync()
    stream = done(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    start, end = (done(driver.cuEventCreate(0)) for _ in range(2))
    with tvm_ffi.use_raw_stream(device, int(stream)):
        done(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        for _ in range(number):
            call()
        captured = done(driver.cuStreamEndCapture(stream))
    graph = done(driver.cuGraphInstantiate(captured, 0))
    done(driver.cuGraphDestroy(captured))

    def seconds(replays: int) -> float:
        done(driver.cuEventRecord(start, stream))
        for _ in range(replays):
            done(driver.cuGraphLaunch(graph, stream))
        done(driver.cuEventRecord(end, stream))
        done(driver.cuEventSynchronize(end))
        return float(done(driver.cuEventElapsedTime(start, end))) / 1000

    seconds(1)
    replays = max(1, -(-int(1e6 * min_repeat_ms) // max(1, int(1e9 * seconds(1)))))
    costs = [seconds(replays) / (replays * number) for _ in range(repeat)]
    done(driver.cuGraphExecDestroy(graph))
    for event in (start, end):
        done(driver.cuEventDestroy(event))
    done(driver.cuStreamDestroy(stream))
    return costs
