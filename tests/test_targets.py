"""Every way to name a target."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tvmconv.errors import InvalidArgumentError, NoDeviceError
from tvmconv.targets import backend_named, cpu_of, device_of, gpu_of, has_gpu, resolve_target
from tvmconv.targets.devices import AVX2, AVX512, H100, NEON, SSE, Cpu, model_of


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
        {"kind": "llvm", "mcpu": "banana"},
        {"kind": "llvm", "mtriple": "riscv64-linux-gnu"},
    ],
    ids=str,
)
def test_bad_targets(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="target is "):
        resolve_target(given)


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


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"arch": "sm_75"}, "T4"),
        ({"arch": "sm_80"}, "A100"),
        ({"arch": "sm_86"}, "RTX 4090"),
        ({"arch": "sm_89"}, "RTX 4090"),
        ({"arch": "sm_89", "model": "NVIDIA L4"}, "L4"),
        ({"arch": "sm_89", "model": "NVIDIA L40S"}, "RTX 4090"),
        ({"arch": "sm_90"}, "H100"),
        ({"arch": "sm_103"}, "H100"),
        ({"arch": "sm_120"}, "RTX 5090"),
    ],
    ids=str,
)
def test_gpus_have_rows(fields: dict[str, str], model: str) -> None:
    """One without a row has that of the architecture before its own."""
    assert gpu_of(resolve_target({"kind": "cuda", **fields})).model == model


def test_targets_name_models_where_the_architecture_does_not() -> None:
    assert model_of("NVIDIA L4", "sm_89") == "L4"
    assert model_of("NVIDIA GeForce RTX 4090", "sm_89") is None
    assert model_of("NVIDIA H100 80GB HBM3", "sm_90") is None
    assert model_of("NVIDIA H200", "sm_90") is None  # whose defaults are those of the H100
    assert model_of("NVIDIA B200", "sm_100") is None


def test_h100_has_the_numbers_that_its_models_were_fitted_with() -> None:
    assert (H100.multiprocessors, H100.shared_bytes, H100.warps) == (132, 227 * 1024, 64)
    assert (H100.memory_bytes, H100.l2_room, H100.cached_shared_bytes) == (14.1, 40e6, 196 * 1024)


@pytest.mark.parametrize(
    ("fields", "cpu"),
    [
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "znver5"}, AVX512),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}, AVX512),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}, AVX2),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, SSE),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "mattr": ["+avx2"]}, AVX2),
        ({"mtriple": "aarch64-linux-gnu"}, NEON),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "neoverse-n1", "mattr": ["+fullfp16"]}, NEON),
    ],
    ids=str,
)
def test_cpus_have_rows(fields: dict[str, Any], cpu: Cpu) -> None:
    assert cpu_of(resolve_target({"kind": "llvm", **fields})) == cpu
