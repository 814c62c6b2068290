"""Models of torch: what comes out, and the errors for what cannot be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmconv
from tvmconv.errors import InvalidArgumentError, UnsupportedModelError
from tvmconv.network import build, import_model

torch = pytest.importorskip("torch")
nn = torch.nn


class Separable(nn.Module):  # type: ignore[misc,name-defined]
    """A small mobile network with two outputs: depthwise and pointwise convolutions, batch norm, relu6, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.pointwise = nn.Sequential(nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16, affine=False))
        self.pool = nn.Sequential(nn.Conv2d(16, 32, 5, 2, padding=2, groups=16), nn.Hardtanh(-1, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.stem(x)
        z = self.pool(y + self.pointwise(self.depthwise(y)))
        return self.head(z.mean((2, 3))), nn.functional.hardswish(z)


def separable() -> Separable:
    torch.manual_seed(5)
    module = Separable()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return module


IMAGE = (torch.linspace(-2, 2, 2 * 3 * 24 * 20).reshape(2, 3, 24, 20) * 7).sin()


@pytest.mark.parametrize("exported", [False, True], ids=["module", "exported-program"])
def test_network_against_torch(exported: bool) -> None:
    module = separable()
    if exported:
        network = build(torch.export.export(module.eval(), (IMAGE,)))
    else:
        network = build(import_model(module, (IMAGE,)))
        assert all(part.training for part in module.modules())
    assert [layer.convolution.description for layer in network.layers if layer.kernel != "TVM"] == [
        "conv2d 2x3x24x20 -> 16, 3x3 stride 2x2 padding 1,1,1,1 + scale+shift+relu6",
        "depthwise 2x16x12x10 -> 16, 3x3 padding 1,1,1,1 + scale+shift+relu6",
        "conv2d 2x16x12x10 -> 16, 1x1 + scale+shift+residual",
        "depthwise 2x16x12x10 -> 32, 5x5 stride 2x2 padding 2,2,2,2 + shift+clip(-1.0,2.0)",
        "conv2d 2x32x1x1 -> 10, 1x1 + shift",
    ]
    with torch.no_grad():
        expected = module.eval().double()(IMAGE.double())
    for y, reference in zip(network(IMAGE), expected, strict=True):
        assert isinstance(y, torch.Tensor)
        np.testing.assert_allclose(y, reference, rtol=0, atol=4e-6 * float(reference.abs().max()))


def test_batch_that_is_left_open() -> None:
    module = separable().eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    network = build(torch.export.export(module, (IMAGE,), dynamic_shapes=({0: batch},)))
    assert {layer.kernel for layer in network.layers} == {"TVM"}
    for image in (IMAGE[:1], IMAGE, torch.cat([IMAGE, IMAGE[:1]])):
        with torch.no_grad():
            expected = module(image)
        for y, reference in zip(network(image), expected, strict=True):
            np.testing.assert_allclose(y, reference, rtol=0, atol=1e-5 * float(reference.abs().max()))


def test_training_on_does_not_change_the_model() -> None:
    module = nn.Conv2d(4, 4, 3, groups=4)
    model = import_model(module, (torch.ones(1, 4, 5, 5),))
    with torch.no_grad():
        expected = module(torch.ones(1, 4, 5, 5))
        module.weight.zero_()
        module.bias.zero_()
    torch.testing.assert_close(build(model)(torch.ones(1, 4, 5, 5)), expected)


class Body(nn.Module):  # type: ignore[misc,name-defined]
    """A function with a convolution at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def spectrum(self: Body, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft2(self.conv(x)).real


def half(self: Body, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.conv2d(x.half(), torch.ones(8, 3, 3, 3, dtype=torch.half))


def by_value(self: Body, x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def two_arguments(self: Body, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (spectrum, r"aten\._fft_c2c\.default \(node '_fft_c2c'\).*operators that Relax has"),
        (half, r"aten\.convolution\.default \(node 'convolution'\): Relax imports it in float32 only.*from ONNX"),
        (by_value, r"torch\.export cannot export Body with these inputs: Could not guard"),
        (two_arguments, r"torch\.export cannot export Body with these inputs: .*argument"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_unsupported(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        import_model(Body(function), (torch.ones(1, 3, 8, 8),))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "inputs", [None, torch.ones(1, 3, 8, 8), [torch.ones(1, 3, 8, 8)], (3,)], ids=lambda value: type(value).__name__
)
def test_modules_need_example_inputs(inputs: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a tuple of example tensors"):
        tvmconv.import_model(nn.ReLU(), inputs)


def test_modules_are_imported_before_they_are_built() -> None:
    with pytest.raises(InvalidArgumentError, match="a tuple of example tensors"):
        tvmconv.build(nn.ReLU())


MISREAD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "aten.add.Tensor": lambda x: torch.add(x, x.sin(), alpha=2),
    "aten.sub.Tensor": lambda x: torch.sub(x, x.sin(), alpha=3),
    "aten.elu.default": torch.selu,
    "aten.avg_pool2d.default": lambda x: nn.functional.avg_pool2d(x, 2, divisor_override=3),
    "aten.clamp.default": lambda x: torch.clamp(x, 0.5, -0.5),
}


@pytest.mark.parametrize("operator", MISREAD)
def test_operators_that_relax_would_misread_are_refused(operator: str) -> None:
    class Module(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return MISREAD[operator](x)

    with pytest.raises(UnsupportedModelError, match=f"{operator} .*Relax ignores one of its arguments"):
        import_model(Module(), (torch.ones(1, 4, 4, 4),))
