"""Models of torch: their results, and the errors for models that cannot be imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import tvmconv
from tests.shared.sparing import sparing
from tests.shared.torch_modules import Function, torch
from tvmconv.network import build, import_model
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError

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
    assert all(layer.kernel.startswith("tvmconv") for layer in network.layers)
    (size,) = network.open_sizes
    assert (size.least, size.most) == (1, 8)
    with pytest.raises(InvalidArgumentError, match=rf"x is \(9, 3, 24, 20\); expected .* with {size.name} of 1 to 8"):
        network(torch.zeros(9, 3, 24, 20))
    for image in (IMAGE[:1], IMAGE, torch.cat([IMAGE, IMAGE[:1]])):
        with torch.no_grad():
            expected = module(image)
        for y, reference in zip(network(image), expected, strict=True):
            np.testing.assert_allclose(y, reference, rtol=0, atol=1e-5 * float(reference.abs().max()))


def test_sizes_of_images_that_are_left_open() -> None:
    """Windows slide over any size, if nothing about them depends on it."""
    pools = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2))
    height = torch.export.Dim("height", min=8, max=40)
    network = build(torch.export.export(pools, (IMAGE,), dynamic_shapes=({2: height},)))
    for image in (IMAGE, IMAGE[:, :, :17]):
        torch.testing.assert_close(network(image), pools(image))


def test_a_size_that_torch_finds_to_be_a_number() -> None:
    """A layer norm says how many columns there are, which were left open."""
    norm, automatic = nn.LayerNorm(20), torch.export.Dim.AUTO
    network = build(torch.export.export(norm, (IMAGE,), dynamic_shapes=({0: automatic, 3: automatic},)))
    assert network.inputs[0].shape[1:] == (3, 24, 20)
    image = torch.randn(2, 3, 24, 20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(image), norm(image), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.CircularPad2d((1, 2, 3, 0)), nn.InstanceNorm2d(3, track_running_stats=True)])
def test_layers_of_any_batch(layer: nn.Module) -> None:
    """Torch decomposes them into steps that Relax cannot take with an open batch."""
    module = nn.Sequential(nn.InstanceNorm2d(3, affine=True), layer).eval()
    network = build(torch.export.export(module, (IMAGE,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=8)},)))
    images = torch.randn(5, 3, 24, 20, generator=torch.Generator().manual_seed(1))
    for image in (images, images[:1]):
        torch.testing.assert_close(network(image), module(image), rtol=1e-5, atol=1e-5)


def test_an_instance_norm_in_training_is_refused() -> None:
    program = torch.export.export(nn.InstanceNorm2d(3, track_running_stats=True), (IMAGE,))
    with pytest.raises(UnsupportedModelError, match="an instance norm changes its running statistics, as in training"):
        import_model(program)


def test_training_on_does_not_change_the_model() -> None:
    module = nn.Conv2d(4, 4, 3, groups=4)
    model = import_model(module, (torch.ones(1, 4, 5, 5),))
    with torch.no_grad():
        expected = module(torch.ones(1, 4, 5, 5))
        module.weight.zero_()
        module.bias.zero_()
    torch.testing.assert_close(build(model)(torch.ones(1, 4, 5, 5)), expected)


class Body(nn.Module):  # type: ignore[misc,name-defined]
    """A module that calls a function with a convolution at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def spectrum(self: Body, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft2(self.conv(x)).real


def as_in_training(self: Body, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(self.conv(x), training=True)


def two_results(self: Body, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.native_layer_norm(x, [8], None, None, 1e-5)[1]


def by_value(self: Body, x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def two_arguments(self: Body, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (spectrum, r"aten\._fft_c2c\.default \(node '_fft_c2c'\).*operators that Relax, "),
        (as_in_training, r"aten\..*dropout.*\(node '.*dropout.*'\): it is random, as in training"),
        (two_results, r"getitem.*Relax has only the first result of aten\.native_layer_norm"),
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


CHECKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add-alpha": lambda x: torch.add(x, x.sin(), alpha=2),
    "sub-alpha": lambda x: torch.sub(x, x.sin(), alpha=3),
    "rsub": lambda x: 2 - x,
    "selu": torch.selu,
    "clamp-empty": lambda x: torch.clamp(x, 0.5, -0.5),
    "clamp-integers": lambda x: (x * 9).long().clamp(-2.5, 3),
    "clamp-tensor": lambda x: torch.clamp(x, x.mean(), None),
    "select": lambda x: (x[:, -1], x[..., -2]),
    "index": lambda x: (x[..., [0, -1]], x[:, [0, -1], :, [1, -3]], x[:, :, [[0, -1]], [1, -3]]),
    "index-put": lambda x: x.clone().index_put((torch.tensor([-1]), torch.tensor([[0], [-2]])), torch.ones(2, 1, 1, 1)),
    "take": lambda x: torch.take(x, torch.tensor([[0, -1], [-8, 7]])),
    "trapezoid": torch.trapezoid,
    "any-of-nothing": lambda x: torch.any(x > 0, dim=[]),
    "squeeze": lambda x: x[:, :1].squeeze((0, 1)),
    "promotion": lambda x: (
        (x > 0) + (x > 1),
        (x * 9).long() + 1.5,
        (x * 9).long() > 1.5,
        torch.sigmoid((x * 9).long()),
    ),
    "quotients": lambda x: [torch.div((x * 9).long(), 3, rounding_mode=mode) for mode in ("floor", "trunc")],
    "softplus": lambda x: (nn.functional.softplus(9 * x, 2, 5), nn.functional.mish(x - 8) * 1e4),
    "small": lambda x: (torch.log1p(x * 1e-6) * 1e6, torch.expm1(x * 1e-6) * 1e6, torch.log1p(x.abs()), torch.expm1(x)),
    "zero-times": lambda x: ((x / (x > 0)) * 0, 0.0 * x),
    "norms": lambda x: [torch.linalg.vector_norm(x, order, dim=1) for order in (0, 1, 2, 3.5, float("inf"))],
    "group-norm": lambda x: (nn.functional.group_norm(x, 2), nn.functional.group_norm(x[:, :, 0, 0], 2)),
    "group-norm-3d": lambda x: nn.functional.group_norm(x[..., None], 4, x[0, :, 0, 0], x[0, :, 1, 1]),
    "circular-padding": lambda x: nn.functional.pad(x, (-1, 2, 1, 0), "circular"),
    "norms-of-large-numbers": lambda x: (nn.functional.group_norm(x + 10, 2), nn.functional.instance_norm(x + 10)),
    "max-pool": lambda x: nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
    "max-pool-dilated": lambda x: nn.functional.max_pool2d(x, 3, 1, 1, 2, return_indices=True),
    "max-pool-without-stride": lambda x: nn.functional.max_pool2d(x, 2, dilation=2),
    "max-pool-3d": lambda x: nn.functional.max_pool3d(x, 2, 2, 1, return_indices=True),
    "adaptive-max-pool": lambda x: nn.functional.adaptive_max_pool2d(x, (3, 5), return_indices=True),
    "avg-pool-1d": lambda x: nn.functional.avg_pool1d(x[0], 3, 2, 1, True, False),
    "avg-pool-2d": lambda x: nn.functional.avg_pool2d(x, 3, 2, 1, True, False, 5),
    "avg-pool-3d": lambda x: (nn.functional.avg_pool3d(x, 3, 2, 1), nn.functional.avg_pool3d(x, 3, 2, 1, True, False)),
}


def listed(results: Any) -> list[torch.Tensor]:
    return [*results] if isinstance(results, (tuple, list)) else [results]


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Check that the function's network gives torch's results: float32 within rounding, and others exactly."""
    results, expected = build(import_model(Function(function), inputs))(*inputs), function(*inputs)
    for y, reference in zip(listed(results), listed(expected), strict=True):
        atol = 1e-5 if reference.is_floating_point() else 0
        torch.testing.assert_close(y, reference, rtol=1e-5, atol=atol, equal_nan=True)


SMALL = (torch.linspace(-2, 2, 1 * 4 * 7 * 8).reshape(1, 4, 7, 8) * 11).sin()


NAMES = [*CHECKS]
TOGETHER = [NAMES[first : first + 6] for first in range(0, len(NAMES), 6)]
"""The cases that are one network: most of the time is torch's, which exports it."""


@pytest.mark.parametrize("names", TOGETHER, ids=",".join)
def test_operators_that_relax_misreads(names: list[str]) -> None:
    def functions(x: torch.Tensor) -> list[torch.Tensor]:
        return [y for name in names for y in listed(CHECKS[name](x))]

    check(functions, SMALL)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "bilinear", "bicubic", "smooth"])
def test_interpolation(mode: str) -> None:
    """Images are resized to any size, by factors given or computed anew, all in one network."""
    corners = [False, True] if mode in ("bilinear", "bicubic") else [None]
    more = {"mode": "bicubic", "antialias": True} if mode == "smooth" else {"mode": mode}
    sizes: list[dict[str, Any]] = [{"size": (14, 16)}, {"size": (3, 13)}, {"scale_factor": 1.7}, {"scale_factor": 0.6}]
    sizes.append({"scale_factor": 1.7, "recompute_scale_factor": True})
    check(
        lambda x: [
            nn.functional.interpolate(x, align_corners=align, **size, **more)
            for align in corners
            for size in (sizes[:3] if align else sizes)
        ],
        SMALL,
    )


def test_interpolation_of_lines_and_volumes() -> None:
    check(
        lambda x: (
            nn.functional.interpolate(x[0], scale_factor=1.3, mode="linear"),
            nn.functional.interpolate(x[None], size=(3, 9, 4), mode="trilinear", align_corners=True),
            nn.functional.interpolate(x[None], size=(3, 9, 4)),
        ),
        SMALL,
    )


@pytest.mark.parametrize(
    ("outside", "align", "mode"),
    sparing(
        product(("zeros", "border", "reflection"), (False, True), ("bilinear", "nearest", "bicubic")),
        lambda number: number in (2, 10, 12),  # once each mode and what is outside
    ),
)
def test_grid_sample(outside: str, align: bool, mode: str) -> None:
    grid = torch.linspace(-1.3, 1.3, 5 * 6 * 2).reshape(1, 5, 6, 2).cos() * 1.3
    check(lambda x, y: nn.functional.grid_sample(x, y, mode, outside, align), SMALL, grid)


@pytest.mark.parametrize("outside", sparing(["zeros", "border", "reflection"], lambda number: number < 2))
def test_grid_sample_of_volumes(outside: str) -> None:
    volume = torch.linspace(-4, 4, 2 * 5 * 6 * 3).reshape(1, 2, 5, 6, 3).sin() * 1.2
    check(lambda x, y: nn.functional.grid_sample(x[None], y, padding_mode=outside, align_corners=True), SMALL, volume)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions(rank: int) -> None:
    """They work with every padding, dilation and group; output padding may be as large as a stride."""
    function = getattr(nn.functional, f"conv_transpose{rank}d")
    x, w = (torch.linspace(-3, 3, 4 * size**rank).reshape(1, 4, *[size] * rank).sin() for size in (4, 3))
    attributes: list[dict[str, int]] = [
        {"stride": 2, "output_padding": 1},
        {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 2},
        {"stride": 2, "padding": 2, "groups": 2},
        {"dilation": 2, "output_padding": 1},
        {"stride": 2, "padding": 1, "dilation": 3, "output_padding": 2, "groups": 2},
    ]
    check(
        lambda x: [
            function(x, w.reshape(4, -1, *[3] * rank), torch.ones(more.get("groups", 1)), **more) for more in attributes
        ],
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    """Each operator rounds once, as torch's do."""
    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Softmax(1)).eval()
    x, module = SMALL.to(dtype), module.to(dtype)
    y, expected = build(import_model(module, (x,)))(x), module.double()(x.double()).to(dtype)
    torch.testing.assert_close(y, expected, rtol=0, atol=2e-3 if dtype is torch.float16 else 2e-2)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Softmax(-1), (5, 0, 0)), (nn.AvgPool1d(6, 3, 2), (0, 3, 9))],
    ids=["softmax", "pooling"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_without_elements(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Loops that run zero times are not scheduled."""
    x = torch.zeros(shape, dtype=dtype)
    y = build(import_model(module, (x,)))(x)
    assert (y.shape, y.dtype) == (module(x).shape, dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 4, 5)], ids=str)
def test_batch_norm_in_narrow_types_with_statistics_as_inputs(shape: tuple[int, ...], dtype: str) -> None:
    """TVM would make a result in float32."""
    norm = Function(partial(nn.functional.batch_norm, eps=1e-3))
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.rand(each, generator=generator).to(getattr(torch, dtype)) for each in (shape, *[(2,)] * 4))
    y = build(import_model(norm, inputs))(*inputs)
    expected = norm(*(each.double() for each in inputs))
    assert y.dtype == getattr(torch, dtype)
    unit = STORAGE_TYPES[dtype].unit
    torch.testing.assert_close(y.double(), expected, rtol=2 * unit, atol=unit / 2)
