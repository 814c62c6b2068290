"""The accuracy of convolutions by type, precision and kind of data, beside float32 multiply-adds and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec

import msgspec
import numpy as np
import tvm
from numpy.lib.stride_tricks import sliding_window_view

from tvmconv.checking.operands import Expected
from tvmconv.dispatch import algorithms_for, select
from tvmconv.lowering import KERNEL_NAME, build_kernel, build_twin
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.precision import DEFAULT, WORDS
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime.arrays import to_numpy, to_torch
from tvmconv.targets import backend_of, computes_with, device_of, resolve_target

from .factors import DATA, fma_sums, rounded
from .peers.peer import Peer
from .peers.pytorch import PyTorch

TYPES = ("float32", "float16", "bfloat16")
"""The types whose results are rounded."""

WORKLOADS = {
    "": ConvWorkload.conv2d((1, 128, 14, 14), (32, 128, 3, 3)),
    ", long sums": ConvWorkload.conv2d((1, 16384, 8, 8), (32, 16384, 1, 1)),
}
"""The workloads, by the suffix of the data's name: sums of 1152 products, and long ones."""

BEYOND_PROMISES = ("with_denormals", "tiny")
"""The data with numbers so small that the precision "strict" alone promises something: errors are told, not judged."""

OF_LONG_SUMS = ("normal", "positive")
"""The data of long sums."""

PYTORCH = {
    "float32": (PyTorch(), PyTorch("pytorch-channels-last", channels_last=True)),
    "tf32": (PyTorch("pytorch-tf32", tf32=True),),
}
"""The peers that are held to a precision's promise."""

TF32_BITS = 10
"""The bits behind the point of a TF32 number."""

Operands = dict[str, np.ndarray]
Way = Callable[[Operands], np.ndarray]
"""A way to compute a workload from its operands."""


class Errors(msgspec.Struct, frozen=True):
    """The errors of elements, in roundings of the type (2^-24 in float32) of the sum of the absolute products."""

    largest: float | None
    """None where an element is not finite."""
    rms: float | None
    """The root mean square over the elements."""


class Row(msgspec.Struct, frozen=True):
    """The errors of all contenders on the same data."""

    name: str
    """The kind of data."""
    dtype: str
    workload: str
    templates: dict[str, str]
    """The templates of tvmconv's contenders."""
    errors: dict[str, Errors]
    broken: dict[str, str]
    """The contenders that break tvmconv's promise for their precision, with the check's message."""
    failed: dict[str, str]
    """The failures of peers."""


class _Contender(msgspec.Struct, frozen=True):
    """A way to compute a workload, and the precision whose promise it is held to."""

    compute: Way
    precision: str
    template: str | None = None


def measure_accuracy(target: tvm.target.Target, twin: bool, started: Callable[[str], None]) -> Iterator[Row]:
    """Measure each type on each kind of data; `started` is told the workload before it begins.

    With `twin` kernels for a GPU run as their serial twins, which do not round as tensor cores do.
    """
    for dtype in TYPES:
        for suffix, plain in WORKLOADS.items():
            workload = msgspec.structs.replace(plain, dtype=dtype)
            if not computes_with(target, workload.storage):
                continue
            started(str(workload))
            contenders = _contenders(workload, target, twin)
            for name in OF_LONG_SUMS if suffix else DATA:
                yield _row(name, suffix, workload, contenders)


def _row(name: str, suffix: str, workload: ConvWorkload, contenders: Mapping[str, _Contender]) -> Row:
    x_shape, w_shape = workload.x_shape, workload.w_shape
    x, w = DATA[name](np.random.default_rng(0), x_shape, w_shape, workload.dtype)
    dtype = workload.storage.numpy
    operands = {"x": x.astype(dtype), "w": w.astype(dtype), "output": np.full(workload.output_shape, np.nan, dtype)}
    expected = {
        each.precision: Expected(Problem(workload, precision=each.precision), operands) for each in contenders.values()
    }
    errors, broken, failed = {}, {}, {}
    for contender, each in contenders.items():
        try:
            got = each.compute(operands)
            errors[contender] = _summary(expected[each.precision].errors(got) / workload.storage.unit)
            if each.precision == "strict" or name not in BEYOND_PROMISES:
                expected[each.precision].check(got)
        except AssertionError as error:
            broken[contender] = str(error)
        except RuntimeError as error:
            if each.template is not None:
                raise
            failed[contender] = str(error).strip().partition("\n")[0]
    templates = {contender: each.template for contender, each in contenders.items() if each.template is not None}
    return Row(f"{name.replace('_', ' ')}{suffix}", workload.dtype, str(workload), templates, errors, broken, failed)


