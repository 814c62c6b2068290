"""Channels that pass by layers: carried through the first of them, and every concatenation and shuffle is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.shared.passes import carry_channels, use_kernels, with_precision
from tvmconv.autotvm.task import extract_from_model
from tvmconv.network import build, import_model, passes
from tvmconv.network.graph.graph import blocks_of, operator_name
from tvmconv.network.model import Model
from tvmconv.network.passes.context import Context
from tvmconv.targets import resolve_target

torch = pytest.importorskip("torch")
from tests.network.passes.shuffled_units import First, Unit, layer, network, shufflenet  # noqa: E402
from tests.open_sizes.batches import network_of_twins  # noqa: E402
from tests.shared.torch_modules import exact  # noqa: E402

GPU = resolve_target({"kind": "cuda", "arch": "sm_90a"})
ZEN4 = resolve_target({"kind": "llvm", "mcpu": "znver4"})

MOVES = {f"relax.{name}" for name in ("concat", "permute_dims", "split", "strided_slice", "take")}


@dataclass(frozen=True)
class Case:
    """A network, and the concatenations that it has left: those of tensors that are computed apart."""

    id: str
    make: Callable[[], torch.nn.Module]
    left: int


class OneLayer(torch.nn.Module):
    """A unit of one layer: what it carries and what it computes are one tensor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(*layer(channels // 2, channels // 2), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        aside, other = x.chunk(2, 1)
        return torch.cat([self.layer(other), aside], 1)


CASES = (
    Case("two-stages", shufflenet, 5),
    Case("whole-vectors", lambda: network(Unit(32), inputs=32, channels=32), 1),
    Case("behind", lambda: network(Unit(26), Unit(26, is_behind=True), inputs=26, channels=26), 2),
    Case("one-layer", lambda: network(OneLayer(26), OneLayer(26), inputs=26, channels=26), 0),
    Case("pooled", lambda: network(torch.nn.MaxPool2d(2), Unit(24), torch.nn.MaxPool2d(2), inputs=24, channels=24), 1),
)


class Sum(torch.nn.Module):
    """A unit with what it reads added to it, in its own order of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = Unit(26)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unit(x) + x


UNCHANGED = (
    Case("negative", lambda: network(torch.nn.Conv2d(26, 26, 1), Unit(26), inputs=26, channels=26), 1),
    Case("another-activation", lambda: network(Unit(26), torch.nn.SiLU(), Unit(26), inputs=26, channels=26), 2),
    Case("sum", lambda: network(Sum(), inputs=26, channels=26), 1),
    Case("output", lambda: torch.nn.Sequential(*layer(3, 26), torch.nn.ReLU(), Unit(26)).eval(), 1),
    Case("no-units", lambda: network(First(8, 13), inputs=8, channels=26), 1),
)


def model_of(module: torch.nn.Module, batch: int = 2) -> Model:
    return import_model(module, (images(batch),))


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 9, 10, generator=torch.Generator().manual_seed(5))


def moves(mod: tvm.IRModule) -> Counter[str]:
    names = (operator_name(value) for block in blocks_of(mod) for value in block.values.values())
    return Counter(name for name in names if name in MOVES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numbers(case: Case) -> None:
    module = case.make()
    model = model_of(module)
    mod = carry_channels(model.mod, GPU, "float16")
    left = moves(mod)
    assert left["relax.concat"] == case.left
    assert not left["relax.take"] + left["relax.permute_dims"] + left["relax.split"]
    y = build(replace(model, mod=mod), "llvm", sparse="never", precision="strict")(images().numpy())
    reference = exact(module, images())
    np.testing.assert_allclose(y, reference, rtol=0, atol=3e-6 * np.abs(reference).max())


@pytest.mark.parametrize("case", UNCHANGED, ids=lambda case: case.id)
def test_channels_stay_where_they_are(case: Case) -> None:
    """What has to read channels in their own order, or makes another number of those that pass by, keeps them."""
    mod = model_of(case.make()).mod
    assert carry_channels(mod, GPU, "float16") is mod


def test_layers_compute_whole_vectors() -> None:
    mod = carry_channels(model_of(shufflenet()).mod, GPU, "bfloat16")
    assert {int(each.ty.shape[1]) % 8 for each in _convolutions(mod)} == {0}


def _convolutions(mod: tvm.IRModule) -> list[relax.Call]:
    values = [value for block in blocks_of(mod) for value in block.values.values()]
    return [value for value in values if operator_name(value) == "relax.nn.conv2d"]


def test_an_identity_that_is_missing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers above would tell of channels that are lost on the way."""
    monkeypatch.setattr("tvmconv.network.passes.early.carrying.CARRIED", 0.5)
    module = network(Unit(26), inputs=26, channels=26)
    model = model_of(module)
    carrying = replace(model, mod=carry_channels(model.mod, GPU, "float16"))
    y = build(carrying, "llvm", sparse="never", precision="strict")
    reference = exact(module, images())
    assert np.abs(y(images().numpy()) - reference).max() > 0.01 * np.abs(reference).max()


@pytest.mark.usefixtures("nhwc_is_faster")
@pytest.mark.parametrize("by_planes", [False, True])
def test_nothing_is_between_kernels_on_a_gpu(by_planes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read half of a tensor, and store their results over it, by their serial twins."""
    monkeypatch.setattr("tvmconv.network.passes.half._is_faster", lambda *_: True)
    planes = "tvmconv.schedules.cuda.depthwise_planes.template"
    if by_planes:
        monkeypatch.setattr(f"{planes}.estimate", lambda *_: 1.0)
    else:
        monkeypatch.setattr(f"{planes}.obstacle", lambda *_: "is left out")
    module = shufflenet(8)
    source = model_of(module)
    mod, word = with_precision(carry_channels(source.mod, GPU, "float16"), GPU, "float16")
    mod, layers = use_kernels(mod, GPU, "never", word)
    names = Counter(
        operator_name(value) for block in blocks_of(mod) for value in block.values.values() if operator_name(value)
    )
    assert not names.keys() & MOVES
    assert names["relax.call_tir_inplace"] == 5
    assert any(layer.kernel.endswith("depthwise_planes") for layer in layers) == by_planes
    y, reference = network_of_twins(source, mod, layers)(images().numpy()), exact(module, images())
    np.testing.assert_allclose(y, reference, rtol=0, atol=5e-3 * np.abs(reference).max())


def test_tasks_are_of_layers_that_carry_channels() -> None:
    """So they are in half precision on a GPU alone, and where weights have their zeros."""
    model = model_of(network(Unit(26), Unit(26), inputs=26, channels=26), 32)
    found = {}
    for target, precision in ((GPU, "float16"), (GPU, "float32"), (ZEN4, "bfloat16")):
        tasks = extract_from_model(model, target, precision=precision)
        found[precision] = {task.problem.workload.out_channels for task in tasks}
    assert 13 not in found["float16"]
    assert 13 in found["float32"] & found["bfloat16"]


@pytest.mark.parametrize("sparse", ["auto", "always"])
def test_no_weight_is_compiled_in_for_its_identity(sparse: str) -> None:
    model, context = model_of(network(Unit(26), inputs=26, channels=26)), Context(GPU, "float16", sparse)
    mod = passes.run(passes.PREPARING, model.mod, context)
    asked = [(context.sparse, {int(each.ty.shape[1]) for each in _convolutions(mod)})]
    assert asked == [("never", {16, 32})] if sparse == "auto" else asked == [("always", {13, 16, 26})]
