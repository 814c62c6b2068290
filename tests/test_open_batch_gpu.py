"""Kernels and networks with an open batch on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from open_batches import BATCHES, CASES, Open, images, model

import tvmconv
from tvmconv.lowering import KERNEL_NAME, build_function
from tvmconv.schedules.cuda import tensor
from tvmconv.targets import has_gpu, resolve_target, tensor_instructions
from tvmconv.testing import check_result, random_operands

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_kernel_computes_every_batch(case: Open) -> None:
    target, device = resolve_target("cuda"), tvm.cuda()
    if isinstance(case.config, tensor.Config):
        family = "wgmma" if case.config.wgmma else "mma"
        if family not in tensor_instructions(target):
            pytest.skip(f"this GPU has no {family}")
    kernel = build_function(case.func(target), target)
    for batch in BATCHES:
        operands = random_operands(case.at(batch))
        tensors = [tvm.runtime.tensor(array, device) for array in operands.values()]
        memory = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in kernel.workspace.sized(case.at(batch))]
        kernel.executable[KERNEL_NAME](*tensors, *memory)
        check_result(case.at(batch), operands, tensors[-1].numpy(), precision=case.problem.precision)


def test_a_network_runs_every_batch() -> None:
    """The batches are in the ranges of all kernels, and at their ends; the first comes again after the largest."""
    network = tvmconv.build(model("n"), "cuda")
    for batch in (1, 2, 3, 7, 8, 9, 33, 64, 65, 200, 1):
        x = images(batch)
        expected = tvmconv.build(model(batch))(x)
        assert np.abs(network(x) - expected).max() < 1e-4 * np.abs(expected).max()
