"""Calls whose arrays have their channels last in memory: tensors of torch in channels_last, and the layout NHWC.

On a CPU a template of the test's own takes them, on a GPU the one for tensor cores.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

import tvmconv
from tests.dispatch import toy_template
from tests.runtime.kinds_of_arrays import KINDS
from tvmconv import ConvWorkload, dispatch
from tvmconv.compute.epilogue import epilogue, epilogue_operands
from tvmconv.compute.padding import padded_input
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import arrays, calls, operators
from tvmconv.schedules.template import Layouts
from tvmconv.targets import dot_instruction, has_gpu, resolve_target
from tvmconv.testing import assert_close, check_result, random_operands

torch = pytest.importorskip("torch")

LAST = torch.channels_last
DTYPES = ("float16", "bfloat16")
ACTIVATIONS = {"none": None, "relu": "relu"}


class Last:
    """A template for dense convolutions in half precision on a CPU: loops as the definition has them."""

    VERSION, LEAST, Config = toy_template.VERSION, toy_template.LEAST, toy_template.Config
    OPEN_SIZES = toy_template.OPEN_SIZES
    LAYOUTS = Layouts(x=("NHWC",), w=("KRSC",), output=("NHWC",))
    space, default_config = map(staticmethod, (toy_template.space, toy_template.default_config))
    estimate, features, ablations = map(
        staticmethod, (toy_template.estimate, toy_template.features, toy_template.ablations)
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return None if problem.is_dense and problem.workload.dtype in DTYPES else "is for half precision"

    def schedule(self, problem: Problem, config: toy_template.Config, target: tvm.target.Target) -> Schedule:
        workload = problem.workload
        (sh, sw), (dh, dw) = workload.stride, workload.dilation
        x, w = (te.placeholder(*workload.operands[name], name=name) for name in "xw")
        padded, _ = padded_input(x, workload, workload.output_size)
        r, s, c = (te.reduce_axis((0, extent), name=name) for extent, name in zip(w.shape[1:], "rsc", strict=True))

        def sums(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
            channel = k // workload.multiplier * w.shape[3] + c
            factors = padded[n, h * sh + r * dh, v * sw + s * dw, channel], w[k, r, s, c]
            return te.sum(factors[0].astype("float32") * factors[1].astype("float32"), axis=[r, s, c])

        accumulated, others = te.compute(workload.output_shape, sums), epilogue_operands(workload)
        return Schedule(te.create_prim_func([x, w, *others.values(), epilogue(accumulated, workload, others)]))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the template for a CPU; no call has been prepared before."""
    monkeypatch.setattr(operators, "_calls", calls.Calls())
    dispatch.register("cpu/last", Last())
    yield
    dispatch.unregister("cpu/last")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not has_gpu(), reason="no GPU here"))])
