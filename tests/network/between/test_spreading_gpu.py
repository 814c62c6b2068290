"""Kernels between convolutions on a real GPU, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tvmconv
from tests.shared.between_cases import CASES, Case, torch

LARGE = {
    "average-pool": ((8, 192, 35, 35),),
    "max-pool": ((8, 64, 113, 112),),
    "plane-mean": ((32, 960, 7, 7),),
    "plane-mean-last": ((4, 56, 56, 384),),
    "layer-norm": ((16, 3136, 96),),
    "group-norm": ((4, 24, 128, 127),),
    "response-norm": ((2, 56, 56, 384),),
    "softmax": ((8, 12, 197, 197),),
    "gelu": ((4, 384, 56, 56), (4, 384, 1, 1)),
    "bilinear": ((2, 64, 63, 65),),
    "dense-layer": ((8, 28, 28, 128), *[(8, 28, 28, 32)] * 11),
    "to-channels-last": ((8, 96, 56, 56),),
    "to-channels-first": ((8, 57, 55, 96),),
    "keys": ((8, 197, 12, 64),),
}
"""Shapes of many blocks."""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, dtype: str) -> None:
    """They are those of float64, in small and in large arrays, and twice the same."""
    for shapes in filter(None, (CASES[name].shapes, LARGE.get(name))):
        case = Case(CASES[name].function, shapes)
        inputs = [x.to(getattr(torch, dtype)) for x in case.inputs()]
        module = case.module.to(getattr(torch, dtype))
        network = tvmconv.build(tvmconv.import_model(module, tuple(inputs)), "cuda")
        on_gpu = [x.cuda() for x in inputs]
        results = [network(*on_gpu) for _ in range(2)]
        with torch.no_grad():
            expected = module.cuda().double()(*(x.double() for x in on_gpu))
        share = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
        assert (results[0] - expected).abs().max() <= share * max(1, expected.abs().max())
        assert torch.equal(*results)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("pool", "shape"), [("avg_pool2d", (32, 35, 35, 192)), ("max_pool2d", (32, 57, 56, 64))])
def test_windows_of_channels_in_a_row(pool: str, shape: tuple[int, ...], dtype: str) -> None:
    stride = 1 if pool == "avg_pool2d" else 2

    def pooled(x: Any) -> Any:
        return getattr(torch.nn.functional, pool)(x.permute(0, 3, 1, 2), 3, stride, 1).permute(0, 2, 3, 1)

    case = Case(pooled, (shape,))
    x = case.inputs()[0].to(getattr(torch, dtype))
    y = tvmconv.build(tvmconv.import_model(case.module, (x,)), "cuda")(x.cuda())
    share = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    assert (y - pooled(x.cuda().double())).abs().max() <= share * 4


@pytest.mark.parametrize("shape", [(1, 100_000), (2, 70_001), (70_001, 2)])
def test_long_rows(shape: tuple[int, int]) -> None:
    case = Case(torch.nn.Softmax(-1), (shape,))
    (x,) = case.inputs()
    y = tvmconv.build(tvmconv.import_model(case.module, (x,)), "cuda")(x.cuda())
    torch.testing.assert_close(y.double(), torch.softmax(x.cuda().double(), -1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("axes", [(0,), (2, 3), (0, 2, 3)], ids=["batch", "plane", "all"])
@pytest.mark.parametrize("name", ["average-pool", "plane-mean", "group-norm", "softmax-of-channels"])
def test_open_sizes(name: str, axes: tuple[int, ...]) -> None:
    """One build is for every size."""
    case = CASES[name]
    module, (first,) = case.module, case.shapes
    sizes = {axis: torch.export.Dim(f"size_{axis}", min=2 if axis == 0 else 6, max=200) for axis in axes}
    program = torch.export.export(module, tuple(case.inputs()), dynamic_shapes=(sizes,))
    network = tvmconv.build(tvmconv.import_model(program), "cuda")
    for step in (0, 5, 16):
        shape = [size + step if axis in axes else size for axis, size in enumerate(first)]
        x = torch.randn(shape, generator=torch.Generator().manual_seed(step)).cuda()
        with torch.no_grad():
            expected = module.cuda().double()(x.double())
        assert (network(x) - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


SORTS_AND_SCANS: dict[str, Callable[[Any], Any]] = {
    "topk": lambda x: torch.topk(x, 5, -1),
    "topk-smallest": lambda x: torch.topk(x, 7, 1, largest=False),
    "sort": lambda x: torch.sort(x, -1),
    "sort-descending": lambda x: torch.sort(x, 1, descending=True),
    "argsort": lambda x: torch.argsort(x, 0),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "cumsum-outer": lambda x: torch.cumsum(x, 0),
    "cumprod": lambda x: torch.cumprod(x, -1),
}


@pytest.mark.parametrize("name", SORTS_AND_SCANS)
def test_sorts_and_scans(name: str) -> None:
    """TVM has functions of its own for them on a GPU; those of a CPU would be called with addresses of the GPU."""
    case = Case(SORTS_AND_SCANS[name], ((3, 16, 300),))
    (x,) = case.inputs()
    got = tvmconv.build(tvmconv.import_model(case.module, (x,)), "cuda")(x.cuda())
    expected = case.function(x.cuda().double())
    for one, other in zip(*([y] if isinstance(y, torch.Tensor) else y for y in (got, expected)), strict=True):
        assert (one - other).abs().max() <= (0 if other.dtype == torch.int64 else 2e-6 * other.abs().max())


@pytest.mark.parametrize("layer", [torch.nn.GroupNorm(4, 16), torch.nn.InstanceNorm1d(16, affine=True)], ids=repr)
def test_norms_of_large_numbers(layer: Any) -> None:
    """The variance is that of distances from the mean; of a difference of squares nothing would be left."""
    case = Case(layer, ((3, 16, 300),))
    x = 1000 + case.inputs()[0]
    y = tvmconv.build(tvmconv.import_model(case.module, (x,)), "cuda")(x.cuda())
    with torch.no_grad():
        expected = case.module.cuda().double()(x.cuda().double())
    assert (y - expected).abs().max() < 1e-3
