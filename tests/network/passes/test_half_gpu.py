"""Networks in half precision on a real GPU, beside float64."""

from __future__ import annotations

import pytest

import tvmconv

torch = pytest.importorskip("torch")
from tests.network.passes.shuffled_units import shufflenet  # noqa: E402
from tests.shared.torch_modules import check_on_gpu  # noqa: E402


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    """Return a module with dense and depthwise layers, pooling, and a linear layer of several rows."""
    torch.manual_seed(5)
    layers = [
        *(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.SiLU()),
        *(torch.nn.Conv2d(64, 64, 3, padding=1, groups=64), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 1)),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 16), torch.nn.Softmax(dim=1)),
    ]
    return torch.nn.Sequential(*layers).eval()


@pytest.mark.parametrize(("word", "least"), [("float16", 55), ("bfloat16", 38)])
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
def test_results_are_near_float64(module: torch.nn.Module, word: str, least: float, is_open: bool) -> None:
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(6))
    sizes = ({0: torch.export.Dim("n")},) if is_open else None
    program = torch.export.export(module, (x,), dynamic_shapes=sizes)
    network = tvmconv.build(tvmconv.import_model(program), "cuda", precision=word)
    assert network.multiplied == {word}
    check_on_gpu(network, module, x, least=least)


class Level(torch.nn.Module):
    """A level of a U-Net, which joins what it computes with what a level below makes of it."""

    def __init__(self, inputs: int, channels: int, below: torch.nn.Module | None = None) -> None:
        super().__init__()
        first, last = (torch.nn.Conv2d(each, channels, 3, padding=1) for each in (inputs, 2 * channels))
        down, up = torch.nn.MaxPool2d(2), torch.nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.first, self.last = torch.nn.Sequential(first, torch.nn.ReLU()), torch.nn.Sequential(last, torch.nn.ReLU())
        between = below or torch.nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.below = torch.nn.Sequential(down, between, torch.nn.ReLU(), up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(torch.cat([y, self.below(y)], 1))


@pytest.mark.parametrize(("word", "least"), [("float16", 50), ("float32", 90)])
def test_levels_of_a_unet(word: str, least: float) -> None:
    """Kernels store phases of larger planes, behind what pooling has read, where the next one reads both."""
    torch.manual_seed(7)
    module = torch.nn.Sequential(Level(3, 64, Level(64, 128)), torch.nn.Conv2d(64, 4, 1)).eval()
    x = torch.randn(8, 3, 56, 60, generator=torch.Generator().manual_seed(6))
    network = tvmconv.build(tvmconv.import_model(module, (x,)), "cuda", precision=word)
    check_on_gpu(network, module, x, least=least, times=5)


@pytest.mark.parametrize("batch", [1, 32])
def test_units_whose_channels_pass_by_layers(batch: int) -> None:
    """Kernels read and store their channels in larger tensors, and nothing else is between them."""
    module = shufflenet(29)
    x = torch.randn(batch, 3, 40, 44, generator=torch.Generator().manual_seed(6))
    network = tvmconv.build(tvmconv.import_model(module, (x,)), "cuda", precision="float16")
    check_on_gpu(network, module, x, least=50, times=5)
