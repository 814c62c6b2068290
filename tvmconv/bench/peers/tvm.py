"""A peer that is TVM by itself: its definition of a convolution, scheduled by its default pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmconv.problem.activations import clip
from tvmconv.problem.workload import ConvWorkload

from .peer import Call, Operands, Peer

if TYPE_CHECKING:
    import tvm
    from tvm.runtime import Executable


class Tvm(Peer):
    """The kernel that Relax's default passes make of the convolution and its epilogue, called without Relax.

    On a CPU it is the naive direct convolution: the seven loops as they are defined, for one thread.
    """

    name = "tvm"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return None if workload.epilogue.row.definition is clip else "for relu, relu6 and clip"

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        import tvm
        from tvm import relax, tirx

        from tvmconv.lowering import KERNEL_NAME, build

        with target:
            mod = tvm.transform.Sequential(relax.pipeline.legalize_passes(target))(_module(workload))
        (func,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
        kernel = build(tvm.IRModule({KERNEL_NAME: func.with_attr("global_symbol", KERNEL_NAME)}), target)
        shapes = _shapes(workload)
        return kernel_calls(
            kernel, workload, [{name: t.reshape(shapes[name]) for name, t in operands.items()} for operands in sets]
        )


def kernel_calls(executable: Executable, workload: ConvWorkload, sets: Sequence[Operands]) -> list[Call]:
    """Return a call for each set of operands of a kernel built by `lowering`."""
    import torch

    from tvmconv.lowering import KERNEL_NAME

    kernel = executable[KERNEL_NAME]

    def call(operands: Operands) -> Any:
        x = operands["x"]
        output = torch.empty(workload.output_shape, dtype=x.dtype, device=x.device)
        kernel(*operands.values(), output)
        return output

    return [partial(call, operands) for operands in sets]


def _module(workload: ConvWorkload) -> tvm.IRModule:
    """Return the convolution in Relax, summed in float32."""
    from tvm import relax

    dtypes = {name: dtype for name, (_, dtype) in workload.operands.items()}
    operands = {
        name: relax.Var(name, relax.TensorType(shape, dtypes[name])) for name, shape in _shapes(workload).items()
    }
    builder, bounds = relax.BlockBuilder(), workload.epilogue
    with builder.function("main", list(operands.values())):
        with builder.dataflow():
            y = relax.op.nn.conv2d(
                operands["x"],
                operands["w"],
                strides=workload.stride,
                padding=workload.padding,
                dilation=workload.dilation,
                groups=workload.groups,
                out_dtype="float32",
            )
            y = relax.op.multiply(y, operands["scale"]) if bounds.scale else y
            y = relax.op.add(y, operands["shift"]) if bounds.shift else y
            y = relax.op.add(y, relax.op.astype(operands["residual"], "float32")) if bounds.residual else y
            y = y if bounds.low is None else relax.op.maximum(y, relax.const(bounds.low, "float32"))
            y = y if bounds.high is None else relax.op.minimum(y, relax.const(bounds.high, "float32"))
            result = builder.emit_output(relax.op.astype(y, workload.dtype))
        builder.emit_func_output(result)
    return builder.get()


def _shapes(workload: ConvWorkload) -> dict[str, tuple[int, ...]]:
    """Return the operands' shapes as Relax takes them: w (K, C / groups, R, S), vectors (K, 1, 1)."""
    vector = (workload.out_channels, 1, 1)
    w_shape = workload.out_channels, workload.in_channels // workload.groups, *workload.kernel
    whole = {"x": workload.x_shape, "w": w_shape, "residual": workload.output_shape}
    *inputs, _ = workload.operands
    return {name: whole.get(name, vector) for name in inputs}
