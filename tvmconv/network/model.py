"""A model as it came from a framework: a Relax module, and what goes in and out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .layers import Convolution, TensorSpec
from .sites import find_convolutions

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Model:
    """A model that `build` takes; `import_model` makes it."""

    mod: tvm.IRModule
    """Relax, with a function "main" whose parameters are the inputs; weights are constants in it."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def convolutions(self) -> list[Convolution]:
        """The model's convolutions and linear layers in graph order; equal ones have the same `workload`."""
        return [found.convolution for found in find_convolutions(self.mod)]
