"""NaN in networks: reductions and comparisons treat it as torch does, in each dtype."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.shared.network_graph import Graph  # noqa: E402
from tests.shared.torch_modules import Function  # noqa: E402
from tvmconv.network import build, import_model  # noqa: E402

NAN = torch.nan
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest": lambda x: x.amax(1),
    "smallest-of-columns": lambda x: x.amin(0),
    "index-of-largest": lambda x: x.argmax(1),
    "index-of-smallest": lambda x: x.argmin(1),
    "index-in-all": lambda x: x.argmax(),
    "unequal": lambda x: x != 0,
    "unequal-tensors": lambda x: x != x.flip(0),
    "not-at-least": lambda x: ~(x >= 0),
    "count-of-nonzero": lambda x: x.count_nonzero(1),
}


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Return rows with NaN at the beginning, inside, at the end, of either sign, nowhere, and with equal extremes."""
    x = torch.linspace(-3, 3, 6 * 37).reshape(6, 37).sin()
    x[0, 0] = x[1, 5] = x[1, 9] = x[2, 36] = NAN
    x[3] = -x[3]
    x[3, 7] = torch.tensor(0x7FC00000 - (1 << 31), dtype=torch.int32).view(torch.float32)  # a negative NaN
    x[4, 3], x[4, 4], x[4, 8:10], x[4, 20:22] = 0.0, -0.0, torch.inf, -torch.inf
    x[5] = torch.tensor([-0.0, 0.0] * 18 + [-0.0])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_as_torch(dtype: torch.dtype) -> None:
    """All functions are outputs of one network."""
    x, together = numbers(dtype), Function(lambda x: tuple(function(x) for function in FUNCTIONS.values()))
    for name, y, expected in zip(FUNCTIONS, build(import_model(together, (x,)))(x), together(x), strict=True):
        torch.testing.assert_close(
            y, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_index_among_least_and_largest_integers(name: str) -> None:
    graph = Graph((2, 5), "int8")
    x = np.full((2, 5), -128 if name == "ArgMax" else 127, "int8")
    np.testing.assert_array_equal(build(import_model(graph.model(graph.node(name, "x", axis=1))))(x), [[0], [0]])


@pytest.mark.parametrize("length", [3, 70])
def test_extremes_of_infinite_numbers(length: int) -> None:
    graph = Graph((2, length))
    axes = graph.constant([1], "int64")
    nodes = [
        *(graph.node(operator, "x", axes) for operator in ("ReduceMax", "ReduceMin")),
        *(graph.node(operator, "x", axis=1) for operator in ("ArgMax", "ArgMin")),
    ]
    x = np.full((2, length), np.inf, "float32")
    x[0] = -np.inf
    found = build(import_model(graph.model(*nodes)))(x)
    for y in found[:2]:
        np.testing.assert_array_equal(y, [[-np.inf], [np.inf]])
    for y in found[2:]:
        np.testing.assert_array_equal(y, [[0], [0]])
