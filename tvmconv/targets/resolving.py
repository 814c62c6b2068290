"""Every way a user may name a target, turned into one complete TVM target, and the backend of each."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tvmconv.problem.dtypes import StorageType
from tvmconv.problem.errors import CompileError, InvalidArgumentError

from .backend import Backend, DeviceFacts
from .nvidia import CUDA
from .processors import CPU

if TYPE_CHECKING:
    import tvm

BACKENDS: Mapping[str, Backend] = MappingProxyType({backend.kind: backend for backend in (CPU, CUDA)})
"""The backends by the kinds of their targets."""


def resolve_target(target: str | dict[str, Any] | tvm.target.Target) -> tvm.target.Target:
    """Return a complete TVM target from a name, a tag, JSON, a dict or a target.

    - "cuda" is this machine's GPU, or sm_90 where there is none; "llvm" is this machine's CPU, all its instructions.
    - "nvidia/nvidia-h100" and TVM's other tags, `{"kind": "cuda", "arch": "sm_80"}` as a dict or as JSON.
    - `{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}`, with or without "mcpu" and "mattr", is a CPU of another kind.
    - `{"kind": "cuda", "arch": "sm_89", "model": "L4"}` names a GPU that its architecture alone does not.
    - "cuda -arch=sm_80", the form that TVM dropped, is turned into today's with a warning that shows it.

    What is left out is filled in: the host, the limits of a block, the CPU's name, and as this machine's cores the
    threads that kernels run on. Anything else raises `InvalidArgumentError`.
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
    backend = BACKENDS.get(str(config.get("kind")))
    if backend is None:
        raise InvalidArgumentError("target", target, f"a target whose kind is {_KINDS}")
    config = backend.complete(config)
    try:
        return tvm.target.Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidArgumentError("target", target, f"{_EXPECTED} ({_first_line(error)})") from None


def require_tvm_compiler() -> None:
    """Raise `CompileError` in a process that has loaded TVM's runtime alone, which runs networks and no more."""
    from tvm.base import _RUNTIME_ONLY

    if _RUNTIME_ONLY:
        raise CompileError(
            "this needs TVM's compiler: start the process without TVM_USE_RUNTIME_LIB, which loads the runtime alone"
        )


def backend_of(target: tvm.target.Target) -> Backend:
    """Return the backend of a target that `resolve_target` made."""
    return BACKENDS[str(target.kind.name)]


def backend_named(kind: str) -> Backend:
    """Return the backend of a kind of target; `InvalidArgumentError` for one that is not known."""
    if kind not in BACKENDS:
        raise InvalidArgumentError("kind of target", kind, _KINDS)
    return BACKENDS[kind]


def backend_on(device_type: str) -> Backend:
    """Return the backend that takes arrays on a type of device, in TVM's or torch's words: "cuda_host" is CUDA's."""
    return next((backend for backend in BACKENDS.values() if device_type.startswith(backend.device_type)), CPU)


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """Return the device that runs the target's kernels; `NoDeviceError` says what is missing."""
    return device_for(str(target))


def device_for(target: str) -> tvm.runtime.Device:
    """Return the device for a kind of target, or for a target as JSON; it needs no more than TVM's runtime."""
    config = json.loads(target) if target.startswith("{") else {"kind": target}
    return backend_named(str(config["kind"])).device(config)


def arch_of(target: tvm.target.Target) -> str:
    """Return the architecture that a target makes code for, such as "sm_90" or "aarch64"."""
    return backend_of(target).arch(json.loads(str(target)))


def computes_with(target: tvm.target.Target, storage: StorageType) -> bool:
    """Return whether kernels of a target can read and write elements of a type."""
    return backend_of(target).computes_with(json.loads(str(target)), storage)


def is_for(target: tvm.target.Target, device: DeviceFacts) -> bool:
    """Return whether a target is for such a device; one that names a model is for no other."""
    return backend_of(target).is_for(json.loads(str(target)), device)


def device_facts(kind: str, number: int = 0) -> DeviceFacts | None:
    """Return the facts of this machine's device for a kind of target, of the GPU with a number; None without one."""
    return backend_named(kind).facts(number)


_KINDS = " or ".join(map(repr, BACKENDS))

_EXPECTED = "'llvm', 'cuda', a name that TVM knows, such as 'nvidia/nvidia-h100', or a target as JSON or a dict"


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
    if kind in BACKENDS:
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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
