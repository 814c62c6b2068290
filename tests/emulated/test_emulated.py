"""The emulator of GPUs computes what CUDA does, also where NumPy's operator of the name does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tests.emulated.network import lowered, run

ROUNDED = {
    "floor": [-3, -2, -2, -1, 0, 1, 1, 2],
    "ceil": [-2, -1, -1, 0, 1, 2, 2, 3],
    "trunc": [-2, -1, -1, 0, 0, 1, 1, 2],
    "round": [-2, -2, -2, 0, 0, 2, 2, 2],
    "nearbyint": [-2, -2, -2, 0, 0, 2, 2, 2],
}
"""What becomes of -2.5, -1.7, -1.5, -0.5, 0.5, 1.5, 1.7 and 2.5."""


def computed(function: Callable[..., Any], *inputs: list[float], dtype: str) -> list[float]:
    """Return what a kernel computes of each element of its inputs."""
    arrays = [np.array(each, dtype) for each in inputs]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(each.shape, dtype)) for i, each in enumerate(arrays)]

    def elements(*tensors: te.Tensor) -> te.Tensor:
        return te.compute(tensors[0].shape, lambda index: function(*(tensor[index] for tensor in tensors)))

    with builder.function("main", params):
        with builder.dataflow():
            output = builder.emit_output(builder.emit_te(elements, *params))
        builder.emit_func_output(output)
    found = run(lowered(builder.get()), arrays)
    assert len(found.kernels) == 1
    assert found.outputs[0].dtype == dtype
    return list(found.outputs[0].tolist())


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding(name: str) -> None:
    x = [-2.5, -1.7, -1.5, -0.5, 0.5, 1.5, 1.7, 2.5]
    assert computed(getattr(tirx, name), x, dtype="float32") == ROUNDED[name]


DIVIDENDS, DIVISORS = [-7, -7, 7, 7, -6, 0, 1, 100], [3, -3, 3, -3, 3, 5, 2, 7]


def test_quotients_of_integers_are_rounded_toward_zero() -> None:
    found = computed(lambda x, y: tirx.truncdiv(x, y) * 10, DIVIDENDS, DIVISORS, dtype="int32")
    assert found == [-20, 20, 20, -20, -20, 0, 0, 140]
    assert computed(tirx.truncmod, DIVIDENDS, DIVISORS, dtype="int32") == [-1, -1, 1, 1, 0, 0, 1, 2]
    assert computed(tirx.floordiv, DIVIDENDS, DIVISORS, dtype="int32") == [-3, 2, 2, -3, -2, 0, 0, 14]


def test_quotients_of_bytes_and_of_numbers() -> None:
    two = tirx.const(2, "uint8")
    assert computed(lambda x, y: tirx.truncdiv(x, y) * two, [255, 9], [2, 4], dtype="uint8") == [254, 4]
    assert computed(lambda x, y: x / y * 10, [7.0, -7.0], [4.0, 4.0], dtype="float32") == [17.5, -17.5]
