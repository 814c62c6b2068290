"""Layers of torch by tvmconv's kernels: results, gradients to the second order, and what torch asks of operators."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.nn.nn_cases import DTYPES, LAYERS, Layer, Tensor, assert_close, check
from tests.shared.sparing import sparing
from tvmconv.support.cache import Cache

torch = pytest.importorskip("torch")

from tvmconv.nn import DepthwiseConv1d, DepthwiseConv2d, functional, launches, operators, replace  # noqa: E402
from tvmconv.problem.errors import TvmconvError  # noqa: E402
from tvmconv.runtime import gradients  # noqa: E402
from tvmconv.runtime import operators as calls  # noqa: E402

nn = torch.nn
OPTIONS = (2, 1, 1, 2, 0, 1, 1, 2)
"""Stride, padding and dilation of the operators that are tried by themselves."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Using padding=")
@pytest.mark.parametrize(("name", "dtype"), sparing(product(LAYERS, DTYPES), lambda index: index % 4 == 0), ids=str)
def test_results_and_gradients_are_those_of_torch(name: str, dtype: Any) -> None:
    check(LAYERS[name], dtype)


def test_other_orders_in_memory() -> None:
    """A gradient that is expanded, one in channels_last, and a strided x."""
    layer = LAYERS["stride-2"]
    check(layer, like=lambda result: torch.ones(()).expand_as(result))
    check(layer, like=lambda result: torch.randn_like(result).to(memory_format=torch.channels_last))
    x, w, bias = layer.tensors()
    result = layer.convolve(x.to(memory_format=torch.channels_last), w, bias)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert_close(result, layer.reference(x.double(), w.double(), bias.double()))
    for _ in range(2):  # the second goes by what the first has prepared
        strided = torch.randn(16, 15, 8, 2).permute(3, 2, 1, 0)
        assert_close(layer.convolve(strided, w, bias), layer.reference(strided.double(), w.double(), bias.double()))


@pytest.mark.parametrize("channels_last", [False, True])
def test_no_images(channels_last: bool) -> None:
    layer = Layer((0, 4, 9, 9), (8, 1, 3, 3), stride=2)
    x, w, bias = layer.tensors()
    if channels_last:
        x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    result = layer.convolve(x, w, bias)
    assert result.shape == (0, 8, 4, 4)
    result.sum().backward()
    assert x.grad.shape == x.shape
    for tensor in (w, bias):
        assert not tensor.grad.any()


