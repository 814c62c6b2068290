"""Machine code of convolutions on tensor cores: resources, and the instructions that are meant."""

from __future__ import annotations

import re
from itertools import product

import msgspec
import pytest

from tests.emulated.twins_and_cubins import compiled
from tests.schedules.cases.integers import INTEGERS
from tests.schedules.cases.tensor import (
    ALL_CASES,
    FIRST,
    IN_ALL_KINDS,
    KINDS,
    layer,
)
from tests.shared.sparing import every, sparing
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.tensor import Config
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.schedules.cuda.tensor.default import CANDIDATES
from tvmconv.targets import resolve_target

SM_80 = {"kind": "cuda", "arch": "sm_80"}


def check_resources(problem: Problem, config: Config | None, arch: str) -> str:
    """Check that kernels spill nothing and leave room for their blocks, and return their PTX."""
    return compiled("tensor", problem, config, resolve_target({"kind": "cuda", "arch": arch}))


@pytest.mark.parametrize("arch", every(2, ("sm_80", "sm_86", "sm_90", "sm_89", "sm_120")))
def test_cubin_of_the_default(arch: str) -> None:
    check_resources(layer((2, 64, 9, 9), (96, 64, 3, 3), "bfloat16", shift=True, activation="relu"), None, arch)


def test_cubin_of_three_groups_of_warps() -> None:
    """A large tile has few registers left, but spills none."""
    problem = layer((128, 256, 14, 14), (256, 256, 3, 3), shift=True, residual=True, activation="relu")
    check_resources(problem, Config(192, 256, 3, 1, num_stages=3, wgmma=True), "sm_90")


def half_mma(dtype: str) -> str:
    return f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32"


TF32_MMA, TF32_WGMMA = (
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32",
)
LOAD, NEAREST, FENCE = "ldmatrix.sync.aligned.m8n8.x4", "cvt.rna.tf32.f32", "fence.proxy.async"
INSTRUCTIONS = (
    ("3x3", "sm_80", (half_mma("f16"), LOAD)),
    ("NCHW-float32", "sm_80", (TF32_MMA, LOAD, "cvt.rna.satfinite.tf32.f32")),
    ("NCHW-float32-wgmma", "sm_90", (TF32_WGMMA, LOAD, FENCE)),
    ("1x1", "sm_90", (half_mma("bf16"), LOAD)),
    ("3x3-wgmma", "sm_90", ("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16", FENCE)),
    ("NCHW-tf32", "sm_80", (TF32_MMA, LOAD, NEAREST)),
    ("NCHW-tf32-wgmma", "sm_90", (TF32_WGMMA, LOAD, NEAREST, FENCE)),
    ("cluster-wgmma", "sm_90", ("mapa.shared::cluster", "ld.shared::cluster.v4.b32", "barrier.cluster.wait")),
    ("NCHW-half", "sm_80", (half_mma("f16"), LOAD)),
    ("NCHW-half-wgmma", "sm_90", ("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16", FENCE)),
)


@pytest.mark.parametrize(("name", "arch", "instructions"), sparing(INSTRUCTIONS, lambda number: number < 5))
def test_instructions(name: str, arch: str, instructions: tuple[str, ...]) -> None:
    """Each of the instructions that are meant is in the kernel's PTX."""
    ptx = check_resources(*ALL_CASES[name], arch)
    for instruction in (*instructions, "cp.async.cg.shared.global", "cp.async.wait_group"):
        assert instruction in ptx, instruction


@pytest.mark.parametrize(
    ("family", "arch", "instruction"),
    sparing([("", "sm_80", TF32_MMA), ("-wgmma", "sm_90", TF32_WGMMA)], lambda _: False),
    ids=["mma", "wgmma"],
)
def test_float32_is_three_products(family: str, arch: str, instruction: str) -> None:
    codes = [check_resources(*IN_ALL_KINDS[f"NCHW-{kind}{family}"], arch) for kind in ("tf32", "float32")]
    one, three = (ptx.count(instruction) for ptx in codes)
    assert three == 3 * one > 0


