"""Causal convolutions of sequences in torch: results and gradients, states, steps, and what torch asks of operators."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.nn.nn_cases import DTYPES, assert_close
from tests.nn.sequence_cases import CASES, Sequences, check
from tests.shared.sparing import sparing
from tvmconv.problem.errors import TvmconvError
from tvmconv.runtime import operator, operators
from tvmconv.support.cache import Cache

torch = pytest.importorskip("torch")

from tvmconv.nn import causal, functional, launches  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(1)
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "dtype"), sparing(product(CASES, DTYPES), lambda index: index % 4 == 0), ids=str)
def test_results_and_gradients(name: str, dtype: Any) -> None:
    check(CASES[name], dtype)


def test_a_wrong_result_is_caught() -> None:
    case, ahead = CASES["4-taps"], Sequences((2, 6, 51), 4)
    x, *others = (tensor.detach().double() for tensor in case.tensors())
    shifted = ahead.reference(torch.nn.functional.pad(x, (0, 1)), *others)[..., 1:]
    with pytest.raises(AssertionError):
        assert_close(case.convolve(*case.tensors()), shifted)


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_final_states_go_on(length: int) -> None:
    """Two halves, the second with the states of the first, are the whole."""
    x, w, bias = CASES["4-taps"].tensors()
    whole, last = functional.causal_conv1d(x, w, bias, "silu", return_final_states=True)
    head, states = functional.causal_conv1d(x[..., :length], w, bias, "silu", return_final_states=True)
    tail, final = functional.causal_conv1d(x[..., length:], w, bias, "silu", states, return_final_states=True)
    torch.testing.assert_close(torch.cat((head, tail), -1), whole)
    assert torch.equal(final, last)
    assert torch.equal(last, x[..., -3:])


@pytest.mark.parametrize("kept", [3, 5])
@pytest.mark.parametrize("size", [None, 1, 2, 7])
def test_steps(kept: int, size: int | None) -> None:
    """Steps of one element or several give what the whole sequence gives, and leave the last elements in the state."""
    x, w, bias = (tensor.detach() for tensor in CASES["4-taps"].tensors())
    state = torch.zeros(2, 6, kept)
    if size is None:
        parts = [functional.causal_conv1d_update(x[..., i], state, w, bias, "silu")[..., None] for i in range(50)]
    else:
        parts = [functional.causal_conv1d_update(each, state, w, bias, "silu") for each in x.split(size, -1)]
    torch.testing.assert_close(torch.cat(parts, -1), functional.causal_conv1d(x, w, bias, "silu"))
    assert torch.equal(state, x[..., -kept:])


LENGTHS = (33, 100, 16, 255, 77)
LONG = (256, 1000, 257)


@pytest.mark.parametrize("case", ["4-taps", "linear-states", "channels-last"])
def test_lengths_share_kernels(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two serve all but the shortest, forward and as gradients by x; each length is right."""
    compiled: list[Any] = []

    def compile_problem(problem: Any, *rest: Any) -> Any:
        if problem.direction != "weight_gradient":
            compiled.append(problem)
        return original(problem, *rest)

    original = operators.compile_problem
    monkeypatch.setattr(operators, "compile_problem", compile_problem)
    monkeypatch.setattr(operators, "_operators", Cache(9))
    monkeypatch.setattr(launches, "_known", Cache(9))
    for first, *others in (LENGTHS, LONG):
        check(replace(CASES[case], x=(2, 6, first)))
        assert any("width" in problem.open_sizes for problem in compiled)
        compiled.clear()
        for length in others:
            check(replace(CASES[case], x=(2, 6, length)))
        assert max((problem.workload.width for problem in compiled), default=0) < 16


def test_rows_too_long_for_tiles_have_kernels_of_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "MAX_TILES", 150)
    for length in (100, 151):
        check(Sequences((1, 2, length), 3, bias=False, activation=None))


def test_operators_are_sound() -> None:
    x, w, bias, states = Sequences((2, 3, 10), 4, states=True).tensors()
    torch.library.opcheck(causal.causal_conv1d, (x, w, bias, states, True))
    last = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    torch.library.opcheck(causal.causal_conv1d, (last, w, None, None, False))
    given = (x.detach()[..., :1], torch.randn(2, 3, 5), w.detach(), None, True, None, None)
    torch.library.opcheck(causal.causal_conv1d_update, given)


