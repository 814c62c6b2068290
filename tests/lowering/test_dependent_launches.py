"""Kernels that are launched while the one before is at work: what their code and their launches say."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv.lowering.gpu.dependent_launches import (
    DEPENDENT,
    DYNAMIC_SHARED,
    LAUNCH_PARAMETERS,
    with_dependent_launches,
)
from tvmconv.schedules.cuda import tensor
from tvmconv.targets import cuda, resolve_target

H100 = "nvidia/nvidia-h100"
MULTIPROCESSORS = 132

SHARED = tvmconv.ConvWorkload.conv2d((4, 512, 7, 7), (64, 512, 1, 1), dtype="float16").in_nhwc()
"""A workload whose reduction blocks may share, so that a second kernel adds up."""


def first_statements(source: str) -> list[str]:
    """Return the first statement of each kernel in CUDA source that is no declaration."""
    bodies = re.findall(r"__global__ [^;{]*\{\n(.*?)\n\}", source, re.DOTALL)
    lines = [[line.strip() for line in body.splitlines()] for body in bodies]
    return [next(line for line in body if not re.match(r"extern|alignas|\S+ \w+(\[\d+\])?;", line)) for body in lines]


def test_each_kernel_waits_before_anything_else() -> None:
    operator = tvmconv.compile(SHARED, H100, config=tensor.Config(64, 32, 1, 1, num_stages=4, wgmma=True, split_k=4))
    assert first_statements(operator.source()) == [f"tvmconv::after_others((uint){MULTIPROCESSORS});"] * 2
    assert "griddepcontrol.wait" in operator.source("ptx")


def test_blocks_with_much_shared_memory_let_none_come_before_they_end() -> None:
    operator = tvmconv.compile(SHARED, H100, config=tensor.Config(64, 64, 1, 1, num_stages=8, wgmma=True, teams=2))
    assert first_statements(operator.source()) == ["tvmconv::after_others((uint)0);"]


def test_sparse_kernels_wait_too() -> None:
    convolution = tvmconv.sparse_conv2d(np.ones((4, 8, 3, 3), "float32"), x_shape=(1, 8, 9, 11), target=H100)
    assert first_statements(convolution.source()) == [f"tvmconv::after_others((uint){MULTIPROCESSORS});"]


def test_all_kernels_of_a_network_wait() -> None:
    graph = Graph((1, 8, 9, 11))
    network = tvmconv.build(graph.model(graph.node("Softmax", graph.conv("x", (8, 8, 3, 3)), axis=1)), H100)
    statements = [each for source in cuda.sources(network._executable.mod) for each in first_statements(source)]
    assert len(statements) >= 2
    assert all(re.fullmatch(r"tvmconv::after_others\(\(uint\)\d+\);", each) for each in statements)


def test_the_launch_says_so_before_the_bytes_of_shared_memory() -> None:
    func = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))
    names = ["blockIdx.x", "threadIdx.x", DYNAMIC_SHARED]
    mod = tvm.IRModule({"kernel": func.with_attr(LAUNCH_PARAMETERS, names)})
    changed = with_dependent_launches(mod, resolve_target(H100))["kernel"]
    assert list(changed.attrs[LAUNCH_PARAMETERS]) == ["blockIdx.x", "threadIdx.x", DEPENDENT, DYNAMIC_SHARED]


@pytest.mark.parametrize(("arch", "waits"), [("sm_86", False), ("sm_90", True), ("sm_120", False)])
def test_architectures(arch: str, waits: bool) -> None:
    """Others launch kernels one by one."""
    source = tvmconv.compile(SHARED, {"kind": "cuda", "arch": arch}, algorithm="tensor").source()
    assert ("tvmconv::after_others" in source) == waits
