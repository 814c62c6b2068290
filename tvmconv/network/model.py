"""A model as a framework's importer returned it: a Relax module with its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax

from .graph.graph import blocks_of, free_variables
from .graph.layers import Convolution, TensorSpec
from .graph.sizes import Condition, OpenSize
from .sites import find_convolutions

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Model:
    """A model that `build` takes; `import_model` makes it."""

    mod: tvm.IRModule
    """The Relax module: the parameters of its function "main" are the inputs, and weights are constants in it."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    open_sizes: tuple[OpenSize, ...] = ()
    """The named sizes of the inputs that are known only when the model runs, each with its bounds."""
    conditions: tuple[Condition, ...] = ()
    """The conditions that operators of the model put on these sizes, which a network checks in each call."""

    def constant_outputs(self) -> tuple[int, ...]:
        """Return the indices of the outputs that do not depend on inputs."""
        main = self.mod["main"]
        values = {var: value for block in blocks_of(self.mod) for var, value in block.values.items()}
        varies = set(main.params)
        for var, value in values.items():
            if not varies.isdisjoint(free_variables(value)):
                varies.add(var)
        result = values.get(main.body.body, main.body.body)
        outputs = result.fields if isinstance(result, relax.Tuple) else [result]
        return tuple(index for index, output in enumerate(outputs) if varies.isdisjoint(free_variables(output)))

    def convolutions(self) -> list[Convolution]:
        """Return the convolutions and linear layers in graph order; equal ones have the same `workload`."""
        return [found.convolution for found in find_convolutions(self.mod)]