INTEGER_INSTRUCTIONS = (
    ("128-channels", "sm_80", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
    ("128-channels-wgmma", "sm_90", "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8"),
    ("no-padding", "sm_120", "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"),
    ("256-channels-1x1", "sm_90", "wgmma.mma_async.sync.aligned.m64n48k32.s32.u8.s8"),
    ("gelu", "sm_90", "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8"),
    ("split-k-in-integers", "sm_89", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
)


@pytest.mark.parametrize(("name", "arch", "instruction"), sparing(INTEGER_INSTRUCTIONS, lambda number: number < 3))
def test_instructions_of_integers(name: str, arch: str, instruction: str) -> None:
    """Kernels of integers have their instructions, and no sums in another type."""
    ptx = check_resources(*INTEGERS[name], arch)
    assert instruction in ptx
    assert {line.split(" ")[0] for line in ptx.splitlines() if "mma.sync" in line} <= {f"\t{instruction}"}


def test_integers_are_stored_in_words() -> None:
    """Four of them are rounded to even by a sum in float32, and stored as one word."""
    options = {"out_dtype": "int8", "scale": True, "shift": True, "residual": True, "activation": "relu"}
    problem, target = layer((1, 64, 9, 9), (64, 64, 3, 3), "uint8", **options), resolve_target(SM_80)
    source = build_kernel(problem, select(problem, target), target).executable.mod.imports[0].inspect_source()
    assert "*(int*)(output_ptr" in source
    assert re.search(r"0x1\.8\w*p\+23f", source)
    assert "round" not in source.partition("__global__")[2]


COMPILED = (
    ("split-k-epilogue", "sm_90"),
    ("epilogue-half", "sm_90"),
    ("room-for-more", "sm_90"),
    ("three-groups-of-warps", "sm_90"),
    *product(
        (
            "epilogue-half",
            "NCHW-to-NHWC-half",
            "NHWC-to-NCHW-half",
            "3-channels-7x7-half",
            "groups-of-5-channels-half",
            "20-outputs-half",
            "many-images-half",
            "epilogue-float32",
            "epilogue-tf32",
            "3-channels-7x7-float32",
            "3-channels-11x11-last-tf32",
        ),
        ("sm_80",),
    ),
    *product(
        (
            "epilogue-half-wgmma",
            "NHWC-to-NCHW-half-wgmma",
            "3-channels-11x11-half-wgmma",
            "20-outputs-half-wgmma",
            "strides-and-padding-half-wgmma",
            "epilogue-float32-wgmma",
            "epilogue-tf32-wgmma",
            "groups-of-5-channels-float32-wgmma",
            "3-channels-7x7-tf32-wgmma",
        ),
        ("sm_90",),
    ),
)
"""Cases that are compiled for a GPU too, which takes seconds: what a twin computes CUDA may yet refuse."""


@pytest.mark.parametrize(("name", "arch"), sparing(COMPILED, lambda number: number < 2))
def test_cubin_of_configuration(name: str, arch: str) -> None:
    check_resources(*ALL_CASES[name], arch)


@pytest.mark.release
@pytest.mark.parametrize("name", INTEGERS)
def test_cubins_of_integers(name: str) -> None:
    problem, config = INTEGERS[name]
    check_resources(problem, config, "sm_90" if config.wgmma or config.in_cluster else "sm_80")


def test_bits_of_constants() -> None:
    """What is past the last channel of a tile is a constant, whose bits are read where it is rounded."""
    check_resources(*INTEGERS["past-the-last-channel"], "sm_90")


EPILOGUE = {"shift": True, "residual": True, "activation": "relu"}
LARGE = layer((2, 256, 28, 28), (256, 256, 3, 3), "float32", FIRST, **EPILOGUE)
LARGE_OF_INTEGERS = layer(
    (2, 256, 28, 28), (256, 256, 3, 3), "int8", FIRST, out_dtype="int8", x_zero_point=3, **EPILOGUE
)


@pytest.mark.release
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kind", [*KINDS, "int8"])
def test_cubins_of_candidates(kind: str, arch: str) -> None:
    """None of the tiles that a default is chosen from spills, where it is legal."""
    problem = LARGE_OF_INTEGERS
    if kind in KINDS:
        dtype, precision = KINDS[kind]
        problem = Problem(msgspec.structs.replace(LARGE.workload, dtype=dtype), precision=precision)
    legal = tensor.constraints(problem, resolve_target({"kind": "cuda", "arch": arch})).values()
    candidates = [config for config in CANDIDATES if all(holds(config) for holds in legal)]
    assert len(candidates) >= 5
    for config in candidates:
        check_resources(problem, config, arch)
