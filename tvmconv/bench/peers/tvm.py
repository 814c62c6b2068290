"""Peers that are TVM alone: its definition of a convolution, scheduled by its default pipeline or by MetaSchedule."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
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
        with tempfile.TemporaryDirectory() as folder:
            search(workload, str(target), folder, TRIALS)
            kernel = best_kernel(workload, target, folder)
        if kernel is None:
            raise RuntimeError(f"none of {TRIALS} trials worked")
        return called(kernel, workload)


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


def search(workload: ConvWorkload, target: str, folder: str, trials: int) -> None:
    """Run MetaSchedule on the TE definition of a workload, with its database in the folder."""
    from tvm.s_tir import meta_schedule

    from tvmconv.targets import resolve_target

    with redirect_stdout(sys.stderr):  # where its progress belongs
        meta_schedule.tune_tir(
            _function(workload),
            resolve_target(target),
            folder,
            trials,
            builder=meta_schedule.builder.LocalBuilder(timeout_sec=BUILD_SECONDS),
            num_tuning_cores="logical",
        )


def best_kernel(workload: ConvWorkload, target: tvm.target.Target, folder: str) -> Executable | None:
    """Compile the best kernel in MetaSchedule's database; return None where no trial succeeded."""
    import tvm
    from tvm.s_tir import meta_schedule

    from tvmconv.lowering import KERNEL_NAME, build

    files = [Path(folder, f"database_{kind}.json") for kind in ("workload", "tuning_record")]
    if not all(file.exists() for file in files):
        return None
    database = meta_schedule.database.JSONDatabase(*map(str, files))
    mod = tvm.IRModule({"main": _function(workload)})
    record = database.query_tuning_record(mod, target, "main")
    if record is None:
        return None
    sch = tvm.s_tir.Schedule(mod)
    record.trace.apply_to_schedule(sch, remove_postproc=False)
    func = sch.mod["main"].with_attrs({"global_symbol": KERNEL_NAME, "tirx.is_scheduled": True})
    return build(tvm.IRModule({KERNEL_NAME: func}), target)


def _function(workload: ConvWorkload) -> Any:
    """Return the TE definition of a workload as a function of TIR."""
    from tvm import te

    from tvmconv import compute

    return te.create_prim_func((compute.depthwise if workload.is_depthwise else compute.direct)(workload))


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
