"""Indices that a program of torch computes: each is compared with the axis that it indexes, and errors say which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.shared.sparing import in_turns, sparing

torch = pytest.importorskip("torch")

import tvmconv  # noqa: E402
from tvmconv.problem.errors import InvalidArgumentError  # noqa: E402

AUTO = torch.export.Dim.AUTO


@dataclass(frozen=True)
class Case:
    """A function of a tensor (3, 4, 5) and of two tensors of two indices, the axis of the first of which is varied."""

    name: str
    function: Callable[..., Any]
    axis: int | None
    """The axis that the first indices are of; None where these count all elements."""

    def __str__(self) -> str:
        return self.name


def along_rows(i: torch.Tensor) -> torch.Tensor:
    """Return two indices as a tensor (3, 2, 5), each for a row."""
    return i[None, :, None].expand(3, 2, 5)


CASES = (
    Case("rows", lambda x, i, j: x[i], 0),
    Case("columns", lambda x, i, j: x[:, i], 1),
    Case("first-of-two", lambda x, i, j: x[i, j], 0),
    Case("second-of-two", lambda x, i, j: x[j, i], 1),
    Case("behind-a-slice", lambda x, i, j: x[:, j, i], 2),
    Case("around-a-slice", lambda x, i, j: x[j, :, i], 2),
    Case("outer", lambda x, i, j: x[j[:, None], i], 1),
    Case("last-of-three", lambda x, i, j: x[j, j, i], 2),
    Case("take", lambda x, i, j: torch.take(x, i), None),
    Case("put-row", lambda x, i, j: x.index_put((i,), x[:2] * 0), 0),
    Case("put-columns", lambda x, i, j: x.index_put((j, i), x[:2, 0] * 0), 1),
    Case("put-sums", lambda x, i, j: x.index_put((j, i), x[:2, 0], accumulate=True), 1),
    Case("index-select", lambda x, i, j: x.index_select(1, i), 1),
    Case("gather", lambda x, i, j: x.gather(1, along_rows(i)), 1),
    Case("scatter", lambda x, i, j: x.scatter(1, along_rows(i), x[:, :2] * 0), 1),
    Case("scatter-add", lambda x, i, j: x.scatter_add(1, along_rows(i), x[:, :2]), 1),
    Case("embedding", lambda x, i, j: torch.nn.functional.embedding(i, x[0]), 1),
)


class Applied(torch.nn.Module):  # type: ignore[misc]
    """A case's function as a module."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return self.case.function(x, i, j) + 0 * j.sum()


@pytest.mark.parametrize(("case", "is_open"), sparing(product(CASES, (False, True)), in_turns), ids=str)
def test_indices_of_an_axis(case: Case, is_open: bool) -> None:
    x, j = torch.arange(60.0).reshape(3, 4, 5), torch.tensor([1, 0])
    shapes = ({1: AUTO, 2: AUTO}, {}, {}) if is_open else None
    program = torch.export.export(Applied(case).eval(), (x, torch.tensor([1, 2]), j), dynamic_shapes=shapes)
    network = tvmconv.build(tvmconv.import_model(program), "llvm")
    size = x.numel() if case.axis is None else x.shape[case.axis]
    takes_negative = case.name not in ("index-select", "gather", "scatter", "scatter-add", "embedding")
    for inside in ([0, size - 1], *([[-1, -size]] if takes_negative else [])):
        i = torch.tensor(inside)
        torch.testing.assert_close(network(x, i, j), case.function(x, i, j))
    for index in (size, size + 1, -size - 1, -2 * size, 10**12):
        with pytest.raises(InvalidArgumentError, match=rf"index is {index}; expected one in range"):
            network(x, torch.tensor([0, index]), j)
