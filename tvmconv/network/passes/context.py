"""The options of a build, the plan of its layers, and the findings of its passes, which all passes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tvm
from tvm import relax

from tvmconv import dispatch
from tvmconv.lowering import Interleaved, Span
from tvmconv.problem import FusedProblem, Problem
from tvmconv.problem.constants import Constants
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import SPARSE_MODES
from tvmconv.problem.precision import DEFAULT, NETWORK_WORDS, require_precision
from tvmconv.problem.workload import ConvWorkload

from ..graph.layers import Convolution, Layer
from ..graph.sizes import OpenSize
from ..sites import Site
from ..sizes.facts import SizeFacts


@dataclass(frozen=True)
class SparseChoice:
    """A sparse kernel for one convolution."""

    name: str
    """The name of the function in its module; equal kernels share one name."""
    workload: ConvWorkload
    """The workload without the scale, which is in the weight; the shift is compiled in."""
    problem: Problem
    """The problem that the kernel is compiled for, which may assume another batch than the workload has."""
    constants: Constants
    selection: dispatch.Selection
    reason: str


@dataclass(frozen=True, eq=False)
class FusedLayers:
    """Several layers of a network that one kernel may compute, as a finder of `fused.FINDERS` describes them."""

    problem: FusedProblem
    operands: Callable[[], list[relax.Expr]]
    """The function that returns the kernel's operands, in their shapes, without the output."""
    output: relax.Var
    """The variable that the kernel computes, in the variable's shape or another one."""
    layers: Mapping[relax.Var, Convolution]
    """The descriptions of the layers, by the variables that they compute."""
    words: str
    """The layers in words, to be read behind "one kernel for"."""
    separate_problems: Sequence[Problem] = ()
    """The problems of the kernels that compute the layers apart; none where something without an estimate does."""
    sizes: Mapping[str, tvm.tirx.PrimExpr] = field(default_factory=dict)
    """The expressions of the workload's open sizes, by name."""
    reason: str = ""
    """The reason why one kernel computes the layers, in words, once it has been chosen."""


class Slice(NamedTuple):
    """A variable that is a slice of neighbouring channels of a larger tensor."""

    source: relax.Var
    position: Span
    """The axis of the channels, the source's number of channels, and the offset of the slice in them."""
    end: int
    """The first channel of the source after the slice."""
    layers: list[relax.Var]
    """The outputs of the layers that read the slice from the source, without a copy."""
    others: list[relax.Var]
    """The variables that are computed from the slice by anything else than these layers."""


class ConcatSlice(NamedTuple):
    """The slice of a concat buffer that a kernel stores its output in."""

    position: Span | Interleaved
    partly_filled: relax.Var | None
    """The partly filled concat buffer that the kernel stores into; None where the kernel gets memory for a new one."""
    concat: relax.Var
    """The variable that holds the concatenated tensor."""
    completes_concat: bool
    """True if the concatenated tensor is complete once this output is stored."""


@dataclass
class LayerPlan:
    """The kernel of one convolution, as far as the passes have chosen it."""

    site: Site
    sparse: SparseChoice | None = None
    """The kernel that has the weight compiled in; None for a dense one."""
    fused: FusedLayers | None = None
    """The layers, this one among them, that one kernel computes."""
    ranges: tuple[dispatch.Range, ...] = ()
    """The dense kernels, each for a range of batches or sizes; none where another kind of kernel computes the layer."""
    slice: Slice | None = None
    """The channels of a larger tensor that the kernel reads as its input."""
    concat_slice: ConcatSlice | None = None
    """The slice of a concat buffer that the kernel stores its output in."""

    @property
    def is_dense(self) -> bool:
        """True for a layer that gets a dense kernel for itself alone."""
        return self.site.workload is not None and self.sparse is None and self.fused is None


@dataclass
class Plan:
    """The kernels of a module's convolutions, in graph order."""

    layers: list[LayerPlan] = field(default_factory=list)
    values: dict[relax.Var, relax.Expr] = field(default_factory=dict)
    """New values of variables between the layers, such as a pooling in another layout."""
    slices: dict[relax.Var, Slice] = field(default_factory=dict)
    """The variables that are slices of channels of larger tensors."""

    @property
    def fused(self) -> list[FusedLayers]:
        """The groups of several layers that one kernel computes, each once."""
        return list(dict.fromkeys(layer.fused for layer in self.layers if layer.fused is not None))


@dataclass
class Context:
    """The options of one build, which passes read, and what they found for the network, which they add.

    `precision` and `sparse` are the options for the passes that are still to run: `with_precision` brings the module to
    half precision, and sets `precision` to that of the kernels.
    """

    target: tvm.target.Target
    precision: str = DEFAULT
    """The network's precision, one of `NETWORK_WORDS`; after `with_precision` that of the kernels, one of `WORDS`."""
    sparse: str = "auto"
    """The mode of sparse layers, one of `SPARSE_MODES`; `carry_channels` sets it to "never"."""
    check_indices: bool = True
    """True if a call is to look for indices out of range."""
    facts: SizeFacts = field(default_factory=SizeFacts)
    """The bounds of open sizes; passes add conditions to them."""
    open_sizes: tuple[OpenSize, ...] = ()
    """The open sizes of the model; `limit_open_sizes` lowers their bounds to what kernels can index."""
    plan: Plan = field(default_factory=Plan)
    convolutions: list[Layer] = field(default_factory=list)
    products: list[Layer] = field(default_factory=list)
    """The products of two computed tensors."""
    recurrences: list[Layer] = field(default_factory=list)
    checks: tuple[str, ...] = ()
    """The texts of the checks of indices that the module has as another output."""

    def __post_init__(self) -> None:
        require_precision(self.precision, NETWORK_WORDS)
        if self.sparse not in SPARSE_MODES:
            raise InvalidArgumentError("sparse", self.sparse, f"one of {', '.join(SPARSE_MODES)}")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the network, and the kernel that runs each."""
        return (*self.convolutions, *self.products, *self.recurrences)
