"""Transposed convolutions of imported networks: the convolutions that they become, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.network.passes.transposed_cases import CASES, Transposed, level, torch
from tests.open_sizes.batches import network_of_twins
from tests.shared.network_graph import Graph, operators
from tests.shared.passes import use_kernels, with_precision
from tests.shared.quantized_graph import Quantized, onnxruntimes
from tvmconv.network import build, import_model
from tvmconv.network.between.gpu.fusion import lower_and_fuse_for_gpu
from tvmconv.network.passes.early.transposed import axis_of
from tvmconv.network.runtime.network import Network
from tvmconv.targets import multiplies, resolve_target

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})

nn, functional = torch.nn, torch.nn.functional


def check(module: nn.Module, x: torch.Tensor, network: Network) -> None:
    """Compare a network with the module in float64."""
    found = network(x.numpy())
    with torch.no_grad():
        expected = module.double()(x.double())
    outputs = (found, expected) if isinstance(expected, tuple) else ([found], [expected])
    for y, each in zip(*outputs, strict=True):
        assert y.shape == each.shape
        np.testing.assert_allclose(y, each.numpy(), rtol=0, atol=1e-5 * float(each.abs().max()))


def descriptions(network: Network) -> list[str]:
    return [layer.convolution.description for layer in network.layers]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numbers(case: Transposed) -> None:
    """Each is a convolution with a kernel, which takes in the bias."""
    module, x = case.module(), case.input()
    network = build(import_model(module, (x,)))
    assert descriptions(network) == [case.form]
    assert all(layer.kernel.startswith("tvmconv ") for layer in network.layers)
    check(module, x, network)


def test_every_output_has_its_taps() -> None:
    """Each output o sums x[i] * w[r] where i * stride + r * dilation - padding is o."""
    for kernel, stride, dilation, size in product(range(1, 6), range(1, 4), (1, 2), (1, 3)):
        reach = (kernel - 1) * dilation + 1
        for before, behind, more in product(range(reach), range(reach), range(stride)):
            axis = axis_of(kernel, stride, dilation, (before, behind), more, size)
            assert min(axis.padding_before, axis.padding_after) >= 0
            for output in range(stride * (size - 1) + reach - before - behind + more):
                position, phase = divmod(output + axis.first, stride)
                assert position < size + axis.planes
                first = position - axis.padding_before
                inputs = ((first + i * axis.dilation, tap) for i, tap in enumerate(axis.taps[phase]))
                taken = {(i, tap) for i, tap in inputs if 0 <= i < size and tap >= 0}
                sums = ((i, output + before - i * stride) for i in range(size))
                assert taken == {(i, r // dilation) for i, r in sums if r % dilation == 0 and 0 <= r < reach}


class Behind(nn.Module):
    """A transposed convolution with something behind it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.function = nn.ConvTranspose2d(4, 6, 2, 2, groups=2), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.first(x))


