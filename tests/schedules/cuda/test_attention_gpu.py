"""The kernel of attention on a real GPU, beside float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.schedules.cases.attention import KERNELS, Kernel
from tvmconv import lowering
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets import device_for, resolve_target


def computed(case: Kernel, times: int) -> list[np.ndarray]:
    """Return what the kernel of a case computes, several times."""
    target, dtype = resolve_target("cuda"), case.attention.out_dtype
    module = tvm.IRModule({"attention": case.function(target)})
    kernel, device = lowering.build(module, target)["attention"], device_for(str(target))
    operands = [tvm.runtime.tensor(array.reshape(-1), device) for array in case.operands().values()]
    results = []
    for _ in range(times):
        output = np.full(case.attention.output.elements, np.nan, STORAGE_TYPES[dtype].numpy)
        result = tvm.runtime.tensor(output, device)
        kernel(*operands, result)
        results.append(result.numpy())
    return results


@pytest.mark.parametrize("name", KERNELS)
def test_numbers(name: str) -> None:
    """They are those of float64, and twice the same."""
    results = computed(KERNELS[name], 2)
    KERNELS[name].check(results[0])
    np.testing.assert_array_equal(*results)


CHAINS = {
    "vit": Kernel(6, 197, 197, 64, 64, "float32", "float32", scale=0.125, size=3, parts=2),
    "long": Kernel(1, 64, 2048, 64, 64, "float32", "float32", scale=0.125, parts=2),
    "wide": Kernel(2, 64, 300, 128, 128, "float32", "float32", scale=0.125, tile_keys=32, parts=2),
}
"""Kernels in float32 of sizes that networks have."""


@pytest.mark.parametrize("name", CHAINS)
def test_accuracy_of_float32(name: str) -> None:
    """Errors are at most three times those of chains of multiply-adds: tensor cores round toward zero, unseen here."""
    case = CHAINS[name]
    (found,), expected = computed(case, 1), case.expected()
    errors = [np.sqrt(np.mean((y.reshape(expected.shape) - expected) ** 2)) for y in (found, case.in_chains())]
    print(f"{name}: {errors[0]:.3g}, by chains {errors[1]:.3g}")
    assert errors[0] < 3 * errors[1]
