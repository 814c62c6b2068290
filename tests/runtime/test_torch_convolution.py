"""`tvmconv.conv2d` and `tvmconv.depthwise` of torch's tensors, as operators of torch; tensors without data."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

import tvmconv
from tests.nn.nn_cases import assert_close
from tests.shared.sparing import in_turns, sparing
from tvmconv.problem.errors import TvmconvError

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.shared.torch_modules import Function  # noqa: E402
from tvmconv.nn import DepthwiseConv2d, causal_conv1d_fn, causal_conv1d_update, functional  # noqa: E402

X, W, DENSE = (torch.randn(shape, generator=torch.Generator().manual_seed(6)) for shape in (
    (2, 6, 9, 8), (6, 2, 3, 3), (4, 6, 3, 3),
))  # fmt: skip

CALLS: dict[str, Callable[..., Any]] = {
    "conv2d": lambda x, w=DENSE: tvmconv.conv2d(x, w, stride=(2, 1), padding=(1, 0), activation="relu6"),
    "conv2d-epilogue": lambda x, w=DENSE: tvmconv.conv2d(
        x, w, scale=torch.ones(4) * 2, shift=torch.ones(4), residual=x[:, :4], activation=("leaky_relu", 0.1)
    ),
    "depthwise": lambda x, w=W: tvmconv.depthwise(x, w, stride=2, dilation=(1, 2), activation="silu"),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "dynamic"), sparing(product(CALLS, (None, True)), in_turns))
def test_compiled_as_one_graph(name: str, dynamic: bool | None) -> None:
    """Without a warning, such as that the compiler has looked into tvmconv."""
    compiled = torch.compile(lambda x: CALLS[name](x.sin()) + 1, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for x in (X, X[:1]):
            torch.testing.assert_close(compiled(x), CALLS[name](x.sin()) + 1)


@pytest.mark.parametrize("name", CALLS)
def test_mapped(name: str) -> None:
    images = torch.stack([X, X.flip(0), X.cos()])
    got = torch.vmap(CALLS[name])(images)
    torch.testing.assert_close(got, torch.stack([CALLS[name](x) for x in images]))
    assert torch.vmap(CALLS[name])(images[:0]).shape == (0, *got.shape[1:])
    weight = DENSE if "conv2d" in name else W
    weights = torch.stack([weight, -weight], 2)
    got = torch.vmap(CALLS[name], in_dims=(None, 2), out_dims=1)(X, weights)
    torch.testing.assert_close(got, torch.stack([CALLS[name](X, weight), CALLS[name](X, -weight)], 1))


def test_steps_are_mapped_over_states() -> None:
    x, states, w = torch.randn(3, 2, 6), torch.randn(2, 6, 3, 3), torch.randn(6, 4)
    held = states.clone()
    got = torch.vmap(lambda x, state: causal_conv1d_update(x, state, w), in_dims=(0, 3))(x, states)
    for i in range(3):
        state = held[..., i].contiguous()
        torch.testing.assert_close(got[i], causal_conv1d_update(x[i], state, w))
        assert torch.equal(states[..., i], state)
    with pytest.raises(TvmconvError, match="states is 'a tensor that vmap does not map over'"):
        torch.vmap(lambda x: causal_conv1d_update(x, torch.zeros(2, 6, 3), w))(x)


COUNTED: dict[str, tuple[Callable[[], Any], int]] = {
    "conv2d": (lambda: tvmconv.conv2d(X, DENSE), 2 * (2 * 4 * 9 * 8) * 6 * 9),
    "depthwise": (lambda: tvmconv.depthwise(X, W, stride=2), 2 * (2 * 12 * 5 * 4) * 9),
    "layer": (lambda: DepthwiseConv2d(6, 12, 3)(X), 2 * (2 * 12 * 7 * 6) * 9),
    "row": (lambda: causal_conv1d_fn(X[:, :, 0], W[:, 0, 0]), 2 * (2 * 6 * 8) * 3),
    "step": (lambda: causal_conv1d_update(X[:, :, 0, 0], torch.zeros(2, 6, 2), W[:, 0, 0]), 2 * (2 * 6) * 3),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_are_counted(name: str) -> None:
    call, expected = COUNTED[name]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    assert counter.get_total_flops() == expected


def test_a_step_of_training_has_three_times_the_operations() -> None:
    layer = DepthwiseConv2d(6, 6, 3, padding=1)
    with FlopCounterMode(display=False) as counter:
        layer(X.clone().requires_grad_()).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * X.numel() * 9


EVERY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "conv2d": lambda x, w, dense: tvmconv.conv2d(x, dense, stride=2),
    "depthwise": lambda x, w, dense: tvmconv.depthwise(x, w),
    "function": lambda x, w, dense: functional.depthwise_conv2d(x, w.reshape(12, 1, 3, 3), stride=2),
    "same": lambda x, w, dense: functional.depthwise_conv2d_same(x, w.reshape(12, 1, 3, 3), stride=2),
    "row": lambda x, w, dense: functional.depthwise_conv1d(x[:, :, 0], w[:, :1, 0]),
    "causal": lambda x, w, dense: torch.cat(causal_conv1d_fn(x[:, :, 0], w[:, 0, 0], return_final_states=True), -1),
    "step": lambda x, w, dense: causal_conv1d_update(x[:, :, 0, 0], torch.zeros_like(x[:, :, 0, :2]), w[:, 0, 0]),
}


@pytest.mark.parametrize("name", EVERY)
def test_tensors_without_data_have_the_shapes_of_results(name: str) -> None:
    expected = EVERY[name](X, W, DENSE).shape
    assert EVERY[name](*(tensor.to("meta") for tensor in (X, W, DENSE))).shape == expected
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(tensor) for tensor in (X, W, DENSE)]
    assert EVERY[name](*fakes).shape == expected
    with mode:
        assert EVERY[name](*fakes).shape == expected


def test_tensors_of_which_some_have_no_data_are_refused() -> None:
    with pytest.raises(TvmconvError, match="w is 'on cpu'; expected a tensor on meta"):
        tvmconv.conv2d(X.to("meta"), DENSE)
    with pytest.raises(TvmconvError, match="expected tensors all fake, or none"):
        tvmconv.conv2d(FakeTensorMode().from_tensor(X), DENSE)


@pytest.mark.parametrize("name", EVERY)
def test_symbolic_traces_compute_the_same(name: str) -> None:
    traced = torch.fx.symbolic_trace(lambda x: EVERY[name](x, W, DENSE)) if name != "step" else None
    if traced is not None:
        assert torch.equal(traced(X), EVERY[name](X, W, DENSE))
    layer = torch.nn.Sequential(DepthwiseConv2d(6, 6, 3), torch.nn.ReLU())
    assert torch.equal(torch.fx.symbolic_trace(copy.deepcopy(layer))(X), layer(X))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_where_no_gradients_are_kept(name: str, mode: Any) -> None:
    w, dense = torch.nn.Parameter(W), torch.nn.Parameter(DENSE)
    with mode():
        torch.testing.assert_close(EVERY[name](X, w, dense), EVERY[name](X, W, DENSE))


def test_parameters_where_gradients_are_kept_are_refused_by_functions_without_any() -> None:
    with pytest.raises(TvmconvError, match="w is 'a tensor that requires grad'"):
        tvmconv.conv2d(X, torch.nn.Parameter(DENSE))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_no_images(name: str, last: bool) -> None:
    x = X[:0].to(memory_format=torch.channels_last) if last else X[:0]
    assert EVERY[name](x, W, DENSE).shape == (0, *EVERY[name](X, W, DENSE).shape[1:])


def test_results_by_plain_operators_are_those_of_kernels() -> None:
    """As in programs that are exported, whose operators are torch's."""
    for call in CALLS.values():
        program = torch.export.export(Function(call), (X,))
        assert_close(program.module()(X), call(X.double().float()).double())