class Plus(nn.Module):
    """A module that adds a constant of a shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.linspace(-1, 1, 60)[: np.prod(shape)].reshape(shape))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.numbers


BEHIND = {
    "relu": (torch.relu, "shift+relu"),
    "silu": (functional.silu, "shift+silu"),
    "norm": (nn.Sequential(nn.BatchNorm2d(6), Plus(6, 1, 1), nn.ReLU()), "scale+shift+relu"),
    "two-readers": (lambda y: (torch.relu(y), torch.sigmoid(y)), "shift"),
    "rows": (Plus(10, 1), "shift"),
    "more-axes": (Plus(1, 1, 1, 1, 1), "shift"),
    "residual": (lambda y: torch.relu(y + y.mean(1, keepdim=True)), "shift"),
}
"""Functions of the result, and what of them is in the kernel."""


@pytest.mark.parametrize("name", BEHIND)
def test_what_follows_is_in_the_kernel(name: str) -> None:
    function, epilogue = BEHIND[name]
    module, x = Behind(function).eval(), torch.randn(2, 4, 5, 6, generator=torch.Generator().manual_seed(4))
    network = build(import_model(module, (x,)))
    assert descriptions(network) == [f"conv2d 2x4x5x6 -> 24, 1x1 groups 2 + {epilogue}"]
    check(module, x, network)


def test_a_level_of_unet() -> None:
    """Batch norm and activation are in the kernel, and one function brings its result into the concatenation."""
    module, x = level(), torch.randn(1, 3, 12, 10, generator=torch.Generator().manual_seed(4))
    model = import_model(module, (x,))
    mod, layers = use_kernels(model.mod, CPU)
    text = layers[2].convolution.description
    assert "-> 128, 1x1 NCHW" in text
    assert text.endswith("c + scale+shift+relu")
    assert [name for name in operators(mod) if name != "relax.call_tir"] == [
        "relax.nn.max_pool2d", "relax.reshape", "relax.permute_dims", "relax.reshape", "relax.concat"
    ]  # fmt: skip
    check(module, x, build(model))


def test_sizes_that_are_open() -> None:
    module = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU()).eval()
    names = {0: torch.export.Dim("n"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
    program = torch.export.export(module, (torch.zeros(2, 3, 9, 8),), dynamic_shapes=({**names},))
    network = build(import_model(program))
    assert all(layer.kernel.startswith("tvmconv ") for layer in network.layers)
    for shape in ((1, 3, 5, 7), (3, 3, 16, 9)):
        check(module.float(), torch.randn(shape, generator=torch.Generator().manual_seed(4)), network)


@pytest.mark.usefixtures("nhwc_is_faster")
def test_groups_in_nhwc() -> None:
    """On a GPU what convolutions hand to each other through one with groups is in NHWC, its edges cut off, too."""
    torch.manual_seed(3)
    middle = nn.ConvTranspose2d(16, 24, (4, 3), (2, 3), (1, 0), groups=2)
    module = nn.Sequential(nn.Conv2d(3, 16, 3), middle, nn.ReLU(), nn.Conv2d(24, 8, 1)).eval()
    x = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(4))
    model = import_model(module, (x,))
    mod, layers = use_kernels(model.mod, SM_90)
    workloads = [layer.convolution.workload for layer in layers]
    assert [(each.layout, each.out_layout) for each in workloads] == [
        ("NCHW", "NHWC"), ("NHWC", "NHWC"), ("NHWC", "NCHW")
    ]  # fmt: skip
    check(module, x, network_of_twins(model, mod, layers))


@pytest.mark.parametrize("kernel", [2, 4])
def test_open_sizes_on_a_gpu(kernel: int) -> None:
    """Depth to space is one kernel with the concatenation behind it, as for sizes that are known."""
    names = {0: torch.export.Dim("n"), 2: 2 * torch.export.Dim("h"), 3: 2 * torch.export.Dim("w")}
    example = torch.zeros(2, 3, 20, 24)
    program = torch.export.export(level(64, kernel, kernel // 4), (example,), dynamic_shapes=(names,))
    mod, layers = use_kernels(with_precision(import_model(program).mod, SM_90, "float16")[0], SM_90)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/direct", *["tvmconv cuda/tensor"] * 3]
    others = [str(var.name_hint) for var in lower_and_fuse_for_gpu(mod, SM_90).functions if "concat" in str(var)]
    assert len(others) == 1
    assert others[0].startswith("fused_reshape_transpose_reshape1_")


def test_computed_weights_are_left_to_tvm() -> None:
    graph = Graph((1, 4, 5, 6))
    y = graph.node("ConvTranspose", "x", graph.node("Sigmoid", graph.node("Transpose", "x", perm=[1, 0, 2, 3])))
    model = graph.model(y)
    network = build(model)
    (layer,) = network.layers
    assert (layer.kernel, layer.reason) == ("TVM", "its weight is computed when the model runs")
    x = np.random.default_rng(3).standard_normal((1, 4, 5, 6)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-4)


def test_no_images() -> None:
    module = nn.ConvTranspose2d(4, 6, 3, 2).eval()
    network = build(import_model(module, (torch.zeros(0, 4, 5, 5),)))
    assert [layer.reason for layer in network.layers] == ["the shape 0x4x5x5 has no elements"]
    assert network(np.zeros((0, 4, 5, 5), "float32")).shape == (0, 6, 11, 11)


@pytest.mark.parametrize("groups", [1, 2])
def test_quantized_ones_stay_integers(groups: int) -> None:
    """Bias, activation and quantization are in the kernel; a result may be at the other side of a half."""
    graph = Quantized((1, 8, 5, 6))
    scales, channels = np.linspace(0.005, 0.02, 16 // groups), 16
    weight = graph.weight(8, channels // groups, 3, 3, scale=scales, zero_point=np.zeros(channels // groups), axis=1)
    bias = graph.bias(channels, np.tile(0.05 * scales, groups))
    y = graph.node("ConvTranspose", graph.rounded("x"), weight, bias, strides=[2, 2], pads=[1] * 4, group=groups)
    model = graph.model(graph.rounded(graph.node("Relu", y), 0.1, 3))
    network = build(model)
    (description,) = descriptions(network)
    assert description.endswith("uint8 zero point 3 to uint8 + scale+shift+relu+zero_point(3)")
    x = np.random.default_rng(3).standard_normal((1, 8, 5, 6)).astype("float32")
    found, expected = network(x), onnxruntimes(model, x)
    assert (np.abs(found - expected) > 0.01).mean() < 0.005
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.101)


@pytest.mark.parametrize(("dtype", "epilogue"), [("float16", "scale+shift+relu"), ("bfloat16", "shift")])
def test_half_precision(dtype: str, epilogue: str) -> None:
    """A model of halves has kernels of halves; torch rounds to bfloat16 in front of the norm."""
    module = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU()).eval()
    module, x = module.to(getattr(torch, dtype)), torch.randn(1, 8, 5, 6).to(getattr(torch, dtype))
    network = tvmconv.build(import_model(module, (x,)))
    own = f" {dtype}" if dtype == "float16" or multiplies(resolve_target("llvm"), dtype) else ""
    assert descriptions(network) == [f"conv2d 1x8x5x6 -> 16, 1x1{own} + {epilogue}"]
    expected = module.double()(x.double()).to(getattr(torch, dtype))
    torch.testing.assert_close(network(x), expected, rtol=0, atol=2e-3 if dtype == "float16" else 2e-2)
