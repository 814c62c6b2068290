"""LLVM's options, which a process has once: threads make code with those of their own targets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

import tvmconv
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.targets import llvm, resolve_target

PROBLEM = Problem(tvmconv.ConvWorkload.conv2d((1, 16, 9, 11), (24, 16, 3, 3), padding=1))


def test_threads_make_code_with_their_own_options() -> None:
    """With the option, constants stay in loops: the assembly is another."""
    plain = resolve_target("llvm")
    config = json.loads(str(plain))
    other = resolve_target({**config, "cl-opt": ["-disable-machine-licm:bool=true"]})
    selection = select(PROBLEM, plain, algorithm="direct")
    targets = [plain, other] * 3
    modules = [build_kernel(PROBLEM, selection, target).executable.mod for target in targets]

    def assembly(module: Any) -> str:
        with llvm.options_of(module):
            return str(module.inspect_source("asm"))

    alone = [assembly(module) for module in modules[:2]]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(assembly, modules)) == alone * 3


def test_sparse_kernels_of_threads_leave_no_options_behind() -> None:
    """Sparse kernels have an option of their own; assembly of a dense kernel is the same behind them."""
    dense = build_kernel(PROBLEM, select(PROBLEM, resolve_target("llvm")), resolve_target("llvm")).executable.mod
    before = str(dense.inspect_source("asm"))

    def compiled(seed: int) -> Any:
        weight = np.random.default_rng(seed).standard_normal((8, 8, 3, 3)).astype("float32")
        weight[np.abs(weight) < 1.5] = 0
        return tvmconv.sparse_conv2d(weight, x_shape=(1, 8, 9, 11), target="llvm")

    with ThreadPoolExecutor(2) as pool:
        kept = list(pool.map(compiled, range(6)))
    assert len(kept) == 6
    assert str(dense.inspect_source("asm")) == before


def test_threads_wait_for_other_options_alone() -> None:
    plain, seconds = resolve_target("llvm"), 30
    other = resolve_target({**json.loads(str(plain)), "cl-opt": ["-disable-machine-licm:bool=true"]})

    def enter(target: object) -> None:
        with llvm.options_for(target):
            pass

    with ThreadPoolExecutor(3) as pool:
        with llvm.options_for(plain):
            pool.submit(enter, plain).result(seconds)  # side by side
            waiting = pool.submit(enter, other)
            assert not wait([waiting], 0.1).done
        waiting.result(seconds)
        with llvm.options_for(other):
            both = [pool.submit(enter, target) for target in (plain, other)]
            assert not wait(both, 0.1).done
        for each in both:
            each.result(seconds)
