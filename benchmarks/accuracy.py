"""The accuracy of convolutions by type, precision and kind of data, beside float32 multiply-adds and PyTorch.

    python benchmarks/accuracy.py -o accuracy.json
    python benchmarks/accuracy.py --target cuda -o accuracy-h200.json
    python benchmarks/accuracy.py --target nvidia/nvidia-h100 --serial-twin    # CUDA kernels as serial code of a CPU

Errors are those beside a float64 reference, in roundings of the type (2^-24, 2^-11 of float16, 2^-8 of bfloat16) of the
sum of an output's own absolute products: "fma" is a sum of float32 multiply-adds, "fma-tf32" one of factors rounded to
TF32. tvmconv takes an algorithm that is not for "strict", such as that for tensor cores, where there is one; a serial
twin multiplies and adds whole float32 numbers. "broken" has the contenders that break tvmconv's promise for their
precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import numpy as np
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from script import Row, main

from tvmconv.bench.peers.peer import Peer
from tvmconv.bench.peers.pytorch import PyTorch
from tvmconv.checking.operands import Expected
from tvmconv.dispatch import algorithms_for, select
from tvmconv.lowering import KERNEL_NAME, build_kernel, build_twin
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT, WORDS
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime.arrays import to_numpy, to_torch
from tvmconv.targets import backend_of, computes_with, device_of, resolve_target
from tvmconv.testing.factors import DATA, fma_sums, rounded

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


class Contender(msgspec.Struct, frozen=True):
    """A way to compute a workload from its operands, and the precision whose promise it is held to."""

    compute: Callable[[Operands], np.ndarray]
    precision: str
    template: str | None = None


def contenders(workload: ConvWorkload, target: tvm.target.Target, twin: bool) -> dict[str, Contender]:
    """Return the yardsticks, tvmconv in each precision that makes a difference, and PyTorch."""
    precisions = (DEFAULT,) if workload.dtype in NARROW else WORDS
    found = {"fma": Contender(partial(fma, workload), DEFAULT)}
    if "tf32" in precisions:
        found["fma-tf32"] = Contender(partial(fma, workload, bits=TF32_BITS), "tf32")
    for word in precisions:
        problem = Problem(workload, precision=word)
        found["tvmconv" if word == DEFAULT else f"tvmconv-{word}"] = ours(problem, target, twin)
    for word in () if twin else precisions:
        for peer in PYTORCH.get(word, ()):
            if peer.obstacle(workload, target) is None:
                found[peer.name] = Contender(partial(pytorch, peer, workload, target), word)
    return found


def fma(workload: ConvWorkload, operands: Operands, bits: int | None = None) -> np.ndarray:
    """Compute a workload of one image and one group, with a stride and a dilation of 1, by float32 multiply-adds.

    It rounds factors to `bits` bits behind the point, adds up products term after term, each in one rounding, and
    rounds to the type at the end.
    """
    x, w = (operands[name] if bits is None else rounded(operands[name], bits) for name in ("x", "w"))
    top, left, bottom, right = workload.padding
    padded = np.pad(x[0], ((0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, workload.kernel, (1, 2)).transpose(1, 2, 0, 3, 4)
    sums = fma_sums(windows.reshape(-1, w[0].size), w.reshape(workload.out_channels, -1))
    return np.asarray(sums.T.reshape(workload.output_shape).astype(x.dtype))


def ours(problem: Problem, target: tvm.target.Target, twin: bool) -> Contender:
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

    return Contender(compute, problem.precision, selection.name)


def pytorch(peer: Peer, workload: ConvWorkload, target: tvm.target.Target, operands: Operands) -> np.ndarray:
    tensors = {name: to_torch(operands[name]).to(backend_of(target).device_type) for name in ("x", "w")}
    (call,) = peer.prepare(workload, target, [tensors])
    return np.asarray(to_numpy(call().contiguous().cpu()))


def row_of(name: str, suffix: str, workload: ConvWorkload, contenders: Mapping[str, Contender]) -> Row:
    """Return the errors of all contenders on data of one kind."""
    x, w = DATA[name](np.random.default_rng(0), workload.x_shape, workload.w_shape, workload.dtype)
    dtype = workload.storage.numpy
    operands = {"x": x.astype(dtype), "w": w.astype(dtype), "output": np.full(workload.output_shape, np.nan, dtype)}
    precisions = {each.precision for each in contenders.values()}
    expected = {word: Expected(Problem(workload, precision=word), operands) for word in precisions}
    errors, broken, failed = {}, {}, {}
    for contender, each in contenders.items():
        try:
            got = each.compute(operands)
            errors[contender] = summary(expected[each.precision].errors(got) / workload.storage.unit)
            if each.precision == "strict" or name not in BEYOND_PROMISES:
                expected[each.precision].check(got)
        except AssertionError as error:
            broken[contender] = str(error)
        except RuntimeError as error:
            if each.template is not None:
                raise
            failed[contender] = str(error).strip().partition("\n")[0]
    found = {"templates": {key: each.template for key, each in contenders.items() if each.template is not None}}
    about = {"name": f"{name.replace('_', ' ')}{suffix}", "dtype": workload.dtype, "workload": str(workload)}
    return {**about, **found, "errors": errors, "broken": broken, "failed": failed}


def summary(errors: np.ndarray) -> dict[str, float | None]:
    """Return the largest error and the root mean square over the outputs; None where one is not finite."""
    if not np.isfinite(errors).all():
        return {"largest": None, "rms": None}
    return {"largest": float(errors.max()), "rms": float(np.sqrt(np.mean(errors**2)))}


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each type, workload and kind of data."""
    target = resolve_target(given.target)
    if given.serial_twin and not backend_of(target).on_gpu:
        raise InvalidArgumentError("target", given.target, "a CUDA target, with --serial-twin")
    for dtype in TYPES:
        for suffix, plain in WORKLOADS.items():
            workload = msgspec.structs.replace(plain, dtype=dtype)
            if computes_with(target, workload.storage):
                found = contenders(workload, target, given.serial_twin)
                yield from (row_of(name, suffix, workload, found) for name in (OF_LONG_SUMS if suffix else DATA))


if __name__ == "__main__":
    main(__doc__, rows, target="llvm", serial_twin=False)