def device(request: pytest.FixtureRequest, on_cpu: None) -> str:
    """Return a device on which half precision is taken in channels_last."""
    return str(request.param)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Collect the addresses of the arrays that kernels are called with, for each call."""
    found: list[list[int]] = []
    prepare = calls.Launch.prepare

    def spied(kernel: Any, *rest: Any) -> calls.Launch:
        def spy(*arguments: Any) -> None:
            found.append([argument.data_ptr() for argument in arguments])
            kernel(*arguments)

        return prepare(spy, *rest)

    monkeypatch.setattr(calls.Launch, "prepare", spied)
    return found


def tensors(workload: ConvWorkload, device: str, order: Any = LAST) -> dict[str, Any]:
    """Return operands of a workload in NCHW for `conv2d` as tensors, those of four dimensions in a memory format."""
    made = {name: arrays.to_torch(array).to(device) for name, array in random_operands(workload).items()}
    made["w"] = made["w"].reshape(workload.out_channels, -1, *workload.kernel)
    return {name: each.contiguous(memory_format=order) if each.ndim == 4 else each for name, each in made.items()}


def call(workload: ConvWorkload, given: dict[str, Any], **more: Any) -> Any:
    options = {"stride": workload.stride, "padding": workload.padding, "groups": workload.groups}
    options |= {"dilation": workload.dilation, "activation": ACTIVATIONS[workload.epilogue.activation]}
    return tvmconv.conv2d(**{name: each for name, each in given.items() if name != "output"}, **options, **more)


def check(workload: ConvWorkload, given: dict[str, Any], got: Any) -> None:
    """Compare a result with torch's in float64, of the same operands."""
    wide = {name: each.cpu().double() for name, each in given.items()}
    top, left, bottom, right = workload.padding

    def conv2d(wide: dict[str, Any]) -> Any:
        padded = torch.nn.functional.pad(wide["x"], (left, right, top, bottom))
        bias = wide.get("shift")
        y = torch.nn.functional.conv2d(padded, wide["w"], bias, workload.stride, 0, workload.dilation, workload.groups)
        return y + wide.get("residual", 0)

    reference = conv2d(wide)
    if workload.epilogue.activation == "relu":
        reference = reference.relu()
    magnitude = conv2d({name: each.abs() for name, each in wide.items()})
    terms = workload.kernel[0] * workload.kernel[1] * workload.in_channels // workload.groups
    numbers = arrays.to_numpy(got.cpu().contiguous())
    assert numbers.shape == workload.output_shape
    assert str(numbers.dtype) == workload.dtype
    assert_close(numbers, reference.numpy(), magnitude.numpy(), terms)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 16, 9, 10), (24, 16, 3, 3), {}),
    "pointwise": ((2, 16, 9, 10), (24, 16, 1, 1), {}),
    "bias": ((1, 8, 7, 6), (16, 8, 3, 3), {"shift": True, "activation": "relu"}),
    "residual": ((2, 16, 9, 10), (8, 16, 3, 3), {"residual": True}),
    "all": ((2, 16, 9, 10), (32, 8, 3, 3), {"shift": True, "residual": True, "activation": "relu", "groups": 2}),
    "stride": ((1, 16, 11, 8), (8, 16, 5, 3), {"stride": (2, 1), "padding": (2, 1)}),
    "dilated": ((1, 16, 11, 8), (8, 16, 3, 3), {"dilation": 2, "padding": "VALID"}),
    "one-pixel": ((2, 16, 3, 4), (8, 16, 3, 4), {"padding": 0, "shift": True}),
    "one-column": ((2, 16, 5, 1), (8, 16, 3, 1), {"residual": True}),
}
by_case = pytest.mark.parametrize("case", CASES)
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def workload_of(case: str, dtype: str) -> ConvWorkload:
    x_shape, w_shape, options = CASES[case]
    return ConvWorkload.conv2d(x_shape, w_shape, dtype=dtype, **options)


@by_dtype
@by_case
def test_nothing_is_copied(case: str, dtype: str, device: str, passed: list[list[int]]) -> None:
    workload = workload_of(case, dtype)
    given = tensors(workload, device)
    got = call(workload, given)
    assert got.is_contiguous(memory_format=LAST)
    check(workload, given, got)
    addresses = [each.data_ptr() for name, each in given.items() if name != "output"]
    assert passed[0][: len(addresses) + 1] == [*addresses, got.data_ptr()]

    out = given["output"]
    assert call(workload, given, out=out) is out
    assert torch.equal(out, got)
    assert passed[1][: len(addresses) + 1] == [*addresses, out.data_ptr()]


@by_dtype
def test_a_weight_and_a_residual_that_are_contiguous_are_copied(
    dtype: str, device: str, passed: list[list[int]]
) -> None:
    workload = workload_of("all", dtype)
    given = tensors(workload, device)
    expected = call(workload, given)
    for name, operand in (("w", 1), ("residual", 3)):
        mixed = given | {name: given[name].contiguous()}
        for _ in range(2):
            got = call(workload, mixed)
            assert got.is_contiguous(memory_format=LAST)
            assert torch.equal(got, expected)
            same = [own == each.data_ptr() for own, each in zip(passed[-1], mixed.values(), strict=False)]
            assert same[:4] == [other != operand for other in range(4)]


def test_a_weight_of_another_library(device: str) -> None:
    workload = workload_of("plain", "float16")
    given = tensors(workload, device)
    weight = tvm.runtime.from_dlpack(given["w"].contiguous())
    assert torch.equal(call(workload, given | {"w": weight}), call(workload, given))


def test_calls_in_both_orders_are_told_apart(device: str) -> None:
    """Each result has the order of its x, whatever came before, and a view with the negative bit is like its base."""
    workload = workload_of("plain", "float16")
    given, plain = tensors(workload, device), tensors(workload, device, torch.contiguous_format)
    for _ in range(2):
        for operands, order in ((plain, torch.contiguous_format), (given, LAST)):
            got = call(workload, operands)
            assert got.is_contiguous(memory_format=order)
            check(workload, operands, got)
    negative = torch._neg_view(-given["x"])
    assert negative.is_neg()
    assert call(workload, given | {"x": negative}).is_contiguous(memory_format=LAST)
    assert torch.equal(call(workload, given | {"x": negative}), got)


def test_the_stride_over_one_image_may_be_any(device: str, passed: list[list[int]]) -> None:
    workload = workload_of("bias", "float16")
    given = tensors(workload, device)
    one = given | {"x": given["x"][0].unsqueeze(0)}
    assert one["x"].stride()[0] != given["x"].stride()[0]
    assert torch.equal(call(workload, one), call(workload, given))
    assert [each[0] for each in passed] == [given["x"].data_ptr()] * 2


