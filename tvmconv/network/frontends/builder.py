"""The builder of a model's module during its import, which knows the node that is being imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tvm
from tvm import relax, te, tirx, topi

from tvmconv.lowering import OPAQUE

from ..graph.constants import sizes_of
from ..sizes.facts import Size, SizeFacts


class Imported(NamedTuple):
    """The module that an importer made of a model."""

    mod: tvm.IRModule
    inputs: list[str]
    """The framework's names of the parameters of "main"."""
    outputs: list[str]
    facts: SizeFacts
    """The bounds of open sizes, and the conditions that the importer put on them."""
    words: Mapping[str, str]
    """The nodes in words, as in "Split (node 'parts')", by the names of the variables of their results."""


def parameter_name(index: int, name: str) -> str:
    """Return the name for a parameter of "main", a C identifier: input_0_gpu_0_data_0 for the first, "gpu_0/data_0"."""
    return f"input_{index}_" + re.sub(r"\W", "_", name)


class ImportBuilder(relax.BlockBuilder):  # type: ignore[misc]
    """A builder that knows the node that is being imported, and the facts about the model's open sizes."""

    def __init__(self, facts: SizeFacts) -> None:
        """Start a module whose inputs have the open sizes of `facts`."""
        super().__init__()
        self.facts = facts
        self.words: dict[str, str] = {}
        """The nodes in words, as in "Split (node 'parts')", by the names of their variables."""
        self._name = ""
        self._open_blocks = 0
        self._blocks_outside: list[int] = []
        """The number of open blocks outside of each function that is being built."""

    def _begin_dataflow_block(self) -> None:
        super()._begin_dataflow_block()
        self._open_blocks += 1

    def _begin_binding_block(self) -> None:
        super()._begin_binding_block()
        self._open_blocks += 1

    def _end_block(self) -> relax.BindingBlock:
        self._open_blocks -= 1
        return super()._end_block()

    def _enter_function_scope(self, scope: Any) -> None:
        self._blocks_outside.append(self._open_blocks)
        super()._enter_function_scope(scope)

    def _exit_function_scope(self, kind: Any, error: Any, trace: Any) -> None:
        """Leave a function; end the blocks that an error has left open, of which TVM would print a warning."""
        outside = self._blocks_outside.pop()
        if kind is not None:
            for _ in range(self._open_blocks - outside):
                self._end_block()
        super()._exit_function_scope(kind, error, trace)

    def enter(self, name: str, words: str) -> None:
        """Import a node from now on: its variables have a name, and errors say the words."""
        self._name = name
        self.words[name] = words

    @property
    def entered(self) -> tuple[str, str]:
        """The arguments of the last `enter`."""
        return self._name, self.node

    @property
    def node(self) -> str:
        """The node that is being imported, in words."""
        return self.words.get(self._name, self._name)

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit(expr, name_hint or self._name)

    def emit_output(self, output: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit_output(
            output, name_hint or (f"{output.name}_output" if isinstance(output, relax.Var) else "")
        )

    def require(self, test: bool | tirx.Expr, need: str) -> None:
        """Require that a test of open sizes holds in each call, for the node that is being imported.

        `need` goes on after the node's name, as in "needs 6 rows, not h". Raises `Refused` as `SizeFacts.require` does.
        """
        self.facts.require(test, self.node, need)

    def cast(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """Return x in a dtype; x itself where it has that already."""
        x = self.normalize(x)
        return x if str(x.ty.dtype) == dtype else self.emit(relax.op.astype(x, dtype))

    def reshaped(self, x: relax.Expr, shape: Sequence[Size]) -> relax.Expr:
        """Return x in a shape; x itself where it has that already."""
        before = sizes_of(x.ty)
        is_same = before is not None and len(before) == len(shape) and all(map(self.facts.are_equal, before, shape))
        return x if is_same else self.emit(relax.op.reshape(x, list(shape)))


def convolution(spatial: int, is_transposed: bool) -> Callable[..., relax.Expr]:
    """Return Relax's convolution of images (batch, channels, *size) with a number of spatial axes, from 1 to 3."""
    operator: Callable[..., relax.Expr] = getattr(relax.op.nn, f"conv{spatial}d{'_transpose' * is_transposed}")
    return operator


Source: TypeAlias = Callable[..., Sequence[tirx.Expr]]
"""A function of indices in a result, of the sizes of an operand and of further numbers: the indices in the operand."""


def gathered(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    shape: Sequence[Size],
    source: Source,
    name: str,
    *numbers: Any,
    is_fused: bool = True,
) -> relax.Expr:
    """Return a tensor of a shape whose elements are those of x at the indices that `source` returns.

    Its arguments are the indices in the result, the sizes of x, and the numbers: integers and expressions of sizes.
    TVM fuses the function with others if `is_fused`, which a function whose indices fall must not be: see `fusing`.
    """

    def compute(x: te.Tensor, shape: Sequence[tirx.Expr], *numbers: Any) -> te.Tensor:
        return te.compute(shape, lambda *at: x(*source(at, x.shape, *numbers)), tag=topi.tag.INJECTIVE)

    attributes = {} if is_fused else {"op_pattern": OPAQUE}
    return builder.emit_te(compute, x, list(shape), *numbers, primfunc_name_hint=name, primfunc_attrs=attributes)


def tiled(builder: ImportBuilder, x: relax.Expr, times: Sequence[Size], shape: Sequence[Size]) -> relax.Expr:
    """Return x repeated along each axis, and along new axes in front, in the shape that this makes.

    Before: `x` (n, 8). After, with times (2, 1, 3): (2, n, 24).
    """
    before = sizes_of(x.ty)
    if before is None or all(isinstance(each, int) for each in (*times, *before)):
        return relax.op.tile(x, list(times))
    new = len(shape) - len(before)
    is_repeated = [not builder.facts.are_equal(*sizes) for sizes in zip(before, shape[new:], strict=True)]

    def source(at: Sequence[tirx.Expr], sizes: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        each = zip(is_repeated, at[new:], sizes, strict=True)
        return [tirx.floormod(i, size) if repeated else i for repeated, i, size in each]

    return gathered(builder, x, shape, source, "tile")
