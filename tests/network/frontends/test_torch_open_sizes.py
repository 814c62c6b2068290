"""Programs of torch whose batch, height and width are open, at other sizes than that of the export."""

from __future__ import annotations

from itertools import product

import pytest

from tests.shared.sparing import every

torch = pytest.importorskip("torch")
for package in ("onnxruntime", "onnxscript"):
    pytest.importorskip(package)

import tvmconv  # noqa: E402
from tests.network.frontends.torch_open_cases import (  # noqa: E402
    AUTO,
    EXAMPLE,
    EXPORTERS,
    FUNCTIONS,
    Applied,
    export_open,
    image,
    outcome,
)
from tests.network.frontends.torch_pieces import PIECES, piece  # noqa: E402
from tests.network.frontends.torch_pieces import SIZES as SIZES_OF_PIECES  # noqa: E402
from tvmconv.problem.errors import InvalidArgumentError  # noqa: E402

NOT_EXPORTED = {
    *((name, "torchscript") for name in ("pyramid-pooling", "spatial-pools", "halo")),
    ("spatial-pools", "dynamo"),
}
"""What torch's exporters refuse: pools of open sizes to given ones, and windows of open sizes."""

PROGRAMS = [each for each in product(PIECES, EXPORTERS) if each not in NOT_EXPORTED]


@pytest.mark.parametrize("name", every(9, FUNCTIONS))
def test_operators_of_open_images(name: str) -> None:
    found = outcome(Applied(FUNCTIONS[name]))
    assert found.kind == "right", found.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "exporter"), every(7, PROGRAMS))
def test_pieces_of_networks(name: str, exporter: str) -> None:
    found = outcome(piece(name), SIZES_OF_PIECES, exporter)
    assert found.kind == "right", found.text


class Branch(torch.nn.Module):  # type: ignore[misc]
    """A module that computes something else where a test of the image's sizes is false."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[2] % 4 == 0 and x.shape[2] < x.shape[3] else x * 3


def test_guards_of_the_export() -> None:
    network = tvmconv.build(tvmconv.import_model(export_open(Branch(), EXAMPLE)), "llvm")
    for height, width in ((20, 24), (8, 9)):
        x = image((1, 6, height, width))
        torch.testing.assert_close(network(x), x * 2)
    for height, width in ((18, 24), (24, 20)):
        with pytest.raises(InvalidArgumentError, match=r"torch\.export made the program for such sizes alone"):
            network(image((1, 6, height, width)))


def test_assertion_of_a_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[2] * x.shape[3] > 50)
        return x + 1

    network = tvmconv.build(tvmconv.import_model(export_open(Applied(function), EXAMPLE)), "llvm")
    assert network(image((1, 6, 8, 9))).shape == (1, 6, 8, 9)
    with pytest.raises(InvalidArgumentError, match="50 < "):
        network(image((1, 6, 5, 6)))


def test_size_that_is_a_multiple_of_another() -> None:
    half = torch.export.Dim("half", min=2, max=40)
    module = Applied(lambda x: torch.nn.functional.max_pool2d(x, 2) + x[:, :, ::2, ::2])
    shapes = ({0: AUTO, 2: 2 * half},)
    program = torch.export.export(module.eval(), (image(EXAMPLE),), dynamic_shapes=shapes)
    network = tvmconv.build(tvmconv.import_model(program), "llvm")
    for shape in (EXAMPLE, (1, 6, 10, 24)):
        torch.testing.assert_close(network(image(shape)), module(image(shape)))
    with pytest.raises(InvalidArgumentError, match="// 2"):
        network(image((1, 6, 11, 24)))
