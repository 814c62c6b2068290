"""Types of torch's nodes: what they compute in, and whether what Relax makes of them has their type."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

HALF = (torch.float16, torch.bfloat16)

COMPUTING = frozenset(
    (
        "abs", "acos", "acosh", "_adaptive_avg_pool1d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
        "adaptive_avg_pool1d", "add", "addmm", "amax", "amin", "asin", "asinh", "atan", "atan2", "atanh", "avg_pool1d",
        "avg_pool2d", "avg_pool3d", "baddbmm", "bitwise_and", "bitwise_or", "bitwise_xor", "bmm", "bucketize", "cat",
        "ceil", "celu", "clamp", "convolution", "cos", "cosh", "cumprod", "cumsum", "div", "elu", "eq", "erf", "exp",
        "expm1", "floor", "floor_divide", "fmod", "ge", "gelu", "gt", "hardsigmoid", "hardswish", "hardtanh", "isfinite",
        "isinf", "isnan", "le", "leaky_relu", "linalg_vector_norm", "log", "log10", "log1p", "log2", "_log_softmax",
        "logaddexp", "lt", "maximum", "mean", "minimum", "mm", "mul", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "native_group_norm", "native_layer_norm", "ne", "neg", "pow", "prelu",
        "prod", "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sigmoid", "sign", "silu",
        "sin", "sinh", "_softmax", "softplus", "softshrink", "sqrt", "square", "stack", "std", "sub", "sum", "tan",
        "tanh", "trunc", "var", "where", *(
            name + suffix
            for name in ("upsample_linear", "upsample_bilinear", "upsample_trilinear", "upsample_bicubic")
            for suffix in ("1d", "2d", "3d")
        ), "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa",
    )
)  # fmt: skip
"""Operators whose tensors torch brings to one dtype before it computes, half precision to float32."""

LEFT_IN_FLOAT16 = frozenset(
    (
        "abs", "_adaptive_avg_pool2d", "add", "addmm", "amax", "amin", "avg_pool2d", "bmm", "clamp", "convolution",
        "hardtanh", "maximum", "mean", "minimum", "mm", "mul", "_native_batch_norm_legit_no_training", "neg", "relu",
        "relu6", "sub", "sum",
    )
)  # fmt: skip
"""Those which float16 changes nothing about: they round once, or `precision.py` has them add up in float32."""

MOVING = frozenset(("cat", "stack", "where"))
"""Those which compute nothing, but take tensors of one dtype only."""


def base_name(node: torch.fx.Node) -> str:
    """The operator without its overload, for example "add"."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def computed_in(node: torch.fx.Node) -> torch.dtype | None:
    """The dtype that the node's tensors are brought to; None where they are taken as they are."""
    name = base_name(node)
    result = first_tensor(node.meta.get("val"))
    values = [first_tensor(argument.meta.get("val")) for argument in _operands(node)]
    dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor)]
    if name not in COMPUTING or not dtypes or not isinstance(result, torch.Tensor) or result.is_complex():
        return None
    common = result.dtype
    if not common.is_floating_point:
        numbers = [argument for argument in node.args if isinstance(argument, (bool, int, float))]
        operands = [*values, *numbers] if name in ("eq", "ge", "gt", "le", "lt", "ne") else values
        common = reduce(torch.promote_types, dtypes) if len(operands) != 2 else torch.result_type(*operands)
        if not common.is_floating_point:
            common = torch.promote_types(common, result.dtype)
    is_left = name in MOVING or (common is torch.float16 and name in LEFT_IN_FLOAT16)
    return torch.float32 if common in HALF and not is_left else common


def _operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that are brought to a common dtype: all but a condition."""
    condition = node.args[0] if base_name(node) == "where" else None
    return [argument for argument in node.all_input_nodes if argument is not condition]


def first_tensor(value: Any) -> Any:
    """Torch's value of a node, the first one where it has several."""
    return value[0] if isinstance(value, (tuple, list)) and value else value


def given(node: torch.fx.Node, **defaults: Any) -> list[Any]:
    """The node's arguments behind its first, by position or name, with these names and defaults."""
    values = list(node.args[1:])
    return values + [node.kwargs.get(name, default) for name, default in list(defaults.items())[len(values) :]]


def relax_dtype(dtype: torch.dtype) -> str:
    """Relax's name of a dtype of torch; `NotImplementedError` for one that it has not, such as complex64."""
    return str(ExportedProgramImporter._convert_data_type(dtype))


def type_problem(value: Any, expected: Any) -> str:
    """What is wrong with the type of what Relax made of a node; nothing where it is that of torch's value."""
    if isinstance(expected, torch.Tensor):
        ty = getattr(value, "ty", None)
        if isinstance(ty, relax.TupleType):
            return "Relax makes more than one tensor of it"
        if not isinstance(ty, relax.TensorType):
            return ""
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
    """Whether the sizes are as many, and the same where both are numbers."""
    return len(shape) == len(expected) and all(
        int(size) == other for size, other in zip(shape, expected, strict=True)
        if isinstance(size, tirx.IntImm) and isinstance(other, int)
    )
