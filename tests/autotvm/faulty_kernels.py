"""Trials with libraries of one's own, working and failing ones, for tests of everything that runs trials."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tvmconv import ConvWorkload
from tvmconv.autotvm import task
from tvmconv.autotvm.measure import BuildResult, MeasureInput, Runner, Status
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.lowering.workspace import NO_WORKSPACE
from tvmconv.runtime.storage import find_compiler

WORKLOAD = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3), padding=(1, 1, 1, 1), scale=True, activation="relu")
TASK = task.create(WORKLOAD, "llvm")
TRIAL = MeasureInput(TASK.target, TASK, TASK.space.default)

HANGS = "for (;;) pause();"
"""The body of a kernel that never ends, and leaves the processor to others."""

by_fault = pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return 0;", Status.WRONG_ANSWER),
        (HANGS, Status.RUN_TIMEOUT),
        ("abort();", Status.CRASH),
        ("exit(0);", Status.CRASH),
    ],
    ids=["writes-nothing", "hangs", "aborts", "exits"],
)


def assert_told_apart(runner: Runner, library: BuildResult, status: Status) -> None:
    result = runner.run(TRIAL, library)
    assert (result.status, result.costs) == (status, ())
    assert result.reason


def library(folder: Path, body: str) -> BuildResult:
    """Return a library whose kernel is a line of C++."""
    source, path = folder / "kernel.cc", folder / "kernel.so"
    signature = 'extern "C" int __tvm_ffi_tvmconv_kernel(void*, void*, int, void*)'
    source.write_text(f"#include <cstdlib>\n#include <unistd.h>\n{signature} {{ {body} }}\n")
    subprocess.run([*find_compiler(), "-shared", "-fPIC", "-O0", "-o", str(path), str(source)], check=True)
    return BuildResult(str(path), NO_WORKSPACE, 0.0)


def built(builder: LocalBuilder, workload: ConvWorkload) -> BuildResult:
    other = task.create(workload, "llvm")
    return builder.build(MeasureInput(other.target, other, other.space.default)).result()