@pytest.mark.parametrize("x_shape", [(1, 8, 1, 1), (2, 1, 6, 7)], ids=["one-pixel", "one-channel"])
def test_what_is_in_both_orders_is_contiguous(x_shape: tuple[int, ...], device: str) -> None:
    workload = ConvWorkload.conv2d(x_shape, (8, x_shape[1], 3, 3), padding=2, dtype="float16")
    given = tensors(workload, device)
    assert given["x"].is_contiguous()
    got = call(workload, given)
    assert got.is_contiguous()
    check(workload, given, got)


NOT_TAKEN: dict[str, tuple[ConvWorkload, dict[str, Any]]] = {
    "no whole stores": (ConvWorkload.conv2d((2, 16, 9, 10), (22, 16, 3, 3), residual=True), {}),
    "depthwise": (ConvWorkload.conv2d((2, 16, 9, 10), (16, 1, 3, 3), groups=16, dtype="float16"), {}),
    "multiplier": (ConvWorkload.conv2d((2, 8, 9, 10), (16, 1, 3, 3), groups=8, dtype="float16"), {}),
    "algorithm": (ConvWorkload.conv2d((2, 16, 9, 10), (24, 16, 3, 3), dtype="float16"), {"algorithm": "direct"}),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_what_no_template_takes_is_copied_and_logged(name: str, device: str, caplog: pytest.LogCaptureFixture) -> None:
    workload, options = NOT_TAKEN[name]
    if device == "cuda" and name == "depthwise":
        pytest.skip("there is a template for it")
    given, plain = (tensors(workload, device, order) for order in (LAST, torch.contiguous_format))
    with caplog.at_level(logging.INFO, "tvmconv"):
        results = [call(workload, given, **options) for _ in range(2)]
    assert [record.message for record in caplog.records if "channels_last" in record.message] == [
        f"{workload}: x is in channels_last, and copied in each call on {'cuda' if device == 'cuda' else 'llvm'}"
    ]
    for got in results:
        assert got.is_contiguous()
        assert torch.equal(got, call(workload, plain, **options))
        check(workload, given, got)
    with pytest.raises(InvalidArgumentError, match="out is 'a tensor with strides .*expected one that is contiguous"):
        call(workload, given, out=given["output"], **options)


def test_integers_of_each_channel_on_a_cpu(passed: list[list[int]]) -> None:
    """They are taken as they lie, and so is their weight, which lies in one order in both layouts."""
    instruction = dot_instruction(resolve_target("llvm"), "uint8")
    if instruction is None or instruction.terms < 4:
        pytest.skip("this CPU has no instruction for four products of integers")
    x = torch.randint(256, (2, 64, 9, 12), dtype=torch.uint8).contiguous(memory_format=LAST)
    w = torch.randint(-128, 128, (64, 1, 3, 3), dtype=torch.int8)
    got = tvmconv.conv2d(x, w, groups=64)
    assert got.is_contiguous(memory_format=LAST)
    assert passed[0][:2] == [x.data_ptr(), w.data_ptr()]
    assert torch.equal(got.double(), torch.nn.functional.conv2d(x.double(), w.double(), padding=1, groups=64))
    assert torch.equal(tvmconv.depthwise(x, w), got)


def test_an_operator_in_nchw_and_a_sparse_one_copy(device: str) -> None:
    workload = ConvWorkload.conv2d((2, 16, 9, 10), (24, 16, 3, 3), residual=True)
    given, plain = (tensors(workload, device, order) for order in (LAST, torch.contiguous_format))
    operator = tvmconv.compile(workload, "cuda" if device == "cuda" else "llvm")
    sparse = tvmconv.sparse_conv2d(np.ones((24, 16, 3, 3)), residual=True)
    for _ in range(2):
        got, expected = (operator(each["x"], each["w"], residual=each["residual"]) for each in (given, plain))
        assert got.is_contiguous()
        assert torch.equal(got, expected)
        assert torch.equal(*(sparse(each["x"], each["residual"]) for each in (given, plain)))
    with pytest.raises(InvalidArgumentError, match="out is 'a tensor with strides .*expected one that is contiguous"):
        operator(given["x"], given["w"], residual=given["residual"], out=given["output"])


def test_what_is_refused(device: str) -> None:
    workload = workload_of("residual", "float16")
    given = tensors(workload, device)
    contiguous = given["output"].contiguous()
    call(workload, given, out=given["output"])
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="out is 'a tensor with .*one that is in channels_last, as x is"):
            call(workload, given, out=contiguous)
    if device == "cpu":
        with pytest.raises(
            InvalidArgumentError, match="out is 'no tensor of torch'; expected a tensor of torch in channels_last"
        ):
            call(workload, given, out=contiguous.numpy())
    with pytest.raises(InvalidArgumentError, match=r"out is \(2, 8, 9, 9\); expected the shape \(2, 8, 9, 10\)"):
        call(workload, given, out=contiguous[..., :9].contiguous(memory_format=LAST))
    in_x = given["x"].as_strided(workload.output_shape, given["output"].stride())
    with pytest.raises(
        InvalidArgumentError, match="out is 'memory of x'; expected an array that shares no memory with an operand"
    ):
        call(workload, given, out=in_x)
    for bad in (contiguous[..., :9], contiguous[..., :9].contiguous(memory_format=LAST)):
        with pytest.raises(InvalidArgumentError, match=r"residual is \(2, 8, 9, 9\); .* the shape \(2, 8, 9, 10\)"):
            call(workload, given | {"residual": bad})
    with pytest.raises(InvalidArgumentError, match="residual is 'float32'; expected the dtype float16"):
        call(workload, given | {"residual": given["residual"].float()})


