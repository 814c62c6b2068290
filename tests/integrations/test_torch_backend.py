"""The backend of torch.compile that runs tvmconv."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tvmconv.problem.errors import InvalidArgumentError

torch = pytest.importorskip("torch")

from tvmconv.integrations import torch_backend  # noqa: E402
from tvmconv.network import Network  # noqa: E402

nn = torch.nn
IMAGE = torch.linspace(-2, 2, 4 * 3 * 10 * 9).reshape(4, 3, 10, 9).sin()


class Small(nn.Module):  # type: ignore[misc,name-defined]
    """A convolution with batch norm, with some outputs that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor, times: int = 2) -> tuple[torch.Tensor, int, torch.Tensor]:
        y = self.norm(self.conv(x)).relu()
        return y.reshape(y.size(0), -1) * times, y.size(0), y


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(3)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> list[Network]:
    """Collect the networks that are built, in order."""
    built = []

    def build(*arguments: Any) -> Network:
        built.append(network := original(*arguments))
        return network

    original = torch_backend.build
    monkeypatch.setattr(torch_backend, "build", build)
    return built


def check(compiled: Any, module: nn.Module, *inputs: Any) -> None:
    with torch.no_grad():
        (flat, batch, y), (expected_flat, expected_batch, expected) = compiled(*inputs), module(*inputs)
    assert batch == expected_batch
    torch.testing.assert_close(flat, expected_flat, rtol=0, atol=1e-5)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)


def test_shapes_that_change(networks: list[Network]) -> None:
    """The batch that torch leaves open, from the second one on, has one network, with kernels of tvmconv."""
    module = Small().eval()
    compiled = torch.compile(module, backend="tvmconv")
    for batch in (1, 2, 3, 2, 4, 1):
        check(compiled, module, IMAGE[:batch])
    first, second = networks
    assert first.inputs[0].shape == (1, 3, 10, 9)
    assert isinstance(second.inputs[0].shape[0], str)
    assert second.inputs[0].shape[1:] == (3, 10, 9)
    assert {layer.kernel for network in networks for layer in network.layers} == {"tvmconv cpu/direct"}
    assert [str(network.layers[0].convolution.workload) for network in networks[:1]] == [
        "conv2d 1x3x10x9 -> 8, 3x3 + scale+shift+relu"
    ]
    check(compiled, module, IMAGE[:1], 3)
    check(compiled, module, IMAGE[:1].contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("marked", [False, True])
def test_any_batch_from_the_start(networks: list[Network], marked: bool) -> None:
    """Heights and widths are those of the inputs, whatever torch leaves open."""
    module = Small().eval()
    compiled = torch.compile(module, backend="tvmconv", dynamic=None if marked else True)
    for batch, width in ((4, 9), (2, 9), (3, 9), (3, 7), (4, 7)):
        image = IMAGE[:batch, :, :, :width].clone()  # torch looks at what a view is of, too
        if marked:
            torch._dynamo.mark_dynamic(image, 0)
        check(compiled, module, image)
    assert [network.inputs[0].shape[1:] for network in networks] == [(3, 10, 9), (3, 10, 7)]
    assert {layer.kernel for network in networks for layer in network.layers} == {"tvmconv cpu/direct"}


def test_a_batch_without_kernels_for_any(networks: list[Network], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has a network then: TVM's own loops would take any, slowly."""
    monkeypatch.setattr(torch_backend, "algorithms_for", lambda problem, target: ())
    module = Small().eval()
    compiled = torch.compile(module, backend="tvmconv", dynamic=True)
    for batch in (2, 3, 2):
        check(compiled, module, IMAGE[:batch])
    assert [network.inputs[0].shape[0] for network in networks] == [2, 3]


def test_products_whose_batch_is_open(networks: list[Network]) -> None:
    """One kernel takes them for any batch."""

    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    compiled = torch.compile(Product(), backend="tvmconv", dynamic=True)
    for batch in (2, 3, 2):
        x = torch.rand(batch, 3, 5, 5)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), x @ x)
    assert [[layer.kernel for layer in network.layers] for network in networks] == [["tvmconv cpu/product"]]


