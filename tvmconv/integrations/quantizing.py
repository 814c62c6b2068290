"""Quantization of a float32 ONNX model by ONNX Runtime, with samples of its inputs, and the loss of accuracy."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmconv.checking.verify import EXACT_SUMS, decibel
from tvmconv.network.frontends.onnx.importer import read_onnx
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError, UnsupportedModelError

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
Sample = Mapping[str, Array]
"""An input of a call, by name."""

FORMATS = {"qdq": "QDQ", "qoperator": "QOperator"}
"""ONNX Runtime's names for the forms of a quantized model."""

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
CLIPS = ("Relu", "Clip")
SUFFIXES = ("_QuantizeLinear_Output", "_quantized")
"""The ends of the names that ONNX Runtime gives to the integers of a tensor."""

PER_CHANNEL_OPSET = 13
"""The first opset of ONNX with a scale for each channel."""


@dataclass(frozen=True)
class Noise:
    """The noise that quantization adds to a tensor of the model."""

    name: str
    """The name of the layer's node, or of the model's output."""
    operator: str
    """The layer's operator, or "output"."""
    ratio: float
    """The signal to noise ratio in dB, over all samples."""


def quantize(source: Path, output: Path, samples: Sequence[Sample], form: str = "qdq") -> list[Noise]:
    """Quantize an ONNX model and write it; return the noise of each layer and of each output, in graph order.

    Weights get an int8 scale for each output channel, and other tensors one uint8 scale, from the least and the largest
    numbers that the samples make. `form` is "qdq" or "qoperator". Raises `MissingPackageError` where onnxruntime is
    not installed, and `UnsupportedModelError` for a model that it cannot quantize.
    """
    try:
        from onnxruntime import quantization
    except ImportError:
        raise MissingPackageError("onnxruntime", "onnx", "quantizing a model") from None
    if form not in FORMATS:
        raise InvalidArgumentError("form", form, f"one of {', '.join(FORMATS)}")
    if not samples:
        raise InvalidArgumentError("samples", len(samples), "at least one")
    with tempfile.TemporaryDirectory() as folder, _refusing("quantize", source), _quiet():
        prepared = Path(folder, "prepared.onnx")
        _prepare(source, prepared)
        quantization.quantize_static(
            prepared,
            output,
            _Reader(samples),
            quant_format=quantization.QuantFormat[FORMATS[form]],
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return _noise(read_onnx(prepared), read_onnx(output), samples)


def _prepare(source: Path, prepared: Path) -> None:
    """Write the model with batch norms folded, as quantization wants it, and in an opset with scales of channels."""
    import onnx
    from onnxruntime.quantization import quant_pre_process

    model = read_onnx(source)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < PER_CHANNEL_OPSET:
        model = onnx.version_converter.convert_version(model, PER_CHANNEL_OPSET)
    quant_pre_process(model, str(prepared), skip_symbolic_shape=True)


def split(arrays: Mapping[str, Array], model: onnx.ModelProto) -> list[dict[str, Array]]:
    """Return the samples in arrays whose first axis counts images, with the model's batch of images in each.

    A batch that the model leaves open is of one image.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    names = ", ".join(value.name for value in inputs)
    if set(arrays) != {value.name for value in inputs}:
        raise InvalidArgumentError("data", sorted(arrays), f"an array for each input of the model: {names}")
    counts = {}
    for value in inputs:
        sizes = [size.dim_value or None for size in value.type.tensor_type.shape.dim]
        shape, batch = arrays[value.name].shape, (sizes[0] or 1) if sizes else 1
        fits = len(shape) == len(sizes) and all(b in (None, a) for a, b in zip(shape[1:], sizes[1:], strict=True))
        if not fits or not shape or not shape[0] or shape[0] % batch:
            expected = f"(samples, {', '.join(str(size or 'any') for size in sizes[1:])})"
            expected += f", with samples in multiples of {batch}" if batch > 1 else ""
            raise InvalidArgumentError(f"data[{value.name!r}]", shape, expected)
        counts[value.name] = shape[0] // batch
    if len(set(counts.values())) != 1:
        raise InvalidArgumentError("data", counts, "as many samples for each input")
    return [
        {name: np.split(array, counts[name])[index] for name, array in arrays.items()}
        for index in range(next(iter(counts.values())))
    ]


class _Reader:
    """Samples as ONNX Runtime's calibration takes them: one in each call, then None."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._rest = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self._rest, None)


@contextmanager
def _refusing(what: str, source: Path) -> Iterator[None]:
    """Raise `UnsupportedModelError` for an error of ONNX Runtime's, which are of many types."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    known = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)
    try:
        yield
    except (*known, RuntimeError, ValueError, NotImplementedError, LookupError, AttributeError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise UnsupportedModelError(f"ONNX Runtime cannot {what} {source}: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back warnings of ONNX Runtime's quantizer about the time that it takes."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)


@dataclass(frozen=True)
class _Watched:
    """A tensor to compare: its name in the model, and in the quantized one with its scale and zero point."""

    name: str
    operator: str
    tensor: str
    quantized: str
    scale: float | None
    zero_point: int


def _noise(model: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[Sample]) -> list[Noise]:
    """Return the noise of layers whose integers the quantized model has, and of the outputs."""
    watched = [*_layers(model, quantized)]
    watched += [_Watched(value.name, "output", value.name, value.name, None, 0) for value in model.graph.output]
    sessions = [
        _session(each, names)
        for each, names in ((model, [w.tensor for w in watched]), (quantized, [w.quantized for w in watched]))
    ]
    signal, noise = np.zeros(len(watched)), np.zeros(len(watched))
    for sample in samples:
        exact, integers = (
            dict(zip(names, session.run(names, dict(sample)), strict=True)) for session, names in sessions
        )
        for index, each in enumerate(watched):
            wanted, got = exact[each.tensor].astype(np.float64), integers[each.quantized].astype(np.float64)
            if each.scale is not None:
                got = (got - each.zero_point) * each.scale
            signal[index] += np.square(wanted).sum()
            noise[index] += np.square(wanted - got).sum()
    return [
        Noise(each.name, each.operator, decibel(*powers)) for each, *powers in zip(watched, signal, noise, strict=True)
    ]


def _layers(model: onnx.ModelProto, quantized: onnx.ModelProto) -> Iterator[_Watched]:
    """Yield the layers, each with the integers of its output, or of the clip after it."""
    import onnx

    made = {name for node in quantized.graph.node for name in node.output}
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in LAYERS:
            continue
        readers = [each for each in model.graph.node if node.output[0] in each.input]
        clipped = [each.output[0] for each in readers if len(readers) == 1 and each.op_type in CLIPS]
        for tensor in (*clipped, node.output[0]):
            integers = [tensor + suffix for suffix in SUFFIXES if tensor + suffix in made]
            if integers:
                scale, point = (constants[f"{tensor}_{name}"] for name in ("scale", "zero_point"))
                reference = (*clipped, tensor)[0]
                yield _Watched(node.name, node.op_type, reference, integers[0], float(scale), int(point))
                break


def _session(model: onnx.ModelProto, names: Sequence[str]) -> tuple[Any, list[str]]:
    """Return a session for a model with tensors as outputs, and their names, each once."""
    import onnx
    import onnxruntime

    wanted = list(dict.fromkeys(names))
    watching = onnx.ModelProto()
    watching.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    watching.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry(*EXACT_SUMS)
    session = onnxruntime.InferenceSession(watching.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, wanted
