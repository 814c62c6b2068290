"""Import of a model of torch as a Relax module."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, is_zipfile

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError, UnsupportedModelError

from ...graph.faults import IMPORT_ERRORS, Refused, node_at_fault, quiet, summary, unsupported
from ..builder import Imported

if TYPE_CHECKING:
    import torch

HINT = "write the model without it, or with operators that Relax, TVM's form of networks, has"


def export_module(
    module: torch.nn.Module, inputs: tuple[Any, ...] | None, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """Return the module exported in eval mode with example inputs; the module itself is left as it was.

    `dynamic_shapes` are what `torch.export` takes as such: sizes to leave open.
    """
    import torch

    expected = "a tuple of example tensors of torch, which a torch.nn.Module is exported with"
    if not isinstance(inputs, tuple):
        raise InvalidArgumentError("inputs", None if inputs is None else type(inputs).__name__, expected)
    for index, example in enumerate(inputs):
        if not isinstance(example, torch.Tensor):
            raise InvalidArgumentError(f"inputs[{index}]", type(example).__name__, expected)
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    except IMPORT_ERRORS as error:
        raise UnsupportedModelError(
            f"torch.export cannot export {type(module).__name__} with these inputs: {summary(error)}"
        ) from error
    finally:
        for part in training:
            part.training = True


def read_program(path: Path) -> torch.export.ExportedProgram:
    """Return the program in a file of `torch.export.save`; it may hold code: load only what you trust.

    Raises `InvalidArgumentError` for a file that is missing or damaged, `MissingPackageError` where torch is missing.
    """
    try:
        import torch
    except ImportError:
        raise MissingPackageError("torch", "torch", f"importing {path.name}") from None
    if not is_zipfile(path):
        raise InvalidArgumentError("source", str(path), "a .pt2 file of torch.export.save that exists")
    logged = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torch logs the traceback of an error that it raises
    try:
        with quiet():
            return torch.export.load(path)
    except (*IMPORT_ERRORS, BadZipFile, OSError) as error:
        expected = f"a .pt2 file that this torch {torch.__version__} can load ({summary(error)})"
        raise InvalidArgumentError("source", str(path), expected) from None
    finally:
        logging.disable(logged)


def import_program(program: torch.export.ExportedProgram) -> Imported:
    """Return the program as a Relax module, with torch's names of its inputs and outputs.

    Raises `UnsupportedModelError` for one with an operator that Relax cannot import.
    """
    import torch

    from .converters import Importer
    from .decompositions import decompositions
    from .sizes import TorchSizes
    from .types import node_words

    with quiet():
        try:
            program = program.run_decompositions(decompositions())
        except IMPORT_ERRORS as error:
            raise UnsupportedModelError(f"torch cannot decompose the model: {summary(error)}") from error
        signature = program.graph_signature
        if changed := [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]:
            raise unsupported(changed, "the model changes them, as in training", "export it in eval mode")
        try:
            sizes = TorchSizes(program)
            sizes.require_guards()
            importer = Importer(program, sizes)
            mod = importer.from_exported_program(program, False, True, False, None)
        except Refused as refusal:
            at_fault = node_at_fault(refusal, torch.fx.Node)
            raise unsupported([node_words(at_fault)] if at_fault else [], refusal.problem, HINT) from refusal
        except IMPORT_ERRORS as error:
            at_fault = node_at_fault(error, torch.fx.Node)
            nodes = [at_fault] if at_fault else _unknown_nodes(program, error)
            raise unsupported([node_words(node) for node in nodes], summary(error), HINT) from error
    # The importer shares memory with the program, which may be trained on.
    mod["main"] = _CopyConstants(mod).visit_expr(mod["main"])
    return Imported(
        mod, list(signature.user_inputs), list(signature.user_outputs), sizes.facts, importer.block_builder.words
    )


@mutator
class _CopyConstants(PyExprMutator):  # type: ignore[misc]
    def visit_generic_const_(self, constant: tvm.ir.GenericConst) -> relax.Expr:
        return relax.const(constant.value.copyto(tvm.cpu()))


def _unknown_nodes(program: torch.export.ExportedProgram, error: BaseException) -> list[torch.fx.Node]:
    """Return the nodes of operators that the error names, as in "Unsupported function types ['fft.default']"."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [node for node in calls if f"'{node.target.__name__}'" in str(error)]