@by_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_nhwc_on_a_cpu(kind: str, dtype: str, on_cpu: None) -> None:
    """Arrays of every kind are given and returned as they lie in memory, without torch's memory format too."""
    make, result_type, to_numpy = KINDS[kind]
    last = workload_of("all", dtype).in_nhwc()
    operands = random_operands(last)
    given = {name: make(array) for name, array in operands.items()}
    got = call(last, given, layout="NHWC")
    assert isinstance(got, result_type)
    check_result(last, operands, to_numpy(got))
    if kind != "dlpack":
        assert call(last, given, layout="NHWC", out=given["output"]) is given["output"]
        check_result(last, operands, to_numpy(given["output"]))


@by_case
def test_the_layout_nhwc(case: str, device: str) -> None:
    """Tensors are given and returned in the shapes that those in channels_last have in memory."""
    workload = workload_of(case, "float16")
    given = tensors(workload, device)
    in_memory = {name: each.permute(0, 2, 3, 1) if each.ndim == 4 else each for name, each in given.items()}
    got = call(workload, in_memory, layout="NHWC")
    assert got.is_contiguous()
    assert torch.equal(got.permute(0, 3, 1, 2), call(workload, given))
    strided = in_memory["x"].repeat_interleave(2, 3)[..., ::2]
    assert torch.equal(call(workload, in_memory | {"x": strided}, layout="NHWC"), got)


def test_the_layout_nhwc_is_refused_where_no_template_takes_it(device: str) -> None:
    x, w = torch.ones(2, 9, 10, 16, device=device), torch.ones(24, 3, 3, 16, device=device)
    expected = "layout is 'NHWC with KRSC to NHWC'; expected NCHW to NCHW, as the others have no kernel for conv2d"
    with pytest.raises(InvalidArgumentError, match=expected):
        tvmconv.conv2d(x, w[:22], layout="NHWC")
    half = x.half(), w.half()
    with pytest.raises(InvalidArgumentError, match="algorithm is 'direct'; expected auto or "):
        tvmconv.conv2d(*half, layout="NHWC", algorithm="direct")
    with pytest.raises(InvalidArgumentError, match="layout is 'NHWC'; expected 'NCHW' for a convolution of each"):
        tvmconv.conv2d(x.half(), w[:16, ..., :1].half(), groups=16, layout="NHWC")
    with pytest.raises(InvalidArgumentError, match="layout is 'NCHW8c'; expected 'NCHW' or 'NHWC'"):
        tvmconv.conv2d(*half, layout="NCHW8c")
    with pytest.raises(InvalidArgumentError, match=r"w is \(24, 16, 3, 3\); expected \(K, R, S, C / groups\) where x"):
        tvmconv.conv2d(half[0], half[1].permute(0, 3, 1, 2), layout="NHWC")


@pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
@by_dtype
def test_a_call_allocates_its_output_and_its_workspace_alone(dtype: str) -> None:
    workload = ConvWorkload.conv2d((8, 64, 56, 56), (128, 64, 3, 3), residual=True, dtype=dtype)
    given = tensors(workload, "cuda")
    call(workload, given)
    operator = tvmconv.compile(workload.in_nhwc(), "cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = call(workload, given)
    torch.cuda.synchronize()
    needed = got.nbytes + operator.workspace_bytes
    assert needed <= torch.cuda.max_memory_allocated() - before < needed + given["w"].nbytes
    check(workload, given, got)
