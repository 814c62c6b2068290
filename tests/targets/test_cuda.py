"""Compilation of CUDA source without a GPU."""

from __future__ import annotations

import shutil

import pytest

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.problem.errors import CompileError
from tvmconv.targets import cuda

SOURCE = tvmconv.compile(ConvWorkload.depthwise((1, 4, 16, 16), (4, 1, 3, 3), dtype="float16"), "cuda").source()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cubin(arch: str) -> None:
    assert cuda.compile_source(SOURCE, arch)[:4] == b"\x7fELF"


@pytest.mark.skipif(shutil.which("nvcc") is None or not cuda.has_nvrtc(), reason="not both of them are installed")
def test_nvcc_and_nvrtc_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    (by_nvrtc,), *_ = cuda.assembled(SOURCE, "sm_90")
    monkeypatch.setattr(cuda, "has_nvrtc", lambda: False)
    (by_nvcc,), ptx, _ = cuda.assembled(SOURCE, "sm_90")
    assert by_nvcc.name == by_nvrtc.name
    assert (by_nvcc.shared_bytes, by_nvcc.spill_store_bytes) == (by_nvrtc.shared_bytes, by_nvrtc.spill_store_bytes)
    assert cuda.compile_source(SOURCE, "sm_90")[:4] == b"\x7fELF"
    assert without_comments(ptx) == without_comments(cuda.to_ptx(SOURCE, "sm_90"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_ptx_on_the_way_is_ptx_alone(arch: str) -> None:
    assert without_comments(cuda.assembled(SOURCE, arch).ptx) == without_comments(cuda.to_ptx(SOURCE, arch))


def without_comments(ptx: str) -> list[str]:
    return [line for line in ptx.splitlines() if not line.startswith("//")]


def test_compiler_errors_are_passed_on() -> None:
    with pytest.raises(CompileError, match="(?s)sm_90:.*nonsense"):
        cuda.compile_source("nonsense", "sm_90")
    with pytest.raises(CompileError, match="sm_1"):
        cuda.compile_source(SOURCE, "sm_1")


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "has_nvrtc", lambda: False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompileError, match=r"no CUDA compiler is installed: pip install 'tvmconv\[cuda\]'"):
        cuda.compile_source(SOURCE, "sm_90")


def test_standard_library_is_kept_where_it_is_used() -> None:
    assert "cuda/std" not in cuda.without_standard_library(SOURCE)
    used = SOURCE + "\nstatic_assert(std::is_same<int, int>::value);\n"
    assert cuda.without_standard_library(used) == used
    assert cuda.compile_source(used, "sm_90")[:4] == b"\x7fELF"


def test_inline_ptx_as_tvm_writes_it() -> None:
    """A predicated cp.async compiles, without the headers that NVRTC lacks."""
    written = SOURCE + '\n__device__ void fence() { __asm__ __volatile__("membar.gl;"); }\n'
    assert cuda.compile_source(written, "sm_90")[:4] == b"\x7fELF"