def _summary(errors: np.ndarray) -> Errors:
    if not np.isfinite(errors).all():
        return Errors(None, None)
    return Errors(float(errors.max()), float(np.sqrt(np.mean(errors**2))))


def _contenders(workload: ConvWorkload, target: tvm.target.Target, twin: bool) -> dict[str, _Contender]:
    """Return the yardsticks, tvmconv in each precision that makes a difference, and PyTorch."""
    words = (DEFAULT,) if workload.dtype in NARROW else WORDS
    found = {"fma": _Contender(partial(_fma, workload), DEFAULT)}
    if "tf32" in words:
        found["fma-tf32"] = _Contender(partial(_fma, workload, bits=TF32_BITS), "tf32")
    for word in words:
        name = "tvmconv" if word == DEFAULT else f"tvmconv-{word}"
        found[name] = _ours(Problem(workload, precision=word), target, twin)
    if not twin and find_spec("torch") is not None:
        for word in words:
            for peer in PYTORCH.get(word, ()):
                if peer.obstacle(workload, target) is None:
                    found[peer.name] = _Contender(partial(_pytorch, peer, workload, target), word)
    return found


def _fma(workload: ConvWorkload, operands: Operands, bits: int | None = None) -> np.ndarray:
    """Compute a workload of one image and one group, with a stride and a dilation of 1, by float32 multiply-adds.

    It rounds factors to `bits` bits behind the point, adds up products term after term, each in one rounding, and
    rounds to the type at the end.
    """
    x, w = (operands[name] if bits is None else rounded(operands[name], bits) for name in ("x", "w"))
    top, left, bottom, right = workload.padding
    padded = np.pad(x[0], ((0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, workload.kernel, (1, 2)).transpose(1, 2, 0, 3, 4)
    sums = fma_sums(windows.reshape(-1, w[0].size), w.reshape(workload.out_channels, -1))
    output: np.ndarray = sums.T.reshape(workload.output_shape).astype(x.dtype)
    return output


def _ours(problem: Problem, target: tvm.target.Target, twin: bool) -> _Contender:
    """Return tvmconv by an algorithm that is not for "strict", where there is one: the others multiply and add."""
    exact = msgspec.structs.replace(problem.workload, dtype="float32")
    strict = algorithms_for(Problem(exact, precision="strict"), target)
    algorithm = next((each for each in algorithms_for(problem, target) if each not in strict), "auto")
    selection = select(problem, target, algorithm=algorithm)
    kernel = (build_twin if twin else build_kernel)(problem, selection, target)
    device = device_of(resolve_target(TWIN_TARGET) if twin else target)

    def compute(operands: Operands) -> np.ndarray:
        tensors = [tvm.runtime.tensor(array, device) for array in operands.values()]
        memory = [tvm.runtime.empty(*parameter, device) for parameter in kernel.workspace.parameters]
        kernel.executable[KERNEL_NAME](*tensors, *memory)
        return np.asarray(tensors[-1].numpy())

    return _Contender(compute, problem.precision, selection.name)


def _pytorch(peer: Peer, workload: ConvWorkload, target: tvm.target.Target, operands: Operands) -> np.ndarray:
    device = backend_of(target).device_type
    tensors = {name: to_torch(operands[name]).to(device) for name in ("x", "w")}
    (call,) = peer.prepare(workload, target, [tensors])
    return np.asarray(to_numpy(call().contiguous().cpu()))
