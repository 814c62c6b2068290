"""Types of torch's nodes: the dtype that a node computes in, and a check of the type that Relax gave it."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvmconv.problem.dtypes import NARROW

HALF = tuple(getattr(torch, name) for name in NARROW)

COMPUTING = frozenset(
    (
        "abs", "acos", "acosh", "_adaptive_avg_pool1d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "add", "addmm", "amax", "amin",
        "argmax", "argmin", "argsort", "asin", "asinh", "atan", "atan2", "atanh", "avg_pool1d", "avg_pool2d",
        "avg_pool3d", "baddbmm", "bitwise_and", "bitwise_or", "bitwise_xor", "bmm", "bucketize", "cat", "ceil",
        "celu", "clamp", "convolution", "cos", "cosh", "cumprod", "cumsum", "div", "elu", "eq", "erf", "exp",
        "expm1", "floor", "floor_divide", "fmod", "ge", "gelu", "grid_sampler_2d", "grid_sampler_3d", "gt",
        "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "le", "leaky_relu", "log",
        "log10", "log1p", "log2", "_log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or",
        "logical_xor", "lt", "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "maximum", "mean",
        "median", "min", "minimum", "mm", "mul", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "native_group_norm", "native_layer_norm", "ne", "neg", "pow",
        "prelu", "prod", "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "selu", "sigmoid",
        "sign", "silu", "sin", "sinh", "_softmax", "softplus", "softshrink", "sort", "sqrt", "square", "stack",
        "std", "sub", "sum", "tan", "tanh", "topk", "trunc", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
        "upsample_bilinear2d", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa", "upsample_linear1d",
        "upsample_trilinear3d", "var", "where",
    )
)  # fmt: skip
"""Operators whose tensors torch brings to one dtype before it computes, half precision to float32."""

LEFT_IN_FLOAT16 = frozenset(
    (
        "abs", "_adaptive_avg_pool2d", "add", "addmm", "amax", "amin", "avg_pool2d", "bmm", "clamp",
        "convolution", "hardtanh", "max_pool2d_with_indices", "maximum", "mean", "minimum", "mm", "mul",
        "_native_batch_norm_legit_no_training", "neg", "relu", "relu6", "sub", "sum",
    )
)  # fmt: skip
"""The operators among `COMPUTING` that stay in float16: they round once, or `arithmetic.py` makes them sum in float32.
"""

MOVING = frozenset(("cat", "stack", "where"))
"""Operators that compute nothing but take tensors of one dtype only."""

BROADCASTING = {
    **dict.fromkeys(
        (
            "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "eq", "floor_divide", "fmod", "ge", "gt",
            "le", "logaddexp", "logical_and", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul", "ne",
            "pow", "remainder", "sub", "where",
        ),
        0,
    ),
    **dict.fromkeys(("baddbmm", "bmm"), 2),
}  # fmt: skip
"""Operators of tensors that are broadcast to one shape, with the number of last axes that are not."""

LOGICAL = frozenset(
    ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_not", "logical_or", "logical_xor")
)
"""Operators that compute with truth values; Relax's arithmetic would add them up to 1 bit."""

COMPARING = frozenset(("eq", "ge", "gt", "le", "lt", "ne"))

OF_FLOATS = frozenset(("isfinite", "isinf", "isnan"))
"""Operators that Relax has for floating point alone."""


def base_name(node: torch.fx.Node) -> str:
    """Return the operator without its overload, for example "add"."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def computing_dtype(node: torch.fx.Node) -> torch.dtype | None:
    """Return the dtype to bring the node's tensors to; None where they are taken as they are."""
    name, result = base_name(node), first_tensor(node.meta.get("val"))
    values = [first_tensor(argument.meta.get("val")) for argument in _operands(node)]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if name not in COMPUTING or not dtypes or not isinstance(result, torch.Tensor) or result.is_complex():
        return None
    common = result.dtype
    if not common.is_floating_point:
        numbers = [argument for argument in node.args if isinstance(argument, (bool, int, float))]
        compared = [*values, *numbers] if name in COMPARING else []
        common = (
            torch.result_type(*compared) if len(compared) == 2 else reduce(torch.promote_types, sorted(dtypes, key=str))
        )
        if common.is_floating_point == result.dtype.is_floating_point:
            common = torch.promote_types(common, result.dtype)
    if name in MOVING or (name in LEFT_IN_FLOAT16 and dtypes == {torch.float16} == {common}):
        return common
    if common in HALF or (name in OF_FLOATS and not common.is_floating_point):
        return torch.float32
    return torch.int32 if common is torch.bool and name not in LOGICAL else common


def node_words(node: torch.fx.Node) -> str:
    """Describe a node, as in "aten.fft.default (node 'fft' in encoder.0)"."""
    modules = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
    return f"{node.target} (node {node.name!r}{f' in {modules[-1]}' if modules else ''})"


def _operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the nodes that are brought to a common dtype: all but a condition."""
    condition = node.args[0] if base_name(node) == "where" else None
    return [argument for argument in node.all_input_nodes if argument is not condition]


def first_tensor(value: Any) -> Any:
    """Return torch's value of a node, the first one where it has several."""
    return value[0] if isinstance(value, (tuple, list)) and value else value


def arguments_of(node: torch.fx.Node, **defaults: Any) -> list[Any]:
    """Return the node's arguments behind its first, by position or name, with these names and defaults."""
    values = list(node.args[1:])
    return values + [node.kwargs.get(name, default) for name, default in list(defaults.items())[len(values) :]]


def relax_dtype(dtype: torch.dtype) -> str:
    """Return Relax's name of a dtype of torch; raise `NotImplementedError` for one that it lacks, such as complex64."""
    return str(ExportedProgramImporter._convert_data_type(dtype))


def type_problem(value: Any, expected: Any) -> str:
    """Describe how the type that Relax gave a node differs from torch's; an empty text if it does not."""
    if isinstance(expected, torch.Tensor):
        ty = getattr(value, "ty", None)
        if isinstance(ty, relax.TupleType):
            return "Relax makes more than one tensor of it"
        if not isinstance(ty, relax.TensorType):
            return ""
        if expected.layout is not torch.strided:
            return f"it is of the layout {expected.layout}"
        dtype = relax_dtype(expected.dtype)
        if str(ty.dtype) != dtype:
            return f"Relax makes {ty.dtype} of it, torch {dtype}"
        if isinstance(ty.shape, relax.ShapeExpr) and not _same_shape(ty.shape, expected.shape):
            return f"Relax gives it the shape {tuple(ty.shape)}, torch {tuple(expected.shape)}"
    elif isinstance(expected, (tuple, list)):
        fields = value if isinstance(value, (tuple, list)) else getattr(value, "fields", None)
        if fields is not None:
            return next(filter(None, map(type_problem, fields, expected)), "")
    return ""


def _same_shape(shape: relax.ShapeExpr, expected: torch.Size) -> bool:
    """Return whether two shapes have the same number of sizes, and equal ones where both are numbers."""
    return len(shape) == len(expected) and all(
        int(size) == other
        for size, other in zip(shape, expected, strict=True)
        if isinstance(size, tirx.IntImm) and isinstance(other, int)
    )
