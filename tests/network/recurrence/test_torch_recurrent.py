"""torch's recurrent layers in networks."""

from __future__ import annotations

from typing import Any

import pytest

import tvmconv
from tvmconv.problem.errors import UnsupportedModelError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

ATOL = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-13}


class Layers(torch.nn.Module):
    """A recurrent layer with all its results, perhaps for first states."""

    def __init__(self, layers: torch.nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any, h: Any = None, c: Any = None) -> Any:
        y, last = self.layers(x, h if c is None else (h, c))
        return (y, *last) if isinstance(last, tuple) else (y, last)


CASES = {
    "lstm": (torch.nn.LSTM, {}, 0),
    "lstm-of-states": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True}, 2),
    "gru": (torch.nn.GRU, {"batch_first": True, "bidirectional": True}, 0),
    "gru-of-states": (torch.nn.GRU, {"num_layers": 2, "bias": False}, 1),
    "rnn-tanh": (torch.nn.RNN, {"num_layers": 2}, 0),
    "rnn-relu": (torch.nn.RNN, {"nonlinearity": "relu"}, 1),
}


def inputs(layers: torch.nn.RNNBase, states: int, dtype: Any = torch.float32) -> tuple[Any, ...]:
    """Return the input of a layer for 3 rows and 6 steps, and first states."""
    x = torch.randn((3, 6, 5) if layers.batch_first else (6, 3, 5), dtype=dtype)
    count = layers.num_layers * (2 if layers.bidirectional else 1)
    return x, *(torch.randn(count, 3, layers.hidden_size, dtype=dtype) for _ in range(states))


def check(module: torch.nn.Module, network: tvmconv.Network, given: tuple[Any, ...], atol: float) -> None:
    with torch.no_grad():
        expected = module(*given)
    for actual, wanted in zip(network(*given), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=atol, atol=atol)


@pytest.mark.parametrize("case", CASES)
def test_layers_are_right(case: str) -> None:
    torch.manual_seed(1)
    kind, options, states = CASES[case]
    module = Layers(kind(5, 20, **options)).eval()
    given = inputs(module.layers, states)
    network = tvmconv.build(tvmconv.import_model(module, given))
    check(module, network, given, ATOL["float32"])
    steps = [layer for layer in network.layers if layer.kernel == "tvmconv cpu/recurrence"]
    assert len(steps) == module.layers.num_layers
    assert len(network.layers) == 2 * len(steps)  # one product for all steps and directions


def test_many_rows_of_few_channels() -> None:
    """They are a single block of channels, which threads cannot share, whatever the work."""
    torch.manual_seed(3)
    module = Layers(torch.nn.LSTM(5, 8)).eval()
    given = (torch.randn(3, 256, 5),)
    check(module, tvmconv.build(tvmconv.import_model(module, given)), given, ATOL["float32"])


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_are_right(dtype: str) -> None:
    torch.manual_seed(2)
    module = Layers(torch.nn.LSTM(5, 12).to(getattr(torch, dtype))).eval()
    given = inputs(module.layers, 2, getattr(torch, dtype))
    check(module, tvmconv.build(tvmconv.import_model(module, given)), given, ATOL[dtype])


def test_a_batch_may_be_open() -> None:
    torch.manual_seed(3)
    module = Layers(torch.nn.GRU(5, 12, batch_first=True, bidirectional=True)).eval()
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(module, (torch.randn(3, 6, 5),), dynamic_shapes=shapes)
    network = tvmconv.build(program)
    for batch in (1, 3, 8):
        check(module, network, (torch.randn(batch, 6, 5),), ATOL["float32"])


def test_projections_are_refused_by_name() -> None:
    module = torch.nn.LSTM(5, 12, proj_size=3).eval()
    with pytest.raises(UnsupportedModelError, match=r"aten\.lstm\.input.*proj_size"):
        tvmconv.import_model(module, (torch.randn(6, 3, 5),))
