"""Activations: their accuracy, their treatment of NaN and infinities, and their presence in every template."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from tvm import te

import tvmconv
from tests.schedules.cases.tensor import layer
from tests.shared.sparing import every
from tvmconv import ConvWorkload, Epilogue
from tvmconv.compute.functions import Float64, activated, without_approximations
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.activations import resolve_activation
from tvmconv.problem.dtypes import FLOATS, NARROW
from tvmconv.targets import cuda, has_gpu, resolve_target
from tvmconv.testing.conformance import How, check
from tvmconv.testing.trials import EVERY_ACTIVATION, Trial

torch = pytest.importorskip("torch")

UNIT = 2.0**-24
SMALLEST_NORMAL = 2.0**-126
LANES = 16
EXTREME = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-40, 88.5, -88.5, -104.0], np.float32)

every_activation = pytest.mark.parametrize("activation", EVERY_ACTIVATION, ids=str)


def expression(activation: Any, count: int, mcpu: str, to_half: bool) -> Any:
    """Return a vectorized function for the float32 expression of an activation."""
    x = te.placeholder((count,), name="x")
    y = te.compute((count,), lambda i: activated(Epilogue.of(activation), x[i], to_half), name="y")
    sch = tvm.s_tir.Schedule(without_approximations(te.create_prim_func([x, y])))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, LANES])[1])
    return tvm.compile(sch.mod, resolve_target({"kind": "llvm", "mcpu": mcpu}))


def samples() -> np.ndarray:
    """Return numbers of every magnitude, most of them where activations bend."""
    rng = np.random.default_rng(0)
    spread = [rng.uniform(-end, end, 2**18) for end in (1, 6, 12, 110)]
    return np.concatenate([*spread, rng.choice([-1, 1], 2**18) * 10 ** rng.uniform(-38, 38, 2**18)]).astype(np.float32)


@every_activation
def test_expression_is_within_its_bound_and_a_vector(activation: Any) -> None:
    """It is so with and without fused multiply-adds, for results in float32 and for such that become halves."""
    row, values = resolve_activation(activation)
    x = samples()
    expected = row.definition(Float64(), x.astype(np.float64), *values)
    size = np.maximum(np.abs(expected), row.steepest(*values) * np.minimum(np.abs(x), 1))
    allowed = row.roundings * UNIT * size + SMALLEST_NORMAL
    has_avx512 = tvm.get_global_func("target.target_has_feature")("avx512f", resolve_target("llvm"))
    for mcpu, to_half in product(("x86-64", "znver4"), (False, True)):
        executable = expression(activation, x.size, mcpu, to_half)
        calls = set(re.findall(r"call [^@\n]*<.*?@([\w.]+)", code := executable.mod.inspect_source("ll")))
        assert calls <= {f"llvm.fmuladd.v{LANES}f32"}
        assert not re.search(r"@(expf?|erff?|tanhf?)\b", code)
        if mcpu == "znver4" and not has_avx512:
            continue
        got = tvm.runtime.tensor(np.full_like(x, np.nan))
        executable["main"](tvm.runtime.tensor(x), got)
        error = np.abs(got.numpy() - expected)
        assert (error <= allowed).all(), (mcpu, to_half, (error / size / UNIT).max())


@pytest.mark.parametrize("dtype", FLOATS)
def test_gpus_compute_halves_in_hardware(dtype: str) -> None:
    """Functions of two bits less than float32 are for outputs of which most bits are rounded away."""
    workload = ConvWorkload.depthwise((1, 4, 8, 8), (4, 1, 3, 3), dtype=dtype, activation="silu")
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    problem = Problem(workload)
    kernel = build_kernel(problem, select(problem, target), target)
    (source,) = cuda.sources(kernel.executable.mod)
    assert [name in source for name in ("tvmconv::exp2(", "tvmconv::reciprocal(")] == [dtype in NARROW] * 2


@every_activation
def test_formulas_for_halves_keep_nan_and_infinities(activation: Any) -> None:
    row, values = resolve_activation(activation)
    executable, got = expression(activation, EXTREME.size + 4, "x86-64", to_half=True), np.zeros(EXTREME.size + 4, "f4")
    x = np.concatenate([EXTREME, np.float32([-13, -14, -1e4, 1e4])])
    result = tvm.runtime.tensor(got)
    executable["main"](tvm.runtime.tensor(x), result)
    with np.errstate(all="ignore"):
        expected = row.definition(Float64(), x.astype(np.float64), *values).astype(np.float32)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-30)


@every_activation
def test_slope_is_the_steepest(activation: Any) -> None:
    row, values = resolve_activation(activation)
    x = np.linspace(-12, 12, 100_001)
    slopes = np.abs(np.diff(row.definition(Float64(), x, *values)) / np.diff(x))
    assert 0.97 * row.steepest(*values) <= slopes.max() <= row.steepest(*values) + 1e-9


@every_activation
def test_activation_is_torchs(activation: Any) -> None:
    """Values agree in float64; NaN, infinities and signs of zero agree in the kernel too."""
    row, values = resolve_activation(activation)
    function, given = getattr(torch.nn.functional, row.torch), values if row.parameters else ()
    if activation[0] == "clip":
        function, given = torch.clamp, values
    x = np.concatenate([EXTREME, samples()[::64]])
    expected = function(torch.from_numpy(x).double(), *given, **row.options).numpy()
    with np.errstate(all="ignore"):
        reference = row.definition(Float64(), x.astype(np.float64), *values)
        np.testing.assert_allclose(reference, expected, rtol=1e-12, atol=1e-14)
        stored = expected.astype(np.float32)
    image = x[: len(EXTREME)].reshape(1, 1, 3, 4)
    y = tvmconv.depthwise(image, np.ones((1, 1, 1, 1), np.float32), activation=activation).ravel()
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(y), test(stored[: len(EXTREME)]))


DENSE = ConvWorkload.conv2d((1, 2, 3, 5), (5, 2, 2, 2))
DEPTHWISE = ConvWorkload.depthwise((1, 2, 4, 5), (2, 2, 3, 3))
POINTWISE = ConvWorkload.conv2d((1, 3, 4, 5), (3, 3, 1, 1))
TEMPLATES = {
    "cpu-depthwise": ("llvm", "depthwise", DEPTHWISE),
    "cpu-direct": ("llvm", "direct", DENSE),
    "cpu-im2win": ("llvm", "im2win", DENSE),
    "cpu-pointwise": ("llvm", "pointwise", POINTWISE),
    "cpu-sparse": ("llvm", "sparse", POINTWISE),
    "cuda-depthwise": ("cuda", "depthwise", DEPTHWISE),
    "cuda-direct": ("cuda", "direct", DENSE),
    "cuda-im2win": ("cuda", "im2win", DENSE),
    "cuda-sparse": ("cuda", "sparse", POINTWISE),
    "cuda-tensor": ("cuda", "tensor", layer((1, 8, 3, 5), (8, 8, 2, 2)).workload),
}


def trial(name: str, activation: Any) -> Trial:
    """Return a convolution with an epilogue that ends in an activation, in any dtype that the template takes."""
    _, algorithm, plain = TEMPLATES[name]
    dtypes = NARROW if algorithm == "tensor" else FLOATS
    dtype = dtypes[(list(TEMPLATES).index(name) + EVERY_ACTIVATION.index(activation)) % len(dtypes)]
    tail = Epilogue.of(activation, scale=True, shift=True, residual=True)
    workload = msgspec.structs.replace(plain, dtype=dtype, epilogue=tail)
    return Trial(workload, algorithm, None, 1, sparsity=0.7 if algorithm == "sparse" else None)


@pytest.mark.parametrize(("name", "activation"), every(9, product(TEMPLATES, EVERY_ACTIVATION)), ids=str)
def test_template(name: str, activation: Any) -> None:
    """On a CPU, or as the serial twin of a kernel of CUDA."""
    on_cuda = TEMPLATES[name][0] == "cuda"
    target = resolve_target({"kind": "cuda", "arch": "sm_90"} if on_cuda else "llvm")
    check(How(str(target), twin=on_cuda), trial(name, activation))


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_activation_of_a_constant(activation: str) -> None:
    """A weight of zeros that is compiled in leaves a constant, which TVM takes for the activation's variables."""
    workload = ConvWorkload.conv2d((1, 1, 1, 2), (3, 1, 1, 1), dtype="bfloat16", shift=True, activation=activation)
    how = How(str(resolve_target({"kind": "cuda", "arch": "sm_90"})), twin=True)
    check(how, Trial(workload, "sparse", None, 1, sparsity=1.0))


@pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
@pytest.mark.parametrize("activation", EVERY_ACTIVATION, ids=str)
@pytest.mark.parametrize("name", [name for name, (kind, *_) in TEMPLATES.items() if kind == "cuda"])
def test_template_on_a_gpu(name: str, activation: Any) -> None:
    check(How(str(resolve_target("cuda")), twin=False), trial(name, activation))


@pytest.mark.parametrize(("activation", "dtype"), every(5, product(EVERY_ACTIVATION, NARROW)), ids=str)
def test_cubin(activation: Any, dtype: str) -> None:
    """The activation's code in a CUDA kernel compiles, and spills no registers to memory."""
    sm_90 = {"kind": "cuda", "arch": "sm_90"}
    workload = ConvWorkload.depthwise((1, 32, 28, 28), (32, 1, 3, 3), dtype=dtype, activation=activation)
    sparse = tvmconv.sparse_conv2d(np.eye(3)[:, :, None, None], activation=activation, target=sm_90)
    for operator in (tvmconv.compile(workload, sm_90), sparse.operator((1, 3, 4, 5), dtype)):
        (kernel,) = operator.resources()
        assert (kernel.stack_bytes, kernel.spill_store_bytes) == (0, 0)
