"""Kernels, operators and networks for a height and a width that are known only when they run, on a real GPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm

import tvmconv
from tests.open_sizes.batches import Open, check_on_gpu
from tests.open_sizes.planes import CASES, fitting, image, unet
from tvmconv import ConvWorkload
from tvmconv.problem import OPEN_SIZES
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.testing import check_result, random_operands


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_kernel_computes_every_size(case: Open) -> None:
    check_on_gpu(case, fitting(case))


LAYERS = {
    "first": ConvWorkload.conv2d((1, 3, 224, 224), (32, 3, 3, 3), stride=2, padding=1, shift=True, activation="relu"),
    "3x3": ConvWorkload.conv2d((1, 64, 56, 56), (64, 64, 3, 3), shift=True, activation="relu"),
    "1x1": ConvWorkload.conv2d((1, 128, 28, 28), (256, 128, 1, 1), residual=True),
    "half": ConvWorkload.conv2d((1, 64, 56, 56), (96, 64, 3, 3), dtype="float16"),
    "half-channels-last": ConvWorkload.conv2d((1, 56, 56, 64), (96, 3, 3, 64), dtype="float16", layout="NHWC"),
    "depthwise": ConvWorkload.depthwise((1, 48, 56, 56), (48, 1, 5, 5), shift=True, activation="relu6"),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("algorithm", ["auto", "direct", "im2win"])
def test_operators(name: str, algorithm: str, tmp_path: Path) -> None:
    """Default configurations, on sizes from a pixel to a photograph, also of an operator that was saved."""
    workload = LAYERS[name]
    if algorithm != "auto" and (workload.is_depthwise or not workload.is_in_nchw):
        pytest.skip("it has one template")
    operator = tvmconv.compile(workload, "cuda", algorithm=algorithm, open_sizes=OPEN_SIZES)
    operator.save(tmp_path / "operator.so")
    loaded = tvmconv.load(tmp_path / "operator.so")
    for batch, height, width in ((1, 1, 1), (2, 7, 9), (1, 56, 56), (3, 61, 40), (1, 333, 500)):
        other = msgspec.structs.replace(workload, batch=batch, height=height, width=width)
        operands = random_operands(other, height)
        inputs = {name: tvm.runtime.tensor(array, tvm.cuda()) for name, array in operands.items() if name != "output"}
        for each in (operator, loaded) if height == 7 else (operator,):
            check_result(other, operands, each(**inputs).numpy())


def test_torch_tensors_and_a_given_output() -> None:
    torch = pytest.importorskip("torch")
    operator = tvmconv.compile(LAYERS["3x3"], "cuda", open_sizes=("height", "width"))
    w, shift = torch.randn(64, 64, 3, 3, device="cuda") / 24, torch.randn(64, device="cuda")
    for height, width in ((8, 8), (57, 31), (120, 160)):
        x = torch.randn(1, 64, height, width, device="cuda")
        out = torch.empty_like(x)
        assert operator(x, w, shift=shift, out=out) is out
        exact = torch.nn.functional.conv2d(x.double(), w.double(), shift.double(), padding=1).relu()
        assert (out - exact).abs().max() < 1e-4 * exact.abs().max()
        with pytest.raises(InvalidArgumentError, match="out is"):
            operator(x, w, shift=shift, out=out[:, :, 1:].contiguous())


def test_a_network_for_images_of_any_size(tmp_path: Path) -> None:
    """The sizes are in the ranges of all kernels; the first comes again after the largest."""
    network, on_cpu = tvmconv.build(unet(), "cuda"), tvmconv.build(unet())
    assert all(layer.kernel.startswith("tvmconv cuda/") for layer in network.layers)
    network.export(tmp_path / "any.so")
    loaded = tvmconv.load(tmp_path / "any.so")
    drawn = np.random.default_rng(0).integers(1, (4, 201, 201), (20, 3)).tolist()
    for n, height, width in ((1, 1, 1), *drawn, (1, 540, 960), (1, 1, 1)):
        x = image(n, 3, 2 * height, 2 * width)
        expected = on_cpu(x)
        for each in (network, loaded):
            assert np.abs(each(x) - expected).max() < 1e-4 * np.abs(expected).max(), x.shape
    with pytest.raises(InvalidArgumentError, match=r"expected sizes for which height // 2 \* 2 == height"):
        network(image(1, 3, 7, 8))