def test_second_derivatives() -> None:
    x, w, states = Sequences((1, 2, 5), 3, bias=False, activation=None, states=True).tensors()

    def convolve(x: Any, w: Any, states: Any) -> Any:
        return causal.causal_conv1d(x, w, None, states, False)

    tolerances = {"eps": 0.25, "atol": 2e-3, "rtol": 1e-3}
    with pytest.warns(UserWarning, match="Input #"):
        assert torch.autograd.gradgradcheck(convolve, (x, w, states), **tolerances)


@pytest.mark.parametrize("name", ["states", "channels-last"])
def test_compiled_without_a_graph_break(name: str) -> None:
    case = CASES[name]

    def loss(*tensors: Any) -> Any:
        return case.convolve(tensors[0].relu(), *tensors[1:]).sigmoid().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    tensors = case.tensors()
    for one, other in zip(
        torch.autograd.grad(compiled(*tensors), tensors), torch.autograd.grad(loss(*tensors), tensors), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_step_is_compiled_without_a_graph_break() -> None:
    x, w, bias = (tensor.detach() for tensor in CASES["4-taps"].tensors())
    states = [torch.zeros(2, 6, 3) for _ in range(2)]
    compiled = torch.compile(functional.causal_conv1d_update, fullgraph=True, backend="aot_eager")
    for i in range(3):
        got, expected = (
            function(x[..., i], state, w, bias, "silu")
            for function, state in zip((compiled, functional.causal_conv1d_update), states, strict=True)
        )
        torch.testing.assert_close(got, expected)
        assert torch.equal(*states)


def test_autocast_computes_in_half_precision() -> None:
    tensors = CASES["states"].tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = CASES["states"].convolve(*tensors)
    exact = [tensor.detach().bfloat16().double() for tensor in tensors]
    exact[2] = tensors[2].detach().double()
    assert result.dtype == torch.bfloat16
    assert_close(result, CASES["states"].reference(*exact))
    assert all(each.dtype == torch.float32 for each in torch.autograd.grad(result.float().sum(), tensors))


def test_no_sequences() -> None:
    x, w, bias = CASES["4-taps"].tensors()
    for empty in (x[:0], x[..., :0]):
        result = functional.causal_conv1d(empty, w, bias, "silu")
        assert result.shape == empty.shape
        assert not any(each.any() for each in torch.autograd.grad(result.sum(), (w, bias)))


BAD: dict[str, tuple[Any, str]] = {
    "rank": (lambda x, w, b, s: (x[0], w, b, s), "x is .6, 50.; expected the shape .B, D, L., with channels"),
    "weight": (lambda x, w, b, s: (x, w[:, None], b, s), "weight is .6, 1, 4.; expected the shape .6, K."),
    "channels": (lambda x, w, b, s: (x, w[1:], b, s), "weight is .5, 4.; expected the shape .6, K."),
    "bias": (lambda x, w, b, s: (x, w, b[1:], s), "bias is .5,.; expected the shape .6,."),
    "states": (lambda x, w, b, s: (x, w, b, s[..., 1:]), "initial_states is .2, 6, 2.; expected the shape .2, 6, 3."),
    "types": (lambda x, w, b, s: (x, w, b, s.half()), "initial_states is torch.float16; expected torch.float32"),
    "float64": (lambda x, w, b, s: (x.double(), w.double(), None, None), "x is torch.float64; expected float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_refused(name: str) -> None:
    change, message = BAD[name]
    x, w, bias, states = (each.detach() for each in Sequences((2, 6, 50), 4, states=True).tensors())
    x, w, bias, states = change(x, w, bias, states)
    with pytest.raises(RuntimeError, match=message):
        functional.causal_conv1d(x, w, bias, None, states)


def test_other_bad_arguments_are_refused() -> None:
    x, w = torch.randn(2, 6, 1), torch.randn(6, 4)
    with pytest.raises(TvmconvError, match="activation is 'relu'; expected None, 'silu' or 'swish'"):
        functional.causal_conv1d(x, w, activation="relu")
    with pytest.raises(RuntimeError, match="conv_state is .2, 6, 2.; expected the shape .2, 6, 3 or more."):
        functional.causal_conv1d_update(x, torch.zeros(2, 6, 2), w)
    with pytest.raises(RuntimeError, match="x is .6,.; expected the shape .B, D. or .B, D, L."):
        functional.causal_conv1d_update(x[0, :, 0], torch.zeros(2, 6, 3), w)
