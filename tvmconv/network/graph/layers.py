"""Descriptions of a network's inputs, outputs and convolutions, which can be read without TVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmconv.problem.workload import ConvWorkload


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    shape: tuple[int | str, ...]
    """The sizes; one that is known only when the model runs is a name."""
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class Convolution:
    """A convolution of a model, or a linear layer as the convolution that it is.

    A product of matrices and the steps of a recurrent layer are described by the same fields.
    """

    name: str
    """The name of its variable in the model's Relax module."""
    description: str
    """The workload in words, or as much of it as there is."""
    layout: str
    flops: int | None
    """The number of operations, two for each multiply-add, with the sizes of the workload for open ones.

    None where no workload can describe the convolution, and its shape is known only when the model runs.
    """
    workload: ConvWorkload | None
    """The workload, with the epilogue that the kernel takes in; None if no workload can describe the convolution."""
    obstacle: str | None
    """The reason why this is left to TVM; None for one that gets a kernel of tvmconv."""
    open_sizes: tuple[str, ...] = ()
    """The names of the workload's sizes that are known only when the model runs: the workload has assumed values for
    them."""
    is_too_open: bool = False
    """True if this is left to TVM because it has sizes that are known only when the model runs."""
    in_float: str | None = None
    """The reason why this is in floating point though it has quantized operands; None where it is not, or has none."""


@dataclass(frozen=True)
class Layer:
    """A convolution, a product or the steps of a recurrent layer in a network, and the kernel that runs it."""

    convolution: Convolution
    kernel: str
    """The name of the template, such as "tvmconv cpu/depthwise", or "TVM"."""
    config: Mapping[str, Any] | None
    """The knobs of the template; None for a kernel of TVM, and for one that has none."""
    reason: str
    function: str | None = None
    """The name of the compiled function, by which a profile finds the layer; None where it is not known."""
