"""Rows of devices: which one a target has, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedules.cases.tensor import layer
from tvmconv import ConvWorkload
from tvmconv.dispatch import sparse_template, template_for, templates_for
from tvmconv.problem import Problem
from tvmconv.targets import cpu_of, gpu_of, resolve_target
from tvmconv.targets.devices import AVX2, AVX512, CPUS, GPUS, H100, NEON, SSE, WIDE_NEON, Cpu, Gpu, gpu_for, model_of

WORKLOADS = (
    ConvWorkload.depthwise((1, 256, 28, 28), (256, 1, 3, 3)),
    ConvWorkload.conv2d((8, 64, 56, 56), (64, 64, 3, 3)),
    ConvWorkload.conv2d((1, 512, 7, 7), (512, 512, 1, 1)),
)


CORES = ("neoverse-n1", "neoverse-v2")  # of two units for multiply-adds, and of four


BANDWIDTHS = {
    "T4": 320,
    "A100": 2039,
    "RTX 3090": 936,
    "Orin": 204.8,
    "RTX 4090": 1008,
    "L4": 300,
    "L40S": 864,
    "H100": 3350,
    "H200": 4800,
    "B200": 8000,
    "RTX 5090": 1792,
}
"""The bandwidth of the memory of each GPU in GB/s, by its data sheet."""


def target_of(gpu: Gpu) -> Any:
    return resolve_target({"kind": "cuda", "arch": f"sm_{max(gpu.since or 75, 75)}", "model": gpu.model})


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"arch": "sm_75"}, "T4"),
        ({"arch": "sm_80"}, "A100"),
        ({"arch": "sm_86"}, "RTX 3090"),
        ({"arch": "sm_87"}, "Orin"),
        ({"arch": "sm_89"}, "RTX 4090"),
        ({"arch": "sm_89", "model": "NVIDIA L4"}, "L4"),
        ({"arch": "sm_89", "model": "NVIDIA L40S"}, "L40S"),
        ({"arch": "sm_89", "model": "NVIDIA L40"}, "RTX 4090"),
        ({"arch": "sm_90"}, "H100"),
        ({"arch": "sm_90", "model": "NVIDIA H200"}, "H200"),
        ({"arch": "sm_100"}, "B200"),
        ({"arch": "sm_103"}, "B200"),
        ({"arch": "sm_120"}, "RTX 5090"),
    ],
    ids=str,
)
def test_gpus_have_rows(fields: dict[str, str], model: str) -> None:
    """Check that a GPU without a row has that of the architecture before its own."""
    assert gpu_of(resolve_target({"kind": "cuda", **fields})).model == model


def test_targets_name_models_where_the_architecture_does_not() -> None:
    assert model_of("NVIDIA L4", "sm_89") == "L4"
    assert model_of("NVIDIA GeForce RTX 4090", "sm_89") is None
    assert model_of("NVIDIA H100 80GB HBM3", "sm_90") is None
    assert model_of("NVIDIA H200", "sm_90") is None
    assert model_of("NVIDIA B200", "sm_100") is None


@pytest.mark.parametrize(("model", "gigabytes"), BANDWIDTHS.items())
def test_bandwidths_are_those_of_data_sheets(model: str, gigabytes: float) -> None:
    """Rows count on 97% of them; a slip of a digit in a row of numbers shows here."""
    gpu = gpu_for(model, "sm_90")
    assert gpu.model == model
    assert gpu.bytes_per_clock * gpu.clock == pytest.approx(0.97e9 * gigabytes, rel=0.02)


def test_every_row_has_a_bandwidth() -> None:
    assert [*BANDWIDTHS] == [gpu.model for gpu in GPUS]


def test_a_gpu_has_the_row_of_its_name_first() -> None:
    assert gpu_for("NVIDIA L40S", "sm_89").model == "L40S"
    assert gpu_for("NVIDIA GeForce RTX 4070", "sm_89").model == "RTX 4090"


def test_h100_has_the_numbers_that_its_models_were_fitted_with() -> None:
    assert (H100.multiprocessors, H100.shared_bytes, H100.warps) == (132, 227 * 1024, 64)
    assert (H100.memory_bytes, H100.l2_room, H100.cached_shared_bytes) == (14.1, 40e6, 196 * 1024)


@pytest.mark.parametrize(
    ("fields", "cpu"),
    [
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "znver5"}, CPUS["znver5"]),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}, CPUS["znver4"]),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "znver4", "mattr": ["-avx512f"]}, AVX2),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "znver3"}, CPUS["znver3"]),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}, AVX512),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"}, CPUS["icelake-server"]),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}, AVX2),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, SSE),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "mattr": ["+avx2"]}, AVX2),
        ({"mtriple": "aarch64-linux-gnu"}, NEON),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v2"}, WIDE_NEON),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "neoverse-n1", "mattr": ["+fullfp16"]}, CPUS["neoverse-n1"]),
    ],
    ids=str,
)
def test_cpus_have_rows(fields: dict[str, Any], cpu: Cpu) -> None:
    assert cpu_of(resolve_target({"kind": "llvm", **fields})) == cpu


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.model)
def test_defaults_are_legal_on_every_gpu(gpu: Gpu) -> None:
    target = target_of(gpu)
    assert gpu_of(target) == gpu
    for problem in map(Problem, WORKLOADS):
        for template in templates_for(problem, target):
            assert template.space(problem, target).violated(template.default_config(problem, target)) == []


def test_defaults_follow_the_gpu() -> None:
    """Check that the H200's are the H100's, and that a GPU with half of the multiprocessors has others."""
    h100, h200, l4 = (target_of(next(gpu for gpu in GPUS if gpu.model == name)) for name in ("H100", "H200", "L4"))
    differs = False
    for workload in WORKLOADS:
        problem = Problem(workload)
        made = [(each, problem) for each in templates_for(problem, h100) if each.obstacle(problem, h200) is None]
        for template, given in (*made, (sparse_template(h100), Problem(workload, 0.9))):
            default = template.default_config(given, h100)
            assert template.default_config(given, h200) == default
            differs = differs or template.default_config(given, l4) != default
    assert differs


def test_features_follow_the_device() -> None:
    """Check that the cost model is told of the GPU and the CPU that a task is for, not of one that is taken for all."""

    def features(problem: Problem, algorithm: str, target: Any, config: Any) -> Any:
        return template_for(problem, target, algorithm).features(problem, config, target)

    gpus, newer = (
        [target_of(next(gpu for gpu in GPUS if gpu.model == name)) for name in names]
        for names in (("H100", "L4"), ("A100", "RTX 3090"))
    )
    cpus = [resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu}) for cpu in CORES]
    depthwise, dense, pointwise = map(Problem, WORKLOADS)
    cases = (
        (depthwise, "depthwise", gpus, "warps_per_sm"),
        (dense, "direct", gpus, "balance"),
        (dense, "im2win", gpus, "clocks"),
        (layer((8, 64, 28, 28), (64, 64, 3, 3)), "tensor", newer, "clocks"),
        (Problem(WORKLOADS[1], 0.9), "auto", gpus, "clocks"),
        (pointwise, "pointwise", cpus, "cycles"),
    )
    for problem, algorithm, (one, other), name in cases:
        config = template_for(problem, one, algorithm).default_config(problem, one)
        first, second = (features(problem, algorithm, target, config) for target in (one, other))
        assert first.keys() == second.keys()
        assert first[name] != second[name], (algorithm, name)