def test_weights_that_change(networks: list[Network]) -> None:
    module = Small().eval()
    compiled = torch.compile(module, backend="tvmconv")
    check(compiled, module, IMAGE)
    with torch.no_grad():
        module.conv.weight.mul_(2)
    check(compiled, module, IMAGE)
    module.conv.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
    check(compiled, module, IMAGE)
    module.norm.running_mean.add_(1)
    check(compiled, module, IMAGE)
    check(compiled, module, IMAGE)
    assert len(networks) == 4


def test_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's inputs and outputs are the memory of torch's tensors."""
    seen = []
    original = Network.__call__

    def call(self: Network, *inputs: torch.Tensor) -> Any:
        results = original(self, *inputs)
        seen.append((inputs[0].data_ptr(), results.data_ptr()))
        return results

    monkeypatch.setattr(Network, "__call__", call)
    compiled = torch.compile(nn.Conv2d(3, 8, 3).eval(), backend="tvmconv")
    with torch.inference_mode():
        y = compiled(IMAGE)
    assert seen == [(IMAGE.data_ptr(), y.data_ptr())]


def test_training_is_refused() -> None:
    compiled = torch.compile(Small().eval(), backend="tvmconv")
    with pytest.raises(InvalidArgumentError, match="for inference"):
        compiled(IMAGE)
    training = torch.compile(Small(), backend="tvmconv")
    with torch.no_grad(), pytest.warns(UserWarning, match="torch runs .* of the .* operators"):
        training(IMAGE)


class Between(nn.Module):  # type: ignore[misc,name-defined]
    """A convolution on each side of a function, by which a graph is split."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(self.first(x)))


SPLIT: dict[str, tuple[Any, str]] = {
    "svd": (lambda y: torch.linalg.svdvals(y).sum(-1)[..., None, None] + y, "_linalg_svd"),
    "fft": (lambda y: torch.fft.fft2(y).real, "_fft_c2c"),
    "cholesky": (lambda y: torch.linalg.cholesky(y @ y.mT + torch.eye(8)), "it checks, and returns nothing"),
    "dropout": (nn.Dropout(0.5), "bernoulli"),
}


@pytest.mark.parametrize("name", SPLIT)
def test_unsupported_operators_are_run_by_torch(name: str, networks: list[Network]) -> None:
    function, operator = SPLIT[name]
    model = Between(function)
    torch.manual_seed(5)
    with torch.no_grad(), pytest.warns(UserWarning, match=f"torch runs .*{operator}"):
        result = torch.compile(model, backend="tvmconv")(IMAGE)
    with torch.no_grad():
        torch.manual_seed(5)
        torch.testing.assert_close(result, model(IMAGE), rtol=1e-4, atol=1e-4)
    # One on each side of what torch runs; what drops elements out needs none of the first one's results.
    assert len(networks) == (1 if name == "dropout" else 2)


def test_options() -> None:
    for choice, message in (
        ({"options": {"precison": "tf32"}}, "options is 'precison'; expected options among precision, sparse, records"),
        ({"options": {"sparse": "some"}}, "'sparse'"),
        ({"options": "tf32"}, "options is 'tf32'; expected a dictionary"),
        ({"options": {"records": [3]}}, "'records'.* is .3.; expected the path of a tuning log, or several"),
        ({"options": {"records": "nowhere.jsonl"}}, "'records'.* is 'nowhere.jsonl'; expected the path"),
        ({"mode": "max-autotune"}, "mode is 'max-autotune'; expected 'default' or 'reduce-overhead'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            torch_backend.Choice.of(choice.get("mode"), choice.get("options"))


def test_graph_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.avg_pool2d(x, 2)
        return y.relu() if y.sum() > 1e9 else y.sigmoid()

    with torch.no_grad():
        result = torch.compile(function, backend="tvmconv")(IMAGE)
        torch.testing.assert_close(result, function(IMAGE))


def test_elements_from_the_end() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:, -1], x[..., -1], torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear")

    with torch.no_grad():
        for y, expected in zip(torch.compile(function, backend="tvmconv")(IMAGE), function(IMAGE), strict=True):
            torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)


def test_graphs_without_tensors() -> None:
    with torch.no_grad():
        assert torch.compile(lambda: torch.arange(3), backend="tvmconv")().tolist() == [0, 1, 2]


def test_inputs_without_elements() -> None:
    with torch.no_grad():
        y = torch.compile(lambda x, y: torch.addmm(x, y, y.T), backend="tvmconv")(torch.ones(5), torch.ones(5, 0))
    assert y.tolist() == [[1] * 5] * 5
