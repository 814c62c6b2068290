"""Kernels between convolutions on a GPU: numbers and races by the emulator, and what a compiler makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

import tvmconv
from tests.emulated.memory import HazardError
from tests.emulated.network import SM_90, lowered, run
from tests.shared.between_cases import CASES, torch
from tests.shared.network_graph import relax_module
from tests.shared.sparing import every, in_turns, sparing
from tests.shared.torch_modules import exact
from tvmconv import lowering
from tvmconv.lowering.open_sizes.divisions import with_multiplications
from tvmconv.lowering.serial import TWIN_TARGET, serial_twin
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import H100

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error, as a share of the largest number, or of 1 if that is larger."""

OPEN = ("average-pool", "max-pool", "plane-mean", "group-norm", "softmax-of-channels", "softmax")


def check(actual: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    assert actual.shape == expected.shape
    bound = TOLERANCE[dtype] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual.astype("float64"), expected, rtol=0, atol=bound)


DTYPES = ("float32", "float16")


ALIKE = (
    *("max-pool", "plane-mean", "layer-norm-wide", "instance-norm", "log-softmax", "bilinear", "slice"),
    *("channel-shuffle", "to-channels-first"),
)
"""Operators that reach nothing here that another does not."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    sparing(product(CASES, DTYPES), lambda index: in_turns(index) and [*CASES][index // 2] not in ALIKE),
    ids=str,
)
def test_operators_of_torch(name: str, dtype: str) -> None:
    """Each is one kernel, or as few as it says, without spills, and casts to float32 have none of their own."""
    case = CASES[name]
    inputs = [x.to(getattr(torch, dtype)) for x in case.inputs()]
    module = case.module.to(getattr(torch, dtype))
    expected = exact(module, *inputs)
    model = tvmconv.import_model(module.to(getattr(torch, dtype)), tuple(inputs))
    mod = lowered(model.mod)
    found = run(mod, [x.numpy() for x in inputs])
    check(found.outputs[0], expected, dtype)
    assert not found.left
    assert len(found.kernels) == case.kernels
    for source in cuda.sources(lowering.build(mod, SM_90).mod):
        assert "int64_t" not in source[source.index("__global__") :]
        for kernel in cuda.kernel_resources(source, "sm_90"):
            assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)


def test_parts_of_a_concatenation_are_read_in_vectors() -> None:
    case = CASES["depth-to-space"]
    model = tvmconv.import_model(case.module, tuple(x.half() for x in case.inputs()))
    (source,) = cuda.sources(lowering.build(lowered(model.mod), SM_90).mod)
    moves = [line.split("=") for line in source.splitlines() if "*(uint4*)" in line and "=" in line]
    assert len(moves) == 3  # of both parts, and of the result
    assert all("uint4" in left and "uint4" in right for left, right in moves)


ROWS = ("softmax", "log-softmax", "softmax-of-channels", "plane-mean-last", "excitation")


@pytest.mark.parametrize(("name", "dtype"), sparing(product(ROWS, DTYPES), in_turns), ids=str)
def test_rows_are_read_once(name: str, dtype: str) -> None:
    case = CASES[name]
    inputs = tuple(x.to(getattr(torch, dtype)) for x in case.inputs())
    mod = lowered(tvmconv.import_model(case.module, inputs).mod)
    (launch,) = run(mod, [x.numpy() for x in inputs]).launches
    assert launch.bytes_read <= 1.25 * inputs[0].nbytes  # of rows past the end the last one


class Sample(NamedTuple):
    """A network of one operator, its inputs' shapes, and what it computes, in float64."""

    make: Callable[..., Any]
    reference: Callable[..., np.ndarray]
    shapes: Sequence[tuple[int, ...]]


SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 32, 33, 49, 64, 65, 96, 128)