BAD: dict[str, tuple[Any, str]] = {
    "float64": (lambda x, w, b: (x.double(), w.double(), b.double()), "x is torch.float64; expected float32, float16"),
    "mixed": (lambda x, w, b: (x, w.half(), b), "w is torch.float16; expected torch.float32, as x is"),
    "integers": (lambda x, w, b: (x.int(), w.int(), None), "x is torch.int32; expected float32"),
    "device": (lambda x, w, b: (x, w.to("meta"), b), "w is .on meta.; expected a tensor on cpu"),
    "bias-shape": (lambda x, w, b: (x, w, b[1:]), "bias is .5,.; expected the shape .6,."),
    "bias-type": (lambda x, w, b: (x, w, b.half()), "bias is torch.float16; expected torch.float32"),
    "channels": (lambda x, w, b: (x[:, 1:], w, b), "w is .6, 1, 3, 3.; expected the shape .5 . M, 1, R, S"),
    "dense": (lambda x, w, b: (x, w.repeat(1, 6, 1, 1), b), "w is .6, 6, 3, 3."),
    "too-small": (
        lambda x, w, b: (x[:, :, :1, :1], w.repeat(1, 1, 3, 3), b),
        "expected a shape that, dilated .1, 1., fits x",
    ),
    "rank": (lambda x, w, b: (x[0, 0], w, b), "x is .14, 15.; expected the shape .N, C, H, W."),
    "weight-rank": (lambda x, w, b: (x, w[0], b), "weight is .1, 3, 3.; expected a shape of 4 dimensions"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_torch_refuses_is_refused_alike(name: str) -> None:
    change, message = BAD[name]
    layer = LAYERS["3x3"]
    with pytest.raises(RuntimeError, match=message):
        layer.convolve(*change(*(tensor.detach() for tensor in layer.tensors())))


def test_options_are_refused_by_name() -> None:
    x, w = (tensor.detach() for tensor in LAYERS["valid"].tensors())
    for options, error, message in (
        ({"padding": "full"}, ValueError, "padding is 'full'"),
        ({"padding": "same", "stride": 2}, ValueError, "'same' for a stride of 1"),
        ({"stride": (1, 2, 3)}, ValueError, "stride is .1, 2, 3.; expected an integer or 2 of them"),
        ({"stride": 0}, RuntimeError, "stride is .0, 0.; expected integers of 1 or more"),
        ({"padding": -1}, RuntimeError, "padding is .-1"),
        ({"dilation": 0}, RuntimeError, "dilation is .0, 0."),
    ):
        with pytest.raises(error, match=message):
            functional.depthwise_conv2d(x, w, **options)


OPERATORS = ("depthwise", "input", "weight", "both")
"""The names of what `arguments` returns."""


def arguments() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return each operator with arguments."""
    torch.manual_seed(0)
    x, w, bias = (torch.randn(shape, requires_grad=True) for shape in ((2, 2, 4, 5), (4, 1, 3, 2), (4,)))
    dy = torch.randn_like(operators.depthwise(x, w, bias, OPTIONS)).requires_grad_()
    return {
        "depthwise": (operators.depthwise, (x, w, bias, OPTIONS)),
        "input": (operators.input_gradient, (dy, w, list(x.shape), OPTIONS)),
        "weight": (operators.weight_gradient, (dy, x, list(w.shape), OPTIONS)),
        "both": (operators.both_gradients, (dy, x, w, OPTIONS)),
    }


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_sound(name: str) -> None:
    operator, given = arguments()[name]
    torch.library.opcheck(operator, given)


@pytest.mark.filterwarnings("ignore:Input #:UserWarning")
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_gradients(name: str) -> None:
    """All are linear in each tensor, so that large steps have no error but that of rounding."""
    operator, given = arguments()[name]
    count = 3 if name == "both" else 2
    tensors, rest = given[:count], given[count:]
    tolerances = {"eps": 0.25, "atol": 2e-3, "rtol": 1e-3}
    assert torch.autograd.gradcheck(lambda *some: operator(*some, *rest), tensors, **tolerances)
    assert torch.autograd.gradgradcheck(lambda *some: operator(*some, *rest), tensors, **tolerances)


def test_second_derivatives_of_one_gradient_alone() -> None:
    """Both gradients come from one operator, of which a penalty on one of them leaves the other out."""
    layer = LAYERS["stride-2"]
    x, w, bias = layer.tensors()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, w, bias)]
    for operand in (0, 1):
        found = []
        for result, tensors in ((layer.convolve(x, w, bias), [x, w]), (layer.reference(*exact), exact[:2])):
            penalty = torch.autograd.grad(result.square().sum(), tensors, create_graph=True)[operand].square().sum()
            found.append(torch.autograd.grad(penalty, tensors))
        for got, want in zip(*found, strict=True):
            assert_close(got, want)


def test_gradients_of_other_shapes_are_refused() -> None:
    (dy, w, shape, rest), (_, x, w_shape, _) = (arguments()[name][1] for name in ("input", "weight"))
    with pytest.raises(RuntimeError, match="dy is .*; expected the shape"):
        operators.input_gradient(dy[1:], w, shape, rest)
    with pytest.raises(RuntimeError, match="dy is .*; expected the shape"):
        operators.weight_gradient(dy, x[1:], w_shape, rest)


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_without_a_graph_break(dynamic: bool | None) -> None:
    layer = LAYERS["stride-2"]

    def loss(*tensors: Tensor) -> Tensor:
        return layer.convolve(tensors[0].relu(), *tensors[1:]).sigmoid().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    x, *others = layer.tensors()
    for batch in (2, 3, 5):
        taken = [x[:1].detach().repeat(batch, 1, 1, 1).requires_grad_(), *others]
        expected, got = (torch.autograd.grad(each(*taken), taken) for each in (loss, compiled))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_autocast_computes_in_half_precision() -> None:
    layer = LAYERS["stride-2"]
    tensors = layer.tensors()
    exact = [tensor.detach().bfloat16().double().requires_grad_() for tensor in tensors[:2]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer.convolve(*tensors)
    expected = layer.reference(*exact, tensors[2].detach().double())
    assert result.dtype == torch.bfloat16
    assert_close(result, expected)
    got = torch.autograd.grad(result.float().sum(), tensors)
    assert all(each.dtype == torch.float32 for each in got)
    for each, want in zip(got, torch.autograd.grad(expected.sum(), exact), strict=False):
        assert_close(each.bfloat16(), want)
    assert torch.equal(got[2], torch.full((8,), result[:, 0].numel(), dtype=torch.float32))


def test_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gradients, calls):
        monkeypatch.setattr(module, "_calls", type(module._calls)())
    monkeypatch.setattr(launches, "_known", Cache(9))
    kernels: Cache[Any, Any] = Cache(9)
    monkeypatch.setattr(calls, "_operators", kernels)
    layer = LAYERS["multiplier-2-stride-2"]
    for batch in (2, 1, 3):
        tensors = [torch.randn(batch, *layer.x[1:], requires_grad=True), *layer.tensors()[1:]]
        torch.autograd.grad(layer.convolve(*tensors).sum(), tensors)
    directions = [problem.direction for problem, *_ in kernels]
    assert sorted(directions) == ["forward", "input_gradient", "weight_gradient"]


FRAMES = 27
"""The largest number of Python functions of tvmconv that a step of a layer may run, forward and back."""


def test_a_step_does_no_work_that_the_one_before_has_done() -> None:
    layer, x, run = DepthwiseConv2d(8, 8, 3, 2, 1, bias=False), torch.randn(2, 8, 6, 6, requires_grad=True), []

    def step() -> None:
        torch.autograd.grad(layer(x), (x, layer.weight), torch.ones(2, 8, 3, 3))

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("tvmconv."):
            run.append(frame.f_code.co_name)

    step()
    sys.setprofile(record)
    step()
    sys.setprofile(None)
    assert len(run) <= FRAMES, run


def test_forward_mode_is_refused() -> None:
    x, w = (tensor.detach() for tensor in LAYERS["valid"].tensors())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(TvmconvError, match="expected reverse mode"):
            functional.depthwise_conv2d(dual, w)
    with pytest.raises(TvmconvError, match="expected reverse mode"):
        torch.func.jvp(lambda x: functional.depthwise_conv2d(x, w), (x,), (x,))


def _losses(convolve: Any) -> dict[str, Any]:
    """Return functions of x (N, C, H, W) and a weight that transform a loss of a convolution."""
    func = torch.func

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return convolve(x, w).sin().sum()

    def of_one(w: Tensor, x: Tensor) -> Tensor:
        return loss(w, x[None])

    return {
        "grad": func.grad(loss, argnums=(0, 1)),
        "each-image": func.vmap(func.grad(of_one, argnums=(0, 1)), in_dims=(None, 0)),
        "of-a-map": func.grad(lambda w, x: func.vmap(of_one, in_dims=(None, 0))(w, x).sum()),
        "rows-of-a-jacobian": func.jacrev(lambda w, x: convolve(x, w).mean((0, 2, 3))),
        "twice": func.grad(lambda w, x: func.grad(loss)(w, x).square().sum(), argnums=(0, 1)),
    }


@pytest.mark.parametrize("name", _losses(None))
def test_transforms_of_functions(name: str) -> None:
    layer = LAYERS["multiplier-2-stride-2"]
    x, w = (tensor.detach() for tensor in layer.tensors())
    got, want = _losses(layer.convolve)[name](w, x), _losses(layer.reference)[name](w.double(), x.double())
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (got, want)), strict=True):
        assert_close(one, other)


class Network(nn.Module):  # type: ignore[misc,name-defined]
    """A small network with depthwise convolutions, one of which has two names, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=8), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 5, padding="same", groups=16, bias=False), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=4),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, padding_mode="circular"),
        )  # fmt: skip
        self.row = nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.again = self.row

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.first(x)).flatten(2)
        return self.again(self.row(y)).mean((1, 2))


