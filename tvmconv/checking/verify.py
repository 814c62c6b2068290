"""Comparison of a network with another runtime on the same model and the same input."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf, log10
from os import PathLike, fspath
from typing import Any

import numpy as np

from tvmconv.problem.dtypes import NARROW, QUANTIZED, STORAGE_TYPES, is_floating
from tvmconv.problem.errors import MissingPackageError, UnsupportedModelError

Array = np.ndarray[Any, Any]

TOLERANCES = {"float64": 1e-9} | {row.name: row.network for row in STORAGE_TYPES.values()}
"""The error allowed for each dtype, as a share of the largest value of the reference.

A network sums in another order than its reference. Integers and booleans have to be equal.
"""


FACTORS = {name: STORAGE_TYPES[name].network for name in NARROW} | {"tf32": STORAGE_TYPES["float16"].network}
"""The errors allowed to floating-point outputs of networks that multiply smaller types of factors than float32.

A TF32 number has the bits of precision of a float16 number.
"""

STEPS = 2
"""The steps of 8 bits that outputs of a network that computes in integers may be wrong by.

Runtimes round sums of integers between layers in float32, and those near the middle between two integers differ.
"""

QUANTIZED_SHARE = STEPS / 64
"""`STEPS` as a share of the largest output in floating point, whose range may go both ways, half of it unused."""

EXACT_SUMS = "session.x64quantprecision", "1"
"""The option of a session of ONNX Runtime for exact sums of integers.

Without it sums of two products saturate at 16 bits on CPUs of x86_64 that have AVX2 and no VNNI.
"""


@dataclass(frozen=True)
class Comparison:
    """The largest error of one output, and the largest that is allowed."""

    output: str
    error: float
    bound: float
    ratio: float
    """The ratio of signal to noise in dB, over elements that are finite in both."""

    @property
    def agrees(self) -> bool:
        return self.error <= self.bound


def compare(
    outputs: Mapping[str, Array], reference: Mapping[str, Array], multiplied: Collection[str] = ()
) -> list[Comparison]:
    """Compare each output with the reference of the same name. Infinity and NaN agree with themselves alone.

    `multiplied` are the types of the factors of the network's convolutions and linear layers: factors of half
    precision, TF32 numbers and integers of one byte allow larger errors.
    """
    return [_compare(name, outputs[name], expected, multiplied) for name, expected in reference.items()]


def decibel(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB."""
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 else -inf


def run_onnxruntime(model: str | PathLike[str], inputs: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    """Compute the named outputs of an ONNX model on the CPU, by ONNX Runtime, with exact sums of integers."""
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError:
        raise MissingPackageError("onnxruntime", "onnx", "comparing with ONNX Runtime") from None
    try:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(*EXACT_SUMS)
        session = onnxruntime.InferenceSession(fspath(model), options, providers=["CPUExecutionProvider"])
        results = session.run(names, dict(inputs))
    except (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented) as error:
        raise UnsupportedModelError(f"ONNX Runtime cannot run {fspath(model)}: {error}") from None
    return dict(zip(names, results, strict=True))


def _compare(name: str, output: Array, expected: Array, multiplied: Collection[str]) -> Comparison:
    dtype = str(expected.dtype)
    bound, steps = TOLERANCES.get(dtype, 0.0), 0
    if is_floating(dtype):
        bound = max([bound, *(FACTORS.get(each, 0.0) for each in multiplied)])
    if not set(QUANTIZED).isdisjoint(multiplied):
        bound = max(bound, QUANTIZED_SHARE if is_floating(dtype) else 0.0)
        steps = STEPS if dtype in QUANTIZED else 0
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return Comparison(name, inf, bound, -inf)
    got, wanted = output.astype(np.float64), expected.astype(np.float64)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        errors = np.where(same, 0.0, np.abs(got - wanted))
    finite = np.isfinite(wanted)
    largest = float(np.abs(wanted[finite]).max(initial=0.0))
    both = finite & np.isfinite(got)
    ratio = decibel(float(np.square(wanted[both]).sum()), float(np.square(errors[both]).sum()))
    return Comparison(name, float(errors.max(initial=0.0)), bound * largest + steps, ratio)
