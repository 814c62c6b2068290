"""Models with layers of tvmconv go where torch's go: networks, torch.compile, exports, ONNX; and back to torch's."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tvmconv
from tests.nn.nn_cases import assert_close
from tests.shared.sparing import sparing

torch = pytest.importorskip("torch")

from torch.export import Dim  # noqa: E402

from tests.torch_exports import by_onnx, onnx_by_dynamo, onnx_by_torchscript  # noqa: E402
from tvmconv.nn import DepthwiseConv1d, DepthwiseConv2d, DepthwiseConv2dSame, functional, replace, replaced, restore  # noqa: E402

nn = torch.nn
SIZES = ({0: Dim("n"), 2: Dim("h", min=3), 3: Dim("w", min=3)},)


class Conv2dSame(nn.Conv2d):  # type: ignore[misc,name-defined]
    """A layer that pads as TensorFlow's SAME, named as timm's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(nn.functional.pad(x, (0, 1, 0, 1)), self.weight, self.bias, 2, 0, 1, self.groups)


class Model(nn.Module):  # type: ignore[misc,name-defined]
    """A model with each kind of layer that `replace` takes, and some that it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(1, 4, 3, padding=1)
        self.dense, self.norm = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)
        self.plain = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.same = Conv2dSame(12, 12, 3, stride=2, groups=12)
        self.row = nn.Conv1d(12, 12, 3, padding="same", groups=12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.same(self.plain(self.norm(self.dense(self.one(x))).relu()))
        return self.row(y.flatten(2))


def models() -> tuple[Any, Any]:
    """Return a model of torch, and one with tvmconv's layers that has its weights."""
    torch.manual_seed(4)
    model = Model().eval()
    return model, replace(copy.deepcopy(model))


def image(batch: int = 2, height: int = 8, width: int = 6) -> torch.Tensor:
    """Return an image, of an even size, for which the layer that pads as SAME is what its forward does."""
    return torch.randn(batch, 1, height, width, generator=torch.Generator().manual_seed(5))


def by_network(exported: Any) -> Callable[..., Any]:
    network = tvmconv.build(tvmconv.import_model(exported))
    return lambda x: network(x)


def by_network_of(model: Any, x: torch.Tensor) -> Callable[..., Any]:
    """Return the network of a model as it is, which has the sizes of x."""
    network = tvmconv.build(tvmconv.import_model(model, (x,)))
    return lambda x: network(x)


def exported(model: Any, x: torch.Tensor) -> Any:
    return torch.export.export(model, (x,), dynamic_shapes=SIZES)


