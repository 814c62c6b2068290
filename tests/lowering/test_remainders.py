"""Indices with remainders by powers of two, which LLVM vectorizes as if they went on behind the end of an axis."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.shared.sparing import sparing
from tvmconv.lowering import build
from tvmconv.targets import resolve_target

CASES = product(((16, 4), (8, 2), (16, 8), (3, 16)), ((0, 0), (1, 1), (3, 0)), ((1, 1), (2, 2), (3, 1), (4, 8)))
"""Sizes of planes, shifts of both axes, and repeats."""


@pytest.mark.parametrize(
    ("plane", "shift", "repeats"),
    sparing(CASES, lambda number: (number + number // 4) % 2 == 0),  # each plane with each shift and with each repeat
    ids=str,
)
def test_rolled_and_repeated(plane: tuple[int, int], shift: tuple[int, int], repeats: tuple[int, int]) -> None:
    """Planes of sizes that are powers of two are moved around and repeated along both axes."""
    rows, columns = plane
    x = te.placeholder((8, rows, columns), name="x")
    shape = (8, rows * repeats[0], columns * repeats[1])
    y = te.compute(
        shape, lambda c, i, j: x(c, tirx.floormod(i + shift[0], rows), tirx.floormod(j + shift[1], columns)), name="y"
    )
    kernel = build(tvm.IRModule({"main": te.create_prim_func([x, y])}), resolve_target("llvm"))
    image = np.random.default_rng(0).random((8, rows, columns), dtype="float32")
    result = np.full(shape, np.nan, "float32")
    arrays = tvm.runtime.tensor(image), tvm.runtime.tensor(result)
    kernel["main"](*arrays)
    rolled = np.roll(image, (-shift[0], -shift[1]), (1, 2))
    np.testing.assert_array_equal(arrays[1].numpy(), np.tile(rolled, (1, *repeats)))
