"""Inputs of a network: they are read from a file by name, and the rest is filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from tvmconv.problem.dtypes import is_floating
from tvmconv.problem.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tvmconv.checking.verify import Array
    from tvmconv.network import TensorSpec


def read_arrays(path: Path, argument: str) -> dict[str, Array]:
    """Read the arrays of an .npz file that was given as an argument."""
    try:
        archive = np.load(path)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with archive:
            return dict(archive)
    except (ValueError, EOFError, BadZipFile):  # NumPy's message advises to unpickle
        raise InvalidArgumentError(argument, str(path), "an .npz file of arrays, as numpy.savez writes it") from None


def read_inputs(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Read the arrays of an .npz file, each of which has to be an input."""
    arrays = read_arrays(path, "inputs")
    dtypes = {spec.name: spec.dtype for spec in specs}
    for name, array in arrays.items():
        if name not in dtypes:
            raise InvalidArgumentError("inputs", name, f"names among {', '.join(map(str, specs))}")
        if dtypes[name] == "bfloat16" and array.dtype == "V2":  # as which NumPy writes it
            arrays[name] = array.view("bfloat16")
    return arrays


def with_sizes(
    specs: Sequence[TensorSpec], known: Mapping[str, Sequence[int]], shapes: Mapping[str, Sequence[int | str]]
) -> list[TensorSpec]:
    """Return the inputs with numbers for their open sizes: those of known arrays, those given, and else a batch of 1.

    Raises `InvalidArgumentError` for shapes that no input has.
    """
    sizes: dict[str, int] = {}
    shapes_of_inputs = {spec.name: spec.shape for spec in specs}
    for name, shape in shapes.items():
        pairs = list(zip_longest(shapes_of_inputs.get(name, ()), shape))
        if not pairs or not all(size == given or str in (type(size), type(given)) for size, given in pairs):
            raise InvalidArgumentError("input-shapes", f"{name}:{shape}", f"shapes of {', '.join(map(str, specs))}")
    for array_shapes in (known, shapes):
        for spec in specs:
            for size, given in zip(spec.shape, array_shapes.get(spec.name, ()), strict=False):
                if isinstance(size, str) and isinstance(given, int):
                    sizes.setdefault(size, given)
    for spec in specs:
        if spec.shape and isinstance(spec.shape[0], str):
            sizes.setdefault(spec.shape[0], 1)
    return [replace(spec, shape=tuple(sizes.get(str(size), size) for size in spec.shape)) for spec in specs]


def fill(spec: TensorSpec, mode: str, generator: np.random.Generator) -> Array:
    """Return an array for an input, of ones or random.

    Random floats are normal numbers, and other random elements are 0 or 1.
    """
    shape = [size for size in spec.shape if isinstance(size, int)]
    if len(shape) < len(spec.shape):
        expected = "numbers: give them by --input-shapes, or an array in --inputs"
        raise InvalidArgumentError(f"the shape of {spec.name}", spec.shape, expected)
    if mode == "ones":
        return np.ones(shape, spec.dtype)
    if is_floating(spec.dtype):
        return generator.standard_normal(shape).astype(spec.dtype)
    return generator.integers(0, 2, shape).astype(spec.dtype)
