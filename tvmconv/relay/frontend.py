"""Relay's importers: each returns a model and its parameters, which are empty, since weights are constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmconv.network import Model, TensorSpec, import_model
from tvmconv.problem.errors import InvalidArgumentError, names_of

from .gone import NAMES

if TYPE_CHECKING:
    import onnx
    import torch


__getattr__ = names_of(__name__, NAMES)


@dataclass(frozen=True)
class Program(Model):
    """A model as Relay's module of functions: it has one, "main", which is the model itself."""

    def __getitem__(self, name: str) -> Program:
        if name != "main":
            raise InvalidArgumentError("name", name, "'main'")
        return self


Parameters = dict[str, Any]
"""The parameters that scripts pass on to `relay.build` and `set_input`; they are always empty."""


def from_onnx(model: onnx.ModelProto, shape: Mapping[str, Sequence[int]] | None = None) -> tuple[Program, Parameters]:
    """Import an ONNX model, with the given shapes for the inputs that are named.

    >>> import onnx.parser
    >>> from tvmconv import relay
    >>> text = '<ir_version: 8, opset_import: ["": 17]> relu (float[1, 3] x) => (float[1, 3] y) { y = Relu(x) }'
    >>> mod, params = relay.frontend.from_onnx(onnx.parser.parse_model(text), {"x": (1, 3)})
    >>> params
    {}
    """
    imported = import_model(model, shapes=shape)
    return Program(imported.mod, imported.inputs, imported.outputs, imported.open_sizes), {}


def from_pytorch(
    script_module: torch.nn.Module, input_infos: Sequence[tuple[str, Any]], default_dtype: str = "float32"
) -> tuple[Program, Parameters]:
    """Import a module of torch, or a result of `torch.jit.trace`; its inputs get the names that are given here.

    `input_infos` has (name, shape) or (name, (shape, dtype)) for each input, in order.

    >>> import torch
    >>> from tvmconv import relay
    >>> module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> mod, params = relay.frontend.from_pytorch(module, [("x", (1, 3, 16, 16))])
    >>> params
    {}
    """
    import torch

    specs = tuple(_spec(info, default_dtype) for info in input_infos)
    inputs = tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)
    if isinstance(script_module, torch.jit.ScriptModule):
        model = import_model(_exported(script_module, inputs))
    else:
        model = import_model(script_module, inputs)
    if len(model.inputs) != len(specs):
        raise InvalidArgumentError("input_infos", input_infos, f"{len(model.inputs)} inputs")
    return Program(model.mod, specs, model.outputs), {}


def _spec(info: tuple[str, Any], default_dtype: str) -> TensorSpec:
    name, shape = info
    dtype = default_dtype
    if len(shape) == 2 and isinstance(shape[1], str):
        shape, dtype = shape
    return TensorSpec(name, tuple(int(size) for size in shape), dtype)


def _exported(module: torch.jit.ScriptModule, inputs: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Export a ScriptModule, which torch.export refuses, by the converter that its refusal recommends."""
    import torch
    from torch._export.converter import TS2EPConverter

    # The converter leaves every size open; exported again, the program has those of the inputs.
    return torch.export.export(TS2EPConverter(module.eval(), inputs).convert().module(), inputs)
