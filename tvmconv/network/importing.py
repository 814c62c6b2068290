"""Import of a framework's model: choose the importer, then put its module into the form that passes expect."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError

from . import passes
from .frontends.builder import Imported, parameter_name
from .graph.convolutions import size_text
from .graph.layers import TensorSpec
from .graph.sizes import open_size
from .model import Model

SOURCES = (
    "an ONNX file or its bytes, an onnx.ModelProto, a torch.export.ExportedProgram or the .pt2 file of one, "
    "or a torch.nn.Module with example inputs"
)


def import_model(
    source: Any, inputs: tuple[Any, ...] | None = None, shapes: Mapping[str, Sequence[int | str]] | None = None
) -> Model:
    """Import a model of ONNX or torch as a `Model`, with its weights as constants.

    `source` is the path or the bytes of an ONNX file, an `onnx.ModelProto`, a `torch.export.ExportedProgram` or the
    path of the .pt2 file in which `torch.export.save` keeps one, which may hold code: load only what you trust; or a
    `torch.nn.Module` together with `inputs`, a tuple of example tensors that it is exported with, in eval mode.
    `shapes` replaces shapes of an ONNX model's inputs, by name: with numbers, and with names of sizes that are left
    open, bounded or not, such as `{"x": ("n<=64", 3, 224, 224)}` or "2<=n<=64". Sizes of one name are equal. Sizes that
    a model leaves open stay open, with the bounds that `torch.export` was given.

    Raises `InvalidArgumentError` for a source that is none of these or is damaged, `UnsupportedModelError` for a
    model that Relax cannot import, with the operator, `MissingPackageError` where onnx is needed and not installed.

    >>> import tvmconv
    >>> from onnx import parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... relu (float[n, 3, 8, 8] x) => (float[n, 3, 8, 8] y) { y = Relu (x) }'''
    >>> model = tvmconv.import_model(parser.parse_model(text), shapes={"x": ("n<=64", 3, 8, 8)})
    >>> model.inputs[0].shape
    ('n', 3, 8, 8)
    """
    # A framework's object can only be here if the framework is loaded.
    onnx, torch = sys.modules.get("onnx"), sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.nn.Module):
        from .frontends.torch.importer import export_module, import_program

        _refuse_shapes(shapes)
        return _finish(_with_identifiers(import_program(export_module(source, inputs))))
    if inputs is not None:
        raise InvalidArgumentError("inputs", type(inputs).__name__, "None: only a torch.nn.Module needs example inputs")
    if torch is not None and isinstance(source, torch.export.ExportedProgram):
        from .frontends.torch.importer import import_program

        _refuse_shapes(shapes)
        return _finish(_with_identifiers(import_program(source)))
    if isinstance(source, (str, Path)) and Path(source).suffix == ".pt2":
        from .frontends.torch.importer import import_program, read_program

        _refuse_shapes(shapes)
        return _finish(_with_identifiers(import_program(read_program(Path(source)))))
    if isinstance(source, (str, Path, bytes)):
        from .frontends.onnx.importer import import_onnx, parse_onnx, read_onnx

        proto = parse_onnx(source) if isinstance(source, bytes) else read_onnx(Path(source))
        return _finish(import_onnx(proto, shapes or {}))
    if onnx is not None and isinstance(source, onnx.ModelProto):
        from .frontends.onnx.importer import import_onnx

        return _finish(import_onnx(source, shapes or {}))
    raise InvalidArgumentError("source", type(source).__name__, SOURCES)


def _refuse_shapes(shapes: object) -> None:
    if shapes is not None:
        raise InvalidArgumentError(
            "shapes",
            shapes,
            "None: a model of torch has those that it was exported with, open ones by `dynamic_shapes`",
        )


def _finish(imported: Imported) -> Model:
    """Return the model of an importer's module; sizes that can have one value only are numbers in it."""
    specs = tuple(map(_spec, imported.inputs, [parameter.ty for parameter in imported.mod["main"].params]))
    sizes = dict.fromkeys(size for spec in specs for size in spec.shape if isinstance(size, str))
    mod = passes.run(passes.IMPORTING, imported.mod, imported)
    main = mod["main"]
    result = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    return Model(
        mod,
        specs,
        tuple(map(_spec, imported.outputs, result)),
        tuple(imported.facts.bounds(name) for name in sizes if open_size(name)),
        imported.facts.conditions,
    )


def _with_identifiers(imported: Imported) -> Imported:
    """Return an importer's module with C identifiers as names of parameters, which CUDA source contains unchanged.

    Before: `def main(gpu_0/data_0: ...)`. After: `def main(input_0_gpu_0_data_0: ...)`.
    """
    main = imported.mod["main"]
    parameters = [relax.Var(parameter_name(i, var.name), var.ty) for i, var in enumerate(main.params)]
    body = main.bind_params(dict(zip(main.params, parameters, strict=True))).body
    mod = imported.mod.clone()
    mod["main"] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    return imported._replace(mod=mod)


def _spec(name: str, ty: tvm.ir.Type) -> TensorSpec:
    if not isinstance(ty, relax.TensorType) or ty.dtype is None or ty.ndim < 0:
        raise UnsupportedModelError(f"{name} is {ty}; inputs and outputs have to be tensors with known dtype and rank")
    if not isinstance(ty.shape, relax.ShapeExpr):
        return TensorSpec(name, ("?",) * ty.ndim, str(ty.dtype))
    shape = tuple(int(size) if isinstance(size, tvm.tirx.IntImm) else size_text(size) for size in ty.shape)
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise UnsupportedModelError(f"{name} would have the shape {shape}; a window is larger than what it slides over")
    return TensorSpec(name, shape, str(ty.dtype))
