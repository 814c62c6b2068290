"""Relax's importer of torch, with corrected operators; every node is checked against torch's type of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import factorial
from typing import Any

import numpy as np
import torch
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvmconv.lowering import OPAQUE

from ...graph.constants import sizes_of
from ...sizes.facts import equal, python_text
from ..agreement import broadcastable, joined
from ..builder import ImportBuilder, convolution
from . import pooling, quantization, recurrent, resampling, shapes
from .sizes import TorchSizes
from .types import (
    BROADCASTING,
    arguments_of,
    base_name,
    computing_dtype,
    first_tensor,
    node_words,
    relax_dtype,
    type_problem,
)

Converter = Callable[[torch.fx.Node], Any]

RANDOM = ("bernoulli", "dropout", "dropout_", "exponential", "native_dropout", "randn", "randn_like")
"""Operators for which Relax's importer makes something that is not random."""

MADE = ("eye", "hamming_window", "linspace")
"""Operators that make tensors from numbers alone."""

FILLED = {
    "empty": 0, "empty_like": 0, "empty_permuted": 0, "fill": None, "full": None, "full_like": None, "new_ones": 1,
    "new_zeros": 0, "ones": 1, "ones_like": 1, "zeros": 0, "zeros_like": 0,
}  # fmt: skip
"""Operators that fill a tensor with one value; None stands for their second argument."""


