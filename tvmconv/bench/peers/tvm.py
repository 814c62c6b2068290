"""Peers that are TVM alone: its definition of a convolution, scheduled by its default pipeline or by MetaSchedule."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from tvmconv.problem.activations import clip
from tvmconv.problem.workload import ConvWorkload

from .peer import Function, Operands, not_installed

if TYPE_CHECKING:
    import tvm
    from tvm.runtime import Executable

TRIALS = 64
"""The trials of MetaSchedule as a peer."""

BUILD_SECONDS = 120
"""The seconds that one of MetaSchedule's builds may take.

Its workers import TVM's tensor intrinsics for half a minute, which is all the time that it gives them by default.
"""


class Tvm(Function):
    """The kernel that Relax's default passes make of the convolution and its epilogue, called without Relax.

    On a CPU it is the naive direct convolution: the seven loops as they are defined, for one thread.
    """

    name = "tvm"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return None if workload.epilogue.row.definition is clip else "for relu, relu6 and clip"

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import tvm
        from tvm import relax, tirx

        from tvmconv.lowering import KERNEL_NAME, build

        with target:
            mod = tvm.transform.Sequential(relax.pipeline.legalize_passes(target))(_module(workload))
        (func,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
        kernel = build(tvm.IRModule({KERNEL_NAME: func.with_attr("global_symbol", KERNEL_NAME)}), target)
        return called(kernel, workload)

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        shapes = _shapes(workload)
        return {name: tensor.reshape(shapes[name]) for name, tensor in operands.items()}


class MetaSchedule(Function):
    """The best of 64 trials of `tune_tir`, which take minutes."""

    name = "metaschedule"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return not_installed("cloudpickle", "psutil", "xgboost")

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import tvm
        from tvm import te
        from tvm.s_tir import meta_schedule

        from tvmconv import compute
        from tvmconv.lowering import KERNEL_NAME, build

        definition = (compute.depthwise if workload.is_depthwise else compute.direct)(workload)
        function = te.create_prim_func(definition)
        mod = tvm.IRModule({"main": function})
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):  # where its progress belongs
            builder = meta_schedule.builder.LocalBuilder(timeout_sec=BUILD_SECONDS)
            how = {"builder": builder, "num_tuning_cores": "logical"}
            database = meta_schedule.tune_tir(function, target, folder, TRIALS, **how)
            record = database.query_tuning_record(mod, target, "main")
        if record is None:
            raise RuntimeError(f"none of {TRIALS} trials worked")
        sch = tvm.s_tir.Schedule(mod)
        record.trace.apply_to_schedule(sch, remove_postproc=False)
        func = sch.mod["main"].with_attrs({"global_symbol": KERNEL_NAME, "tirx.is_scheduled": True})
        return called(build(tvm.IRModule({KERNEL_NAME: func}), target), workload)


def called(executable: Executable, workload: ConvWorkload) -> Callable[..., Any]:
    """Return a function of the operands of a kernel built by `lowering`, in their order."""
    import torch

    from tvmconv.lowering import KERNEL_NAME

    kernel = executable[KERNEL_NAME]

    def call(**operands: Any) -> Any:
        x = operands["x"]
        output = torch.empty(workload.output_shape, dtype=x.dtype, device=x.device)
        kernel(*operands.values(), output)
        return output

    return call


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