def sample(random: Random) -> Sample:
    """Return an operator on arrays of random shapes, of one to a few thousand elements."""
    shape = [random.choice(SIZES) for _ in range(random.randint(2, 5))]
    while prod(shape) > 20000:
        shape[shape.index(max(shape))] //= 2
    axes = sorted(random.sample(range(len(shape)), random.randint(1, len(shape))))
    axis, order = random.randrange(len(shape)), random.sample(range(len(shape)), len(shape))
    other = [size if index != axis else random.choice(SIZES) for index, size in enumerate(shape)]
    row = [size if random.random() < 0.5 else 1 for size in shape]
    few = tuple(axes)

    def softmax(x: np.ndarray) -> np.ndarray:
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    samples = [
        Sample(lambda x: op.mean(x, axes, keepdims=True), lambda x: x.mean(few, keepdims=True), [shape]),
        Sample(lambda x: op.max(x, axes), lambda x: x.max(few), [shape]),
        Sample(
            lambda x: op.multiply(x, op.mean(x, axes, keepdims=True)), lambda x: x * x.mean(few, keepdims=True), [shape]
        ),
        Sample(lambda x: op.nn.softmax(x, axis), softmax, [shape]),
        Sample(lambda x, y: op.nn.relu(op.multiply(x, y)), lambda x, y: np.maximum(x * y, 0), [shape, row]),
        Sample(lambda x: op.nn.relu(op.permute_dims(x, order)), lambda x: np.maximum(x.transpose(order), 0), [shape]),
        Sample(lambda x, y: op.concat([x, y], axis), lambda x, y: np.concatenate([x, y], axis), [shape, other]),
    ]
    chosen = random.choice(samples)
    return chosen._replace(shapes=[tuple(each) for each in chosen.shapes])


def module_of(case: Sample, dtype: str) -> tvm.IRModule:
    params = [relax.Var(f"x{i}", relax.TensorType(list(shape), dtype)) for i, shape in enumerate(case.shapes)]
    return relax_module(case.make, *params)


@pytest.mark.parametrize("seed", sparing(range(60), lambda seed: seed % 2 == 1))
def test_random_shapes(seed: int) -> None:
    random = Random(seed)
    case, dtype = sample(random), random.choice(["float32", "float16"])
    inputs = [np.random.default_rng(seed).standard_normal(shape).astype(dtype) for shape in case.shapes]
    found = run(lowered(module_of(case, dtype)), inputs)
    check(found.outputs[0], case.reference(*(x.astype("float64") for x in inputs)), dtype)
    assert not found.left


@pytest.mark.parametrize(
    ("name", "axes"),
    sparing(product(OPEN, [(0,), (2, 3), (0, 2, 3)]), lambda index: index in (0, 4, 8, 10, 14, 15)),
    ids=str,
)
def test_open_sizes(name: str, axes: tuple[int, ...]) -> None:
    """One build is for every size; its kernels compile."""
    case = CASES[name]
    module, (first,) = case.module, case.shapes
    sizes = {axis: torch.export.Dim(f"size_{axis}", min=2 if axis == 0 else 6, max=200) for axis in axes}
    program = torch.export.export(module, tuple(case.inputs()), dynamic_shapes=(sizes,))
    model = tvmconv.import_model(program)
    mod = lowered(model.mod)
    for step in (0, 1, 7):
        shape = [size + step if axis in axes else size for axis, size in enumerate(first)]
        x = np.random.default_rng(step).standard_normal(shape).astype("float32")
        found = run(mod, [x])
        check(found.outputs[0], exact(module, torch.from_numpy(x)), "float32")
        assert not found.left
        assert len(found.kernels) == case.kernels
    for source in cuda.sources(lowering.build(mod, SM_90).mod):
        assert cuda.kernel_resources(source, "sm_90")


def by_twin(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    """Return what the serial twin of a network's one kernel makes of x, in its shape."""
    (kernel,) = (func for func in lowered(mod).functions.values() if isinstance(func, tirx.PrimFunc))
    twin = serial_twin(with_multiplications(kernel)).with_attr("global_symbol", "main")
    tensors = [tvm.runtime.tensor(each) for each in (x, np.zeros_like(x))]
    lowering.build(tvm.IRModule({"main": twin}), resolve_target(TWIN_TARGET))["main"](*tensors)
    result: np.ndarray = tensors[-1].numpy()
    return result


def test_divisions_by_open_sizes() -> None:
    """The numbers that the CPU works out for a launch are those of sizes of int64, which networks have."""
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 11)).astype("float32")
    height, width = tirx.Var("height", "int64"), tirx.Var("width", "int64")
    case = Sample(lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1)), lambda x: x, [(2, 3, height, width)])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).sum((-1, -2))
    counts = np.lib.stride_tricks.sliding_window_view(np.pad(np.ones((7, 11)), 1), (3, 3)).sum((-1, -2))
    np.testing.assert_allclose(by_twin(module_of(case, "float32"), x), sums / counts, rtol=1e-5, atol=1e-6)


