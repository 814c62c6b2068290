"""Programs of torch whose batch, height and width are open, on a real GPU."""

from __future__ import annotations

import pytest

from tests.shared.sparing import every

pytest.importorskip("torch")

from tests.network.frontends.torch_open_cases import FUNCTIONS, Applied, outcome
from tests.network.frontends.torch_pieces import PIECES, SIZES, piece


@pytest.mark.parametrize("name", every(3, FUNCTIONS))
def test_operators_of_open_images(name: str) -> None:
    found = outcome(Applied(FUNCTIONS[name]), device="cuda")
    assert found.kind == "right", found.text


@pytest.mark.parametrize("name", every(2, PIECES))
def test_pieces_of_networks(name: str) -> None:
    found = outcome(piece(name), SIZES, device="cuda")
    assert found.kind == "right", found.text