def saved(model: Any, x: torch.Tensor) -> Any:
    buffer = io.BytesIO()
    torch.export.save(exported(model, x), buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


def script_of_onnx(model: Any, x: torch.Tensor) -> bytes:
    """Return ONNX's bytes by the exporter of TorchScript, which may warn of nothing that it leaves out."""
    pytest.importorskip("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        return onnx_by_torchscript(model, x)


def graph_of_onnx(model: Any, x: torch.Tensor) -> bytes:
    """Return ONNX's bytes by the exporter of torch.export."""
    pytest.importorskip("onnxscript")
    return onnx_by_dynamo(model, x, SIZES)


WAYS: dict[str, Callable[[Any, torch.Tensor], Callable[..., Any]]] = {
    "called": lambda model, x: model,
    "network": by_network_of,
    "compiled": lambda model, x: torch.compile(model, backend="tvmconv"),
    "compiled-whole": lambda model, x: torch.compile(model, backend="aot_eager", fullgraph=True),
    "exported": lambda model, x: exported(model, x).module(),
    "exported-and-saved": lambda model, x: saved(model, x).module(),
    "exported-network": lambda model, x: by_network(exported(model, x)),
    "traced": lambda model, x: torch.jit.trace(model, (x,)),
    "fx": lambda model, x: torch.fx.symbolic_trace(model),
    "onnx-script": lambda model, x: by_onnx(script_of_onnx(model, x)),
    "onnx-script-network": lambda model, x: by_network(script_of_onnx(model, x)),
    "onnx-graph": lambda model, x: by_onnx(graph_of_onnx(model, x)),
}


IGNORED = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Exporting a model:UserWarning")
OF_ONE_SIZE = ("network",)
"""The ways whose results take the sizes alone that they were made with."""


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("name", WAYS)
def test_models_with_replaced_layers(name: str) -> None:
    torch._dynamo.reset()
    plain, ours = models()
    with torch.no_grad():
        run = WAYS[name](ours, image())
        for sizes in ((2, 8, 6),) if name in OF_ONE_SIZE else ((2, 8, 6), (3, 10, 4)):
            x = image(*sizes)
            assert_close(torch.as_tensor(np.asarray(run(x))), plain(x).double())


def test_an_exported_model_has_torchs_operators_alone() -> None:
    """So it runs without tvmconv."""
    _, ours = models()
    nodes = exported(ours, image()).graph.nodes
    assert not [node for node in nodes if node.op == "call_function" and "tvmconv" in str(node.target)]


def test_replaced_layers_are_listed_and_restored() -> None:
    plain, ours = models()
    assert replaced(ours).ours == ("one", "plain", "same", "row")
    assert not replaced(ours).others
    kinds = [type(ours.get_submodule(name)) for name in replaced(ours).ours]
    assert kinds == [DepthwiseConv2d, DepthwiseConv2d, DepthwiseConv2dSame, DepthwiseConv1d]
    assert set(replaced(plain).others.values()) == {"replace has not been called"}
    weights = {name: weight.data_ptr() for name, weight in ours.named_parameters()}
    assert restore(ours) is ours
    assert [type(module) for module in ours.modules()] == [type(module) for module in plain.modules()]
    assert {name: weight.data_ptr() for name, weight in ours.named_parameters()} == weights
    assert list(ours.state_dict()) == list(plain.state_dict())
    assert replaced(replace(ours)).ours == ("one", "plain", "same", "row")


def test_layers_that_stay_are_told_with_the_reason() -> None:
    class Scaled(nn.Conv2d):  # type: ignore[misc,name-defined]
        pass

    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, groups=4, dtype=torch.float64),
        nn.Conv3d(4, 4, 3, groups=4),
        Scaled(4, 4, 3, groups=4),
        nn.Conv2d(4, 4, 3, groups=2),
    )
    with pytest.warns(UserWarning, match="0 of 4 depthwise layers are tvmconv's"):
        replace(model)
    reasons = list(replaced(model).others.values())
    for reason, words in zip(reasons, ("'reflect'", "torch.float64", "Conv3d", "Scaled is a class"), strict=True):
        assert words in reason


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "conv2d-same-strided": lambda x: tvmconv.conv2d(x, torch.ones(4, 1, 3, 3), stride=2, shift=torch.ones(4)),
    "conv2d-residual": lambda x: tvmconv.conv2d(x, torch.ones(1, 1, 5, 3), residual=x, activation=("leaky_relu", 0.2)),
    "depthwise": lambda x: tvmconv.depthwise(x, torch.ones(1, 3, 3, 2), padding=(2, 0, 1, 1), activation="relu6"),
    "same": lambda x: functional.depthwise_conv2d_same(x, torch.ones(1, 1, 3, 3), stride=2),
    "row": lambda x: functional.depthwise_conv1d(x[:, :, 0], torch.ones(1, 1, 3), padding="same"),
    "causal": lambda x: functional.causal_conv1d(x[:, :, 0], torch.ones(1, 3), activation="silu"),
}


OF_FUNCTIONS = [name for name in WAYS if name not in ("called", "network", "exported-and-saved")]


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize(("name", "way"), sparing(product(FUNCTIONS, OF_FUNCTIONS), lambda index: index % 5 == 0))
def test_functions(name: str, way: str) -> None:
    torch._dynamo.reset()

    class Calling(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: torch.Tensor) -> Any:
            return FUNCTIONS[name](x)

    with torch.no_grad():
        run = WAYS[way](Calling().eval(), image())
        for sizes in ((2, 8, 6), (3, 7, 9)):
            x = image(*sizes)
            assert_close(torch.as_tensor(np.asarray(run(x))), FUNCTIONS[name](x).double())
