"""The names and forms of a target that tvmconv takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.autotvm import task
from tvmconv.autotvm.measure.runner import require_for
from tvmconv.dispatch.history import device_here
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.targets import (
    DeviceFacts,
    backend_named,
    cross_triple,
    device_of,
    has_gpu,
    nvidia,
    processors,
    resolve_target,
)
from tvmconv.targets.devices import host_arch
from tvmconv.targets.toolchain import compiler_package


@pytest.mark.parametrize(
    ("given", "arch"),
    [
        ("nvidia/nvidia-h100", "sm_90"),
        ({"kind": "cuda", "arch": "sm_80"}, "sm_80"),
        ('{"kind": "cuda", "arch": "sm_86"}', "sm_86"),
        ({"kind": "cuda", "arch": "sm_90a"}, "sm_90"),
    ],
    ids=str,
)
def test_cuda_targets_are_complete(given: Any, arch: str) -> None:
    target = resolve_target(given)
    assert target.attrs["arch"] == arch
    assert target.attrs["max_shared_memory_per_block"] == 49152
    assert target.attrs["max_threads_per_block"] == 1024
    assert target.host.kind.name == "llvm"
    assert str(resolve_target(target)) == str(target)
    assert str(resolve_target(str(target))) == str(target)


@pytest.mark.parametrize("given", ["llvm", {"kind": "llvm"}, tvm.target.Target("llvm")], ids=["name", "dict", "target"])
def test_llvm_is_this_cpu(given: Any) -> None:
    target = resolve_target(given)
    assert target.attrs["mcpu"] == tvm.target.codegen.llvm_get_system_cpu()
    assert target.attrs["num-cores"] >= 1


def test_old_strings_are_turned_into_todays_form_with_a_hint() -> None:
    with pytest.warns(UserWarning, match=r'write \{"kind": "llvm", "mcpu": "haswell", "num-cores": 4\}'):
        target = resolve_target("llvm -mcpu=haswell -num-cores=4")
    assert (target.attrs["mcpu"], target.attrs["num-cores"]) == ("haswell", 4)
    with pytest.warns(UserWarning, match="dropped options in a string"):
        assert resolve_target("cuda -arch=sm_80").attrs["arch"] == "sm_80"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "vulkan",
        "nvidia/unheard-of",
        "{",
        "[]",
        "cuda -arch",
        "llvm -mcpu='x",
        {"kind": "rocm"},
        {"mcpu": "haswell"},
        {},
        7,
        {"kind": "cuda", "colour": 1},
        {"kind": "cuda", "arch": "banana"},
        {"kind": "cuda", "arch": "sm_9"},
        {"kind": "cuda", "arch": "sm_9000"},
        {"kind": "cuda", "host": {"kind": "llvm", "mtriple": "riscv64-linux-gnu"}},
        {"kind": "cuda", "host": {"kind": "llvm", "mtriple": "aarch64-apple-darwin"}},
        {"kind": "cuda", "host": {"kind": "llvm", "mcpu": "banana"}},
        {"kind": "cuda", "host": "c"},
        {"kind": "llvm", "mcpu": "banana"},
        {"kind": "llvm", "mtriple": "riscv64-linux-gnu"},
        {"kind": "llvm", "mtriple": "aarch64"},
        {"kind": "llvm", "mtriple": "aarch64-apple-darwin"},
        {"kind": "llvm", "mtriple": "x86_64-pc-windows-msvc"},
    ],
    ids=str,
)
def test_bad_targets(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="target is "):
        resolve_target(given)


@pytest.mark.parametrize("host", ["llvm", {"kind": "llvm"}, tvm.target.Target("llvm")], ids=["name", "dict", "target"])
def test_hosts_of_cuda_targets(host: Any) -> None:
    assert cross_triple(str(resolve_target({"kind": "cuda", "arch": "sm_90", "host": host}))) is None


def test_code_for_another_cpu_beside_the_gpu_is_built_and_not_run() -> None:
    other = "aarch64" if host_arch() == "x86_64" else "x86_64"
    target = {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mtriple": f"{other}-linux-gnu"}}
    workload = ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3))
    operator = tvmconv.compile(workload, target)
    assert "__global__" in operator.source()
    with pytest.raises(NoDeviceError, match=f"this needs a CPU of {other}, and this machine's is of {host_arch()}"):
        operator(*(np.ones(shape, "float32") for shape, _ in [*workload.operands.values()][:2]))


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> DeviceFacts:
    """Pretend that this machine's GPU is an H100."""
    facts = DeviceFacts("NVIDIA H100 80GB HBM3", driver="580")
    monkeypatch.setattr(nvidia, "gpu", lambda number: SimpleNamespace(device_name=facts.name))
    monkeypatch.setattr(nvidia, "_facts", lambda number: facts)
    monkeypatch.setattr(nvidia.cuda, "device_arch", lambda device: "sm_90")
    return facts


def of_model(model: str | None) -> tvm.target.Target:
    return resolve_target({"kind": "cuda", "arch": "sm_90", **({} if model is None else {"model": model})})


@pytest.mark.parametrize("model", [None, "H100", "NVIDIA H100 PCIe", "a GPU without a row"])
def test_a_target_runs_on_a_gpu_of_its_model(model: str | None, h100: DeviceFacts) -> None:
    assert device_of(of_model(model)).device_name == h100.name
    assert device_here(of_model(model)) == h100


@pytest.mark.parametrize("model", ["H200", "NVIDIA L4"])
def test_a_target_for_another_model_of_gpu_is_refused_where_it_would_run(model: str, h100: DeviceFacts) -> None:
    with pytest.raises(NoDeviceError, match=f"is for the model {model}, and the GPU here is NVIDIA H100 80GB HBM3"):
        device_of(of_model(model))
    assert device_here(of_model(model)) is None
    with pytest.raises(InvalidArgumentError, match="one without a model, or for the NVIDIA H100 80GB HBM3"):
        require_for(task.create(ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3)), of_model(model)), h100)


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_missing_gpu_is_named() -> None:
    with pytest.raises(NoDeviceError, match="NVIDIA GPU and its driver"):
        device_of(resolve_target("cuda"))


def test_unknown_kinds_name_what_is_known() -> None:
    with pytest.raises(InvalidArgumentError, match="a target whose kind is 'llvm' or 'cuda'"):
        resolve_target({"kind": "rocm"})
    with pytest.raises(InvalidArgumentError, match=r"kind of target is 'rocm'; expected 'llvm' or 'cuda'"):
        backend_named("rocm")
    with pytest.raises(InvalidArgumentError, match="an mtriple such as x86_64-linux-gnu or aarch64-linux-gnu"):
        resolve_target({"kind": "llvm", "mtriple": "riscv64-linux-gnu"})


def test_cpus_of_an_unknown_kind_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "host_arch", lambda: "riscv64")
    with pytest.raises(
        InvalidArgumentError, match="target is 'riscv64-linux-gnu'; expected an mtriple such as x86_64-"
    ):
        resolve_target("llvm")


@pytest.mark.parametrize(
    ("triple", "package"),
    [("aarch64-linux-gnu", "gcc-aarch64-linux-gnu"), ("x86_64-linux-gnu", "gcc-x86-64-linux-gnu")],
)
def test_packages_of_compilers_have_debians_names(triple: str, package: str) -> None:
    assert compiler_package(triple) == package