class Importer(ExportedProgramImporter):  # type: ignore[misc]
    """Imports torch's operators as Relax's, each node with the shape and the dtype that torch gives it.

    Its errors have the node in their frames, as Relax's own errors do.
    """

    def __init__(self, program: torch.export.ExportedProgram, sizes: TorchSizes) -> None:
        """Start the import of a program with these sizes."""
        self._program = program
        super().__init__()
        self._sizes = sizes
        self._builder = ImportBuilder(sizes.facts)
        signature = program.graph_signature
        kept = {**program.state_dict, **program.constants}
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        names |= signature.inputs_to_lifted_tensor_constants
        self._kept = {name: kept[target] for name, target in names.items() if target in kept}

    @property
    def block_builder(self) -> ImportBuilder:
        """The builder; TVM's importer would use one that does not know the node."""
        return self._builder

    @block_builder.setter
    def block_builder(self, _: object) -> None:
        pass

    def create_input_vars(
        self, program: torch.export.ExportedProgram
    ) -> tuple[dict[str, relax.Var], dict[str, relax.Var], dict[str, Any]]:
        """Return variables for weights and for inputs, by name, and no ranges: TVM would plan memory by these."""
        values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        weights: dict[str, relax.Var] = {}
        inputs: dict[str, relax.Var] = {}
        for spec in program.graph_signature.input_specs:
            name, tensor = spec.arg.name, values.get(spec.arg.name)
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"the input {name} is no tensor")
            shape = [size if isinstance(size, int) else self._sizes.of_input(size.node.expr) for size in tensor.shape]
            var = relax.Var(name, relax.TensorType(shape, relax_dtype(tensor.dtype)))
            (inputs if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT else weights)[name] = var
        return weights, inputs, {}

    def create_convert_map(self) -> dict[str, Converter]:
        table: dict[str, Converter] = super().create_convert_map()
        for name in table:
            base = name.partition(".")[0]
            if base in RANDOM:
                table[name] = self._random
            elif base == "arange":
                table[name] = partial(self._range, table[name])
            elif base in MADE:
                table[name] = partial(self._constant_of_torch, table[name])
            elif base in FILLED:
                table[name] = partial(self._filled, table[name], FILLED[base])
        table |= {
            "amax.default": partial(self._extreme, relax.op.max),
            "amin.default": partial(self._extreme, relax.op.min),
            "_assert_scalar.default": self._assertion,
            "as_strided.default": partial(self._with_strides, table["as_strided.default"]),
            "addmm.default": self._scaled_product,
            "baddbmm.default": self._scaled_product,
            "bmm.default": self._product,
            "cat.default": self._joined,
            "copy.default": self._copied,
            "convert_element_type.default": self._cast,
            "convolution.default": self._any_convolution,
            "div.Tensor_mode": self._rounded_quotient,
            "expm1.default": self._expm1,
            "grid_sampler_2d.default": self._grid_sample,
            "grid_sampler_3d.default": self._grid_sample,
            "getitem": partial(self._item_of, table["getitem"]),
            "log1p.default": self._log1p,
            "max.dim": partial(self._extreme_with_index, relax.op.max, relax.op.argmax),
            "min.dim": partial(self._extreme_with_index, relax.op.min, relax.op.argmin),
            "mm.default": self._product,
            "native_group_norm.default": self._group_norm,
            "_to_copy.default": self._cast,
            "scalar_tensor.default": partial(self._scalar_tensor, table["scalar_tensor.default"]),
            "scatter_add.default": self._scatter_add,
            "sort.stable": table["sort.default"],
            "squeeze.dim": self._squeeze_ones,
            "squeeze.dims": self._squeeze_ones,
            "tanh.default": self._tanh,
        }
        for name, move in MOVES.items():
            table[name] = partial(self._rearranged, move)
        for name, pool in pooling.OPERATORS.items():
            table[name] = partial(self._pool, pool)
        table |= dict.fromkeys(quantization.OPERATORS, self._quantization)
        for name in recurrent.OPERATORS:
            table[f"{name}.input"] = self._recurrent
        for name in resampling.OPERATORS:
            table |= {f"{name}.vec": self._resample, f"{name}.default": self._resample}
        for node in self._program.graph.nodes:
            if node.op == "call_function" and _is_number(node.meta.get("val")):
                table.setdefault(node.target.__name__, self._unknown_number)
        return {name: partial(self._checked, convert) for name, convert in table.items()}

    def _checked(self, convert: Converter, node: torch.fx.Node) -> Any:
        """Convert a node with its tensors in the dtype that torch computes in; raise if its type is not torch's."""
        self.block_builder.enter(node.name, node_words(node))
        expected, dtype = node.meta.get("val"), computing_dtype(node)
        if _is_number(expected):
            return self._number(convert, node)
        with self._operands_as(node, dtype and relax_dtype(dtype)):
            value = self._emitted(convert(node))
            if dtype is not None:
                value = self._as_torch(value, expected)
        if problem := type_problem(value, expected):
            raise ValueError(problem)
        # In the metadata of torch 2.11 the states of batches have an axis more than in a call.
        is_recurrent = base_name(node) in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        self._require_shape(value, expected[:1] if is_recurrent else expected)
        return value

    def _number(self, convert: Converter, node: torch.fx.Node) -> Any:
        """Return a number of torch, such as a size, by torch's expression of it; by Relax where tensors decide it."""
        value = node.meta["val"]
        try:
            return self._sizes.expression(value)
        except KeyError:
            result = convert(node)
            self._sizes.define(value, result)
            return result

    def _unknown_number(self, node: torch.fx.Node) -> Any:
        raise ValueError("its operands are numbers that are known only when the model runs")

    def _scalar_tensor(self, otherwise: Converter, node: torch.fx.Node) -> relax.Expr:
        if not node.all_input_nodes:
            return self._constant_of_torch(otherwise, node)
        return self._scalar(self._plain(node.args[0]), relax_dtype(node.meta["val"].dtype))

    def _plain(self, argument: Any) -> Any:
        """Return an argument of a node with numbers and expressions for nodes of numbers."""
        if isinstance(argument, torch.fx.Node):
            return self.env[argument]
        return [self._plain(each) for each in argument] if isinstance(argument, (list, tuple)) else argument

    def _shape(self, tensor: Any) -> list[Any]:
        return self._sizes.shape(tensor)

    def _require_shape(self, value: Any, expected: Any) -> None:
        """Require that the result has torch's shape; raise `ValueError` where Relax has no such shape."""
        if isinstance(expected, (tuple, list)):
            fields = value if isinstance(value, (tuple, list)) else getattr(value.ty, "fields", [])
            for ty, each in zip([getattr(field, "ty", field) for field in fields], expected, strict=False):
                self._require_type(ty, each)
        else:
            self._require_type(getattr(value, "ty", None), expected)

    def _require_type(self, ty: Any, expected: Any) -> None:
        if not isinstance(expected, torch.Tensor) or not isinstance(ty, relax.TensorType):
            return
        try:
            wanted = self._shape(expected)
        except KeyError:  # which elements of tensors decide
            return
        sizes = sizes_of(ty)
        if sizes is None or len(sizes) != len(wanted):
            raise ValueError(f"Relax does not know its shape, which is {tuple(map(python_text, wanted))}")
        for size, other in zip(sizes, wanted, strict=True):
            if not self._sizes.facts.are_equal(size, other):
                if isinstance(size, int) and isinstance(other, int):
                    raise ValueError(f"Relax gives it the size {size}, torch {other}")
                self.block_builder.require(equal(size, other), f"has the size {python_text(other)} in torch")

    def _as_torch(self, value: relax.Expr, expected: Any) -> relax.Expr:
        """Return the tensor, or the tuple of tensors, in torch's dtypes."""
        if isinstance(value.ty, relax.TensorType):
            return self.block_builder.cast(value, relax_dtype(first_tensor(expected).dtype))
        wanted = [relax_dtype(each.dtype) for each in expected]
        if [str(field.dtype) for field in value.ty.fields] == wanted:
            return value
        items = [self.block_builder.emit(relax.TupleGetItem(value, index)) for index in range(len(wanted))]
        return self.block_builder.emit(
            relax.Tuple([self.block_builder.cast(item, name) for item, name in zip(items, wanted, strict=True)])
        )

    @contextmanager
    def _operands_as(self, node: torch.fx.Node, dtype: str | None) -> Iterator[None]:
        """Hold the node's tensors, except for a condition, in another dtype during the block, if one is given.

        Operands of operators that broadcast get shapes that fit, and sizes among them become tensors.
        """
        before = {argument: self.env[argument] for argument in node.all_input_nodes}
        try:
            if dtype is not None:
                for argument, value in before.items():
                    is_condition = base_name(node) == "where" and argument is node.args[0]
                    if _is_tensor(value) and not is_condition:
                        self.env[argument] = self.block_builder.cast(value, dtype)
            if (kept := BROADCASTING.get(base_name(node))) is not None:
                operands = [argument for argument in before if argument in node.args]
                for argument in operands:
                    if not _is_tensor(self.env[argument]):
                        is_real = isinstance(argument.meta.get("val"), torch.SymFloat)
                        self.env[argument] = self._scalar(
                            self.env[argument], dtype or ("float32" if is_real else "int64")
                        )
                if len(operands) > 1:
                    brought = broadcastable(self.block_builder, [self.env[each] for each in operands], kept)
                    self.env.update(zip(operands, brought, strict=True))
            yield
        finally:
            self.env.update(before)

    def _scalar(self, number: Any, dtype: str) -> relax.Expr:
        """Return a number, or an expression of sizes, as a tensor without axes."""
        if isinstance(number, (int, float)):
            return relax.const(number, dtype)

        def compute(number: tirx.Expr) -> te.Tensor:
            return te.compute((), lambda: number.astype(dtype), tag=topi.tag.INJECTIVE)

        # Fused with a tensor of such a size, the function would define the size twice, which FuseTIR fails at.
        attributes = {"op_pattern": OPAQUE}
        return self.block_builder.emit_te(compute, number, primfunc_name_hint="number", primfunc_attrs=attributes)

    def _emitted(self, value: Any) -> Any:
        """Return the value, bound to a variable if it is an expression, whose type is not known otherwise."""
        is_open = isinstance(value, (relax.Call, relax.Tuple, relax.TupleGetItem))
        return self.block_builder.emit(value) if is_open else value

    def _random(self, node: torch.fx.Node) -> Any:
        if base_name(node) in ("dropout", "native_dropout") and node.args[2] is False:
            return self.env[node.args[0]]
        raise ValueError("it is random, as in training")

    def _constant_of_torch(self, otherwise: Converter, node: torch.fx.Node) -> relax.Expr:
        """Return the constant that torch makes, if its arguments are known numbers."""
        if node.all_input_nodes:
            return otherwise(node)
        value = node.target(*node.args, **{**node.kwargs, "device": "cpu"})
        return self._constant(value)

    def _range(self, otherwise: Converter, node: torch.fx.Node) -> relax.Expr:
        """Return the numbers from a start in equal steps; of an open length, by a formula."""
        if not node.all_input_nodes:
            return self._constant_of_torch(otherwise, node)
        start, step = 0, 1
        arguments = [self._plain(argument) for argument in node.args]
        if len(arguments) > 1:
            start, step = arguments[0], arguments[2] if len(arguments) > 2 else 1
        dtype = relax_dtype(node.meta["val"].dtype)

        def compute(length: Any, start: Any, step: Any) -> te.Tensor:
            def element(i: tirx.Expr) -> tirx.Expr:
                # Torch computes in float64, or in int64.
                wide = "float64" if "float" in dtype else "int64"
                first, distance = (
                    tirx.const(each, wide) if isinstance(each, (int, float)) else each.astype(wide)
                    for each in (start, step)
                )
                return (first + i.astype(wide) * distance).astype(dtype)

            return te.compute([length], element, tag=topi.tag.INJECTIVE)

        (length,) = self._shape(node.meta["val"])
        return self.block_builder.emit_te(compute, length, start, step, primfunc_name_hint="arange")

    def _constant(self, value: torch.Tensor) -> relax.Expr:
        array = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        return self.block_builder.emit(relax.const(array, relax_dtype(value.dtype)))

    def _filled(self, otherwise: Converter, value: float | None, node: torch.fx.Node) -> relax.Expr:
        result = node.meta["val"]
        if value is None:
            value = node.args[1]
        if isinstance(value, torch.fx.Node):
            return otherwise(node)
        filling = self._constant(torch.tensor(value, dtype=result.dtype))
        return relax.op.full(relax.ShapeExpr(self._shape(result)), filling, relax_dtype(result.dtype))

    def _rearranged(self, move: Callable[..., Any], node: torch.fx.Node) -> Any:
        """Return a node's tensor with its elements moved, by one of the functions of `torch_shapes`."""
        result = node.meta["val"]
        shape = [self._shape(each) for each in result] if isinstance(result, (list, tuple)) else self._shape(result)
        return move(self.block_builder, self.env[node.args[0]], shape, *map(self._plain, node.args[1:]))

    def _joined(self, node: torch.fx.Node) -> relax.Expr:
        axis = arguments_of(node, dim=0)[0]
        parts = [self.env[each] for each in node.args[0]]
        rank = node.meta["val"].dim()
        # Torch leaves out tensors of shape (0,), whatever the rank of the others.
        parts = [part for part in parts if part.ty.ndim == rank]
        return relax.op.concat(joined(self.block_builder, parts, axis), axis)

    def _copied(self, node: torch.fx.Node) -> relax.Expr:
        return shapes.expand(self.block_builder, self.env[node.args[1]], self._shape(node.meta["val"]))

    def _assertion(self, node: torch.fx.Node) -> None:
        """Require what torch asserts of sizes; what it asserts of elements of tensors is not checked."""
        test = self.env[node.args[0]]
        is_of_sizes = not isinstance(test, bool) and isinstance(node.args[0], torch.fx.Node) and not _is_tensor(test)
        if is_of_sizes and self.block_builder.facts.are_of_inputs(test):
            self.block_builder.require(test, f"asserts {node.args[1]}")

    def _item_of(self, convert: Converter, node: torch.fx.Node) -> Any:
        """Return one of an operator's results; raise where Relax has only the first."""
        if isinstance(getattr(self.env[node.args[0]], "ty", None), relax.TensorType) and node.args[1] != 0:
            raise ValueError(f"Relax has only the first result of {node.args[0].target}")
        return convert(node)

    def _cast(self, node: torch.fx.Node) -> relax.Expr:
        """Cast a tensor to the node's dtype; bfloat16 goes from and to other dtypes by way of float32."""
        x, dtype = self.env[node.args[0]], relax_dtype(node.meta["val"].dtype)
        if "bfloat16" in (str(x.ty.dtype), dtype):
            x = self.block_builder.cast(x, "float32")
        return self.block_builder.cast(x, dtype)

    def _with_strides(self, convert: Converter, node: torch.fx.Node) -> relax.Expr:
        if not node.args[0].meta["val"].is_contiguous():
            raise ValueError("it reads memory that is not in the order of the elements")
        return convert(node)

    def _squeeze_ones(self, node: torch.fx.Node) -> relax.Expr:
        x, dims = self.env[node.args[0]], node.args[1]
        shape = node.args[0].meta["val"].shape
        axes = {dim % max(1, len(shape)) for dim in ([dims] if isinstance(dims, int) else dims)}
        ones = sorted(axis for axis in axes if axis < len(shape) and _is_one(shape[axis]))
        return relax.op.squeeze(x, ones) if ones else x

    # --- Reductions and elementwise ---

    def _extreme(self, op: Callable[..., relax.Expr], node: torch.fx.Node) -> relax.Expr:
        x, (dims, keep) = self.env[node.args[0]], arguments_of(node, dim=[], keepdim=False)
        return op(x, list(dims) or None, keepdims=keep) if x.ty.ndim else x

    def _extreme_with_index(self, extreme: Any, index_of_extreme: Any, node: torch.fx.Node) -> relax.Expr:
        x, (dim, keep) = self.env[node.args[0]], arguments_of(node, dim=0, keepdim=False)
        found = [self.block_builder.emit(each) for each in (extreme(x, dim, keep), index_of_extreme(x, dim, keep))]
        return self.block_builder.emit(relax.Tuple(found))

    def _scatter_add(self, node: torch.fx.Node) -> relax.Expr:
        x, index, source = (self.env[node.args[number]] for number in (0, 2, 3))
        if str(x.ty.dtype) == "bool":
            raise ValueError("truth values are not added up")
        return relax.op.scatter_elements(x, index, source, axis=node.args[1], reduction="add")

    def _rounded_quotient(self, node: torch.fx.Node) -> relax.Expr:
        x, divisor = self.env[node.args[0]], node.args[1]
        y = self.env[divisor] if isinstance(divisor, torch.fx.Node) else relax.const(divisor, str(x.ty.dtype))
        if node.kwargs["rounding_mode"] == "floor":
            return relax.op.floor_divide(x, y)
        quotient = relax.op.divide(x, y)
        return relax.op.trunc(self.block_builder.emit(quotient)) if "float" in str(x.ty.dtype) else quotient

    def _log1p(self, node: torch.fx.Node) -> relax.Expr:
        x = self.env[node.args[0]]
        far = relax.op.log(relax.op.add(x, relax.const(1, str(x.ty.dtype))))
        return self._near_zero(x, far, [(-1) ** n / (n + 1) for n in range(8)])

    def _expm1(self, node: torch.fx.Node) -> relax.Expr:
        x = self.env[node.args[0]]
        far = relax.op.subtract(relax.op.exp(x), relax.const(1, str(x.ty.dtype)))
        return self._near_zero(x, far, [1 / factorial(n + 1) for n in range(8)])

    def _tanh(self, node: torch.fx.Node) -> relax.Expr:
        """Return tanh, by a series near 0, where TVM's tanh, made of exponentials, loses digits."""
        x = self.env[node.args[0]]
        return self._near_zero(x, relax.op.tanh(x), [1, 0, -1 / 3, 0, 2 / 15, 0, -17 / 315])

    def _near_zero(self, x: relax.Expr, far: relax.Expr, series: list[float]) -> relax.Expr:
        """Return x times a series where x is near 0, and `far`, which loses digits there, elsewhere."""
        dtype = str(x.ty.dtype)
        total = relax.const(series[-1], dtype)
        for factor in reversed(series[:-1]):
            total = self.block_builder.emit(relax.op.add(relax.op.multiply(total, x), relax.const(factor, dtype)))
        is_near = relax.op.less(relax.op.abs(x), relax.const(0.05, dtype))
        return relax.op.where(is_near, relax.op.multiply(x, total), far)

    # --- Products ---

    def _product(self, node: torch.fx.Node) -> relax.Expr:
        return relax.op.matmul(*(self.env[argument] for argument in node.args[:2]))

    def _scaled_product(self, node: torch.fx.Node) -> relax.Expr:
        """Return beta * x + alpha * (a @ b)."""
        x, a, b = (self.env[argument] for argument in node.args)
        alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
        product = self.block_builder.emit(relax.op.matmul(a, b))
        if alpha != 1:
            product = self.block_builder.emit(relax.op.multiply(product, relax.const(alpha, str(product.ty.dtype))))
        if beta == 0:
            return product
        if beta != 1:
            x = self.block_builder.emit(relax.op.multiply(x, relax.const(beta, str(x.ty.dtype))))
        return relax.op.add(x, product)

    def _any_convolution(self, node: torch.fx.Node) -> relax.Expr:
        x, w = (self.env[argument] for argument in node.args[:2])
        bias = None if node.args[2] is None else self.env[node.args[2]]
        strides, padding, dilation, transposed, more, groups = node.args[3:9]
        spatial = x.ty.ndim - 2
        attributes = {"strides": list(strides), "padding": list(padding), "dilation": list(dilation), "groups": groups}
        behind = [0] * spatial
        if transposed and all(one < stride for one, stride in zip(more, strides, strict=True)):
            attributes["output_padding"] = list(more)
        elif transposed:  # which Relax refuses: less is cut off behind, and zeros follow
            pairs = list(zip(more, padding, strict=True))
            attributes["padding"] = [*padding, *(max(0, cut - one) for one, cut in pairs)]
            behind = [max(0, one - cut) for one, cut in pairs]
        result = self.block_builder.emit(convolution(spatial, transposed)(x, w, **attributes))
        if any(behind):
            widths = [0, 0, 0, 0, *(width for one in behind for width in (0, one))]
            result = self.block_builder.emit(relax.op.nn.pad(result, widths))
        if bias is None:
            return result
        return relax.op.add(result, self.block_builder.emit(relax.op.reshape(bias, (1, -1, *[1] * spatial))))

    def _group_norm(self, node: torch.fx.Node) -> relax.Expr:
        x, (channels, _, groups, eps) = self.env[node.args[0]], node.args[4:8]
        factors = [
            relax.const(np.full(channels, missing, dtype="float32"), str(x.ty.dtype))
            if given is None
            else self.env[given]
            for given, missing in zip(node.args[1:3], (1, 0), strict=True)
        ]
        return relax.op.nn.group_norm(x, *factors, groups, channel_axis=1, axes=list(range(2, x.ty.ndim)), epsilon=eps)

    def _grid_sample(self, node: torch.fx.Node) -> relax.Expr:
        x, grid = (self.env[argument] for argument in node.args[:2])
        method, outside, align = node.args[2:5]
        spatial = x.ty.ndim - 2
        grid = self.block_builder.emit(relax.op.permute_dims(grid, [0, spatial + 1, *range(1, spatial + 1)]))
        return relax.op.image.grid_sample(
            x,
            grid,
            method=("bilinear", "nearest", "bicubic")[method],
            layout="NCHW" if spatial == 2 else "NCDHW",
            padding_mode=("zeros", "border", "reflection")[outside],
            align_corners=align,
        )

    def _resample(self, node: torch.fx.Node) -> relax.Expr:
        sizes = self._shape(node.meta["val"])[2:]
        return resampling.resample(self.block_builder, self.env[node.args[0]], node, sizes, self._plain)

    def _recurrent(self, node: torch.fx.Node) -> relax.Expr:
        return recurrent.convert(self.block_builder, node, self.env, self._parameter)

    def _quantization(self, node: torch.fx.Node) -> relax.Expr:
        return self._emitted(quantization.convert(self.block_builder, self.env[node.args[0]], node, self._parameter))

    def _parameter(self, argument: Any) -> Any:
        """Return an argument that is no tensor, or a tensor of the model as an array; None for a computed tensor."""
        kept = self._kept.get(argument.name) if isinstance(argument, torch.fx.Node) else argument
        if not isinstance(kept, torch.Tensor):
            return kept
        return (kept.float() if kept.dtype is torch.bfloat16 else kept).detach().cpu().numpy()

    def _pool(self, pool: Callable[..., relax.Expr], node: torch.fx.Node) -> relax.Expr:
        shape = self._shape(first_tensor(node.meta["val"]))
        return self._emitted(pool(self.block_builder, self.env[node.args[0]], node, shape))


MOVES: dict[str, Callable[..., Any]] = {
    "constant_pad_nd.default": shapes.pad,
    "expand.default": shapes.expand,
    "repeat.default": shapes.repeat,
    "reshape.default": shapes.reshape,
    "roll.default": shapes.roll,
    "select.int": shapes.select,
    "slice.Tensor": shapes.cut,
    "split.Tensor": shapes.split,
    "split_with_sizes.default": shapes.split,
    "unfold.default": shapes.unfold,
    "view.default": shapes.reshape,
    "_unsafe_view.default": shapes.reshape,
}
"""The functions for operators that move elements."""


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
