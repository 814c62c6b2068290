"""Sparse convolutions on the CPU against the float64 reference, and their machine code."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from tests.schedules.cases.sparse_cpu import config
from tvmconv import ConvWorkload
from tvmconv.lowering.folding.folding import expanded
from tvmconv.problem.constants import COMPILED_IN, constants_of
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime.arrays import operand
from tvmconv.runtime.sparse.operator import SparseOperator, compile_operator
from tvmconv.schedules.cpu.sparse import Config
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import cpu_of
from tvmconv.testing import check_result, random_operands

CPU, AVX2 = resolve_target("llvm"), resolve_target({"kind": "llvm", "mcpu": "haswell"})


def pruned(workload: ConvWorkload, density: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.where(rng.random(workload.w_shape) < density, rng.standard_normal(workload.w_shape), 0)


def check(workload: ConvWorkload, weight: np.ndarray, chosen: Config | None = None) -> SparseOperator:
    operands = {**random_operands(workload), "w": weight.astype(workload.dtype)}
    kernel = compile_operator(workload, constants_of(operands), CPU, chosen)
    tensors = [tvm.runtime.tensor(array) for name, array in operands.items() if name not in COMPILED_IN]
    kernel._kernel(*tensors)
    check_result(workload, operands, tensors[-1].numpy())
    return kernel


LAYER = ConvWorkload.conv2d((1, 6, 9, 17), (12, 6, 3, 3), padding=1, shift=True)


def weights() -> dict[str, np.ndarray]:
    single = np.zeros(LAYER.w_shape)
    single[5, 3, 1, 2] = 2.0
    holes = pruned(LAYER, 0.5)
    holes[3], holes[:, 4] = 0, 0
    return {
        "random": pruned(LAYER),
        "single": single,
        "zero-filter-and-channel": holes,
        "all-zero": np.zeros(LAYER.w_shape),
        "dense": pruned(LAYER, 1.0),
        "ones": np.ones(LAYER.w_shape),
        "denormal": np.full(LAYER.w_shape, 1e-41),
    }


@pytest.mark.parametrize("name", weights())
def test_weight(name: str) -> None:
    check(LAYER, weights()[name])


def test_weights_stay_where_they_are_used() -> None:
    """LLVM would move them out of the loop over tiles; the module keeps the option that forbids it."""
    workload = ConvWorkload.conv2d((1, 4, 8, 8), (8, 4, 3, 3))
    kernel = check(workload, pruned(workload), config())
    assert "-disable-machine-licm" in kernel.source()


def test_inputs_need_no_alignment() -> None:
    operands = random_operands(LAYER)
    kernel = compile_operator(LAYER, {**constants_of(operands), "w": pruned(LAYER).astype("float32")}, CPU)
    x = np.empty(operands["x"].size + 1, "float32")[1:].reshape(operands["x"].shape)
    x[:] = operands["x"]
    outputs = []
    for each in (x, operands["x"]):
        output = tvm.runtime.empty(LAYER.output_shape)
        kernel._kernel(operand("x", each).argument, output)
        outputs.append(output.numpy())
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(("target", "register"), [(CPU, "zmm"), (AVX2, "ymm")], ids=["avx512", "avx2"])
def test_machine_code(target: tvm.target.Target, register: str) -> None:
    """It has one multiply-add for each non-zero and vector of pixels, and hardly a sum leaves its register."""
    if target is CPU and cpu_of(CPU).lanes != 16:
        pytest.skip("this machine has no AVX-512")
    workload = ConvWorkload.conv2d((1, 32, 16, 16), (24, 32, 3, 3), padding=1)
    weight = pruned(workload).astype("float32")
    kernel = compile_operator(workload, {"w": weight}, target)
    lines = kernel.source("asm").splitlines()
    products = [line for line in lines if re.search(rf"v(fmadd|mul)\w*ps.*{register}", line)]
    left = kernel.report.left
    assert left == np.count_nonzero(weight) * kernel.selection.config.vectors
    assert left <= len(products) <= 1.05 * left
    spills = [line for line in lines if re.search(rf"{register}.*\(%[er]sp|\(%[er]sp.*{register}", line)]
    assert len(spills) < 0.2 * left


@pytest.mark.parametrize(("target", "lanes"), [(CPU, cpu_of(CPU).lanes), (AVX2, 8)], ids=["native", "avx2"])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_vectors_are_whole(target: tvm.target.Target, lanes: int, missing: int) -> None:
    """This holds for rows with fewer pixels than lanes too: LLVM handles other sizes badly."""
    workload = ConvWorkload.conv2d((1, 4, 6, lanes - missing), (6, 4, 3, 3), padding=1)
    kernel = compile_operator(workload, {"w": pruned(workload).astype("float32")}, target)
    assert set(re.findall(r"fmuladd\.v(\d+)f32\(<", kernel.source())) == {str(lanes)}


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39], ids=str)
def test_weight_that_is_not_finite_in_float32(value: float) -> None:
    workload = ConvWorkload.conv2d((1, 2, 4, 4), (2, 2, 1, 1))
    with pytest.raises(InvalidArgumentError, match="weight is 'NaN or infinite in places'"):
        expanded(workload, {"w": np.full(workload.w_shape, value)})