def test_replaced_layers_train_as_torch_does() -> None:
    plain = Network()
    ours = replace(copy.deepcopy(plain))
    kinds = [type(module) for module in ours.modules() if isinstance(module, (nn.Conv1d, nn.Conv2d))]
    assert kinds == [nn.Conv2d, DepthwiseConv2d, DepthwiseConv2d, nn.Conv2d, nn.Conv2d, DepthwiseConv1d]
    assert ours.again is ours.row
    assert list(ours.state_dict()) == list(plain.state_dict())
    batches = [(torch.randn(n, 3, 12, 10), torch.randn(n)) for n in (4, 4, 3, 4, 1, 4)]
    losses = []
    for model in (plain, ours):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses.append([])
        for x, y in batches:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=0)
    plain.load_state_dict(ours.state_dict())


def test_replace_keeps_parameters_and_hooks() -> None:
    layer, seen = nn.Conv2d(4, 8, 3, groups=4), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    weight = layer.weight
    assert replace(layer) is layer
    assert type(layer) is DepthwiseConv2d
    layer(torch.randn(1, 4, 5, 5)).sum().backward()
    assert seen
    assert layer.weight is weight
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("ours", "theirs", "size"), [(DepthwiseConv2d, nn.Conv2d, (9, 8)), (DepthwiseConv1d, nn.Conv1d, (9,))]
)
def test_modules(ours: Any, theirs: Any, size: tuple[int, ...]) -> None:
    options = {"stride": 2, "padding": 1, "bias": False}
    module, reference = ours(4, 8, 3, **options), theirs(4, 8, 3, groups=4, **options)
    reference.load_state_dict(module.state_dict())
    x = torch.randn(2, 4, *size)
    torch.testing.assert_close(module(x), reference(x))
    assert "groups=4" in repr(module)
    with pytest.raises(ValueError, match="divisible"):
        ours(4, 6, 3)


def test_without_torch_the_package_is_named(tmp_path: Any) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tvmconv.nn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "tvmconv.nn needs torch: pip install 'tvmconv[torch]'" in done.stderr