def test_negative_dividends() -> None:
    """Rests by open sizes of what may be negative are rounded down, as of a roll."""
    x = np.random.default_rng(1).standard_normal((5, 6)).astype("float32")
    width = tirx.Var("width", "int64")
    builder = relax.BlockBuilder()
    parameter = relax.Var("x", relax.TensorType([5, width], "float32"))
    with builder.function("main", [parameter]):
        with builder.dataflow():
            rolled = builder.emit_te(
                lambda x: te.compute(x.shape, lambda i, j: x[i, (j - 8) % x.shape[1]] * (-3 // x.shape[1])), parameter
            )
            output = builder.emit_output(rolled)
        builder.emit_func_output(output)
    np.testing.assert_array_equal(by_twin(builder.get(), x), -np.roll(x, 8, axis=1))


WINDOWS = product((7, 8, 13), ((3, 1), (3, 2), (2, 1), (5, 1), (2, 2)), (0, 1), (0, 10**6))
"""The widths of rows, the sizes of windows with their steps, paddings, and numbers of multiprocessors: windows are
shared where these are few."""


@pytest.mark.parametrize(
    ("width", "window", "padding", "multiprocessors"),
    sparing(WINDOWS, lambda number: (number + number // 2 + number // 4) % 2 == 0),  # each width and window twice
    ids=str,
)
def test_windows(
    width: int, window: tuple[int, int], padding: int, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring windows of a thread share what they have of a row, also where rows are no whole vectors."""
    size, step = window
    gpu = replace(H100, multiprocessors=multiprocessors)
    monkeypatch.setattr("tvmconv.network.between.gpu.spreading.gpu_of", lambda target: gpu)
    x = np.random.default_rng(1).standard_normal((1, 3, 9, width)).astype("float32")
    sides = [padding] * 2

    def pool(x: Any) -> Any:
        return op.nn.max_pool2d(x, (size, size), (step, step), sides)

    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::step, ::step]
    found = run(lowered(module_of(Sample(pool, pool, [x.shape]), "float32")), [x])
    np.testing.assert_array_equal(found.outputs[0], windows.max((-1, -2)))
    assert not found.left


IN_NHWC = product(
    ("max", "avg"),
    ((3, 1, 1), (3, 2, 1), (3, 2, 0), (5, 1, 2), (2, 1, 0)),
    (("float16", 128), ("float16", 24), ("bfloat16", 16), ("float32", 20), ("float32", 5)),
)
"""Kinds of pooling, the sizes of windows with their steps and paddings, and types with numbers of channels."""


@pytest.mark.parametrize(("kind", "window", "pixel"), every(2, IN_NHWC), ids=str)  # each window with each type once
def test_windows_of_channels_in_a_row(
    kind: str, window: tuple[int, int, int], pixel: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring windows of a thread, along both axes of a plane, share what they have of vectors of channels."""
    (size, step, padding), (dtype, channels) = window, pixel
    monkeypatch.setattr("tvmconv.network.between.gpu.spreading.gpu_of", lambda target: replace(H100, multiprocessors=0))
    x = np.random.default_rng(1).standard_normal((2, 9, 7, channels)).astype(STORAGE_TYPES[dtype].numpy)
    sides = [padding] * 2

    def pool(x: Any) -> Any:
        counts = {"count_include_pad": True} if kind == "avg" else {}
        pooling = op.nn.max_pool2d if kind == "max" else op.nn.avg_pool2d
        return op.nn.relu(pooling(x, (size, size), (step, step), sides, layout="NHWC", **counts))

    around = -np.inf if kind == "max" else 0
    padded = np.pad(x.astype("float64"), ((0, 0), sides, sides, (0, 0)), constant_values=around)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::step, ::step]
    found = run(lowered(module_of(Sample(pool, pool, [x.shape]), dtype)), [x])
    if kind == "max":
        np.testing.assert_array_equal(found.outputs[0].astype("float64"), np.maximum(windows.max((-1, -2)), 0))
    else:
        check(found.outputs[0], np.maximum(windows.mean((-1, -2)), 0), dtype)
    assert not found.left
    read = found.launches[0].bytes_read / (windows.size * x.itemsize)
    if channels != 5 and (size, step) == (3, 1):  # others are no vectors, or share less
        assert read <= 0.45


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_averages_take_no_branches(dtype: str) -> None:
    """Padding is in registers, instead of loads, and counts are no divisors."""

    def pool(x: Any) -> Any:
        return op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC", count_include_pad=True)

    mod = lowered(module_of(Sample(pool, pool, [(32, 35, 35, 192)]), dtype))
    (source,) = cuda.sources(lowering.build(mod, SM_90).mod)
    kernel = source[source.rindex("__global__") :]
    assert "condval" not in kernel
    assert not re.search(r"result\w*\[\d+\] / ", kernel)
    assert "else" not in kernel


def test_max_pooling_of_casts_loads_padding_in_vectors() -> None:
    """It is in half precision, which has the number around a plane, whatever type a model has it in."""

    def pool(x: Any) -> Any:
        pooled = op.nn.max_pool2d(op.astype(x, "float32"), (3, 3), (2, 2), (1, 1), layout="NHWC")
        return op.astype(pooled, "bfloat16")

    x = np.random.default_rng(1).standard_normal((2, 9, 8, 16)).astype(STORAGE_TYPES["bfloat16"].numpy)
    mod = lowered(module_of(Sample(pool, pool, [x.shape]), "bfloat16"))
    padded = np.pad(x.astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    found = run(mod, [x])
    np.testing.assert_array_equal(found.outputs[0].astype("float64"), windows.max((-1, -2)))
    assert len(found.kernels) == 1
    (source,) = cuda.sources(lowering.build(mod, SM_90).mod)
    assert "condval" not in source


def test_neighbouring_threads_store_all_channels_of_a_pixel() -> None:
    """Those of 24 channels are three vectors of eight."""

    def pool(x: Any) -> Any:
        return op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC")

    mod = lowered(module_of(Sample(pool, pool, [(32, 112, 112, 24)]), "float16"))
    (source,) = cuda.sources(lowering.build(mod, SM_90).mod)
    offset = re.search(r"\*\(uint4\*\)\(\w+_ptr \+ (.*)\)\) = ", source[source.rindex("__global__") :])[1] + ")"
    formula = re.sub(r"\(\(int\)(\w+)\.x\)", r"\1", offset).replace("/", "//")
    found = [eval(formula, {"blockIdx": 0, "threadIdx": thread}) for thread in range(48)]
    assert all(found[thread] == found[thread - thread % 3] + thread % 3 * 8 for thread in range(48))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_quotients_that_are_rounded_are_exact(dtype: str) -> None:
    """41 times the reciprocal of 41 is less than 1."""

    def floors(x: relax.Expr) -> relax.Expr:
        return op.astype(op.floor(op.divide(op.astype(x, "float32"), relax.const(41.0))), dtype)

    x = (41 * np.arange(1, 65)).astype(STORAGE_TYPES[dtype].numpy).reshape(1, 64)
    found = run(lowered(module_of(Sample(floors, floors, [x.shape]), dtype)), [x])
    expected = np.floor(x.astype("float32") / np.float32(41)).astype(x.dtype)
    np.testing.assert_array_equal(found.outputs[0].astype("float32"), expected.astype("float32"))


def test_threads_are_as_many_as_a_device_keeps_busy() -> None:
    case = Sample(lambda x: op.mean(x, [2]), lambda x: x.mean(2), [(64, 128, 64)])
    blocks = []
    for arch in ("sm_75", "sm_90"):
        mod = lowered(module_of(case, "float32"), resolve_target({"kind": "cuda", "arch": arch}))
        (kernel,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
        blocks.append(int(kernel.body.block.body.extent))
    assert blocks == [256, 1024]  # of 128 threads: 4 for each mean, and 16


@pytest.mark.parametrize("shape", [(1, 100_000), (2, 70_001), (100_000, 1), (70_001, 2)])
def test_long_rows(shape: tuple[int, int]) -> None:
    """Rows that no thread can keep are read again."""
    case = Sample(lambda x: op.nn.softmax(x, 1), lambda x: x, [shape])
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    powers = np.exp(x.astype("float64"))
    found = run(lowered(module_of(case, "float32")), [x])
    np.testing.assert_allclose(found.outputs[0], powers / powers.sum(1, keepdims=True), rtol=1e-4)
    assert not found.left


def test_a_missing_barrier_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator checks how threads pass on values through shared memory, not only the numbers."""
    nothing = tirx.Evaluate(tirx.const(0))
    monkeypatch.setattr("tvmconv.network.between.gpu.loops.barrier", lambda: nothing)
    monkeypatch.setattr("tvm.s_tir.transform.ThreadSync", lambda scope: tvm.transform.Sequential([]))  # adds its own
    case = Sample(lambda x: op.mean(x, [0]), lambda x: x.mean(0), [(200, 64)])
    mod = lowered(module_of(case, "float32"))
    with pytest.raises(HazardError):
        run(mod, [np.ones((200, 64), "float32")])
