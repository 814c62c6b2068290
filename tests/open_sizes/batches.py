"""Problems and a network with an open batch, and kernels of them as those of a known one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvmconv
from tests.schedules.cases.tensor import FIRST, MMA, WGMMA, layer, mma, wgmma
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.dispatch import Selection, select
from tvmconv.lowering import KERNEL_NAME, build, build_function, lower
from tvmconv.lowering.serial import TWIN_TARGET, serial_twin, with_shapes
from tvmconv.network import Layer, Model
from tvmconv.network.graph.graph import calls
from tvmconv.network.runtime.network import Network
from tvmconv.problem import Problem
from tvmconv.schedules.cuda import tensor
from tvmconv.targets import resolve_target, tensor_instructions
from tvmconv.testing import check_result, random_operands


class Open(NamedTuple):
    """A problem with open sizes, and what its kernel is made with."""

    problem: Problem
    """The problem at the sizes that the configuration is chosen for."""
    algorithm: str
    knobs: Mapping[str, Any] = MappingProxyType({})
    """The knobs that are not those of the default configuration."""
    config: Any = None
    """The whole configuration; None for the default one."""
    open_sizes: tuple[str, ...] = ("batch",)

    @property
    def open(self) -> Problem:
        return msgspec.structs.replace(self.problem, open_sizes=self.open_sizes)

    def selection(self, target: tvm.target.Target) -> Selection:
        config = self.config or select(self.open, target, algorithm=self.algorithm).config
        return select(self.open, target, replace(config, **self.knobs), self.algorithm)

    def func(self, target: tvm.target.Target) -> tirx.PrimFunc:
        return lower(self.open, self.selection(target), target, KERNEL_NAME)

    def at(self, batch: int) -> ConvWorkload:
        return msgspec.structs.replace(self.problem.workload, batch=batch)


def check_on_gpu(case: Open, workloads: Iterable[ConvWorkload]) -> None:
    """Build a case's kernel once, and check it on each of these workloads on a real GPU."""
    target, device = resolve_target("cuda"), tvm.cuda()
    if isinstance(case.config, tensor.Config):
        family = "wgmma" if case.config.wgmma else "mma"
        if family not in tensor_instructions(target):
            pytest.skip(f"this GPU has no {family}")
    kernel = build_function(case.func(target), target)
    for workload in workloads:
        operands = random_operands(workload)
        tensors = [tvm.runtime.tensor(array, device) for array in operands.values()]
        memory = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in kernel.workspace.sized(workload)]
        kernel.executable[KERNEL_NAME](*tensors, *memory)
        check_result(workload, operands, tensors[-1].numpy(), precision=case.problem.precision)


def dense(x: tuple[int, ...], w: tuple[int, ...], algorithm: str = "direct", **options: Any) -> Open:
    knobs = options.pop("knobs", {})
    return Open(Problem(ConvWorkload.conv2d(x, w, **options)), algorithm, knobs)


def depthwise(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Open:
    return Open(Problem(ConvWorkload.depthwise(x, w, **options)), "depthwise")


EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu6"}

MANY_IMAGES = {"vthreads_m": 2, "store": 4, "split_k": 1}
"""Knobs of larger planes of many images: blocks of the large ones have pixels of several of these images."""

PLAIN = {
    "depthwise": depthwise((2, 6, 13, 11), (6, 1, 3, 3), scale=True, shift=True, activation="relu6"),
    "depthwise-small": depthwise((8, 12, 5, 5), (12, 2, 3, 3), stride=2, dtype="float16"),
    "depthwise-flat": depthwise((64, 64, 14, 14), (64, 1, 3, 3), residual=True),
    "direct": dense((2, 16, 9, 11), (24, 16, 3, 3), **EPILOGUE),
    "direct-split-k": dense((2, 16, 9, 11), (24, 16, 3, 3), knobs={"split_k": 4}, **EPILOGUE),
    "direct-even-plane": dense((2, 16, 10, 10), (24, 16, 3, 3), stride=2, knobs={"split_k": 1}),
    "direct-tile-in-plane": dense((1, 8, 8, 8), (16, 8, 3, 3), dtype="float16"),
    "direct-plane-in-tile": dense((4, 16, 4, 4), (24, 16, 1, 1), knobs={"split_k": 1}),
    "direct-one-pixel": dense((5, 16, 3, 3), (24, 16, 3, 3), padding=0, dtype="bfloat16"),
    "direct-groups": dense((3, 16, 12, 12), (64, 8, 3, 3), groups=2, dilation=2, scale=True),
    "direct-many-images": dense(
        *((64, 16, 6, 6), (32, 16, 3, 3)),
        knobs={**MANY_IMAGES, "block_c": 8, "block_r": 1, "block_s": 1},
        residual=True,
    ),
    "im2win": dense((2, 16, 9, 11), (24, 16, 3, 3), "im2win", knobs={"split_k": 1}, **EPILOGUE),
    "im2win-split-k": dense((2, 16, 10, 10), (24, 16, 3, 3), "im2win", knobs={"split_k": 2}, stride=2),
    "im2win-many-images": dense(
        (64, 16, 6, 6), (32, 16, 5, 5), "im2win", knobs={**MANY_IMAGES, "split_k": 4, "threads_n": 16}, dtype="float16"
    ),
}

TENSOR = {
    "mma": Open(layer((2, 64, 7, 9), (64, 64, 3, 3), **EPILOGUE), "tensor", config=MMA),
    "wgmma": Open(layer((2, 64, 7, 9), (64, 64, 3, 3), "bfloat16"), "tensor", config=WGMMA),
    "channel-rows": Open(layer((2, 64, 7, 9), (64, 64, 3, 3)), "tensor", config=wgmma(40, 64, 1, 1, channel_rows=True)),
    "nchw": Open(layer((2, 24, 10, 10), (32, 24, 3, 3), layouts=FIRST, **EPILOGUE), "tensor", config=MMA),
    "nchw-wgmma": Open(layer((2, 24, 8, 8), (32, 24, 3, 3), layouts=FIRST), "tensor", config=WGMMA),
    "tile-is-plane": Open(layer((2, 64, 8, 8), (32, 64, 1, 1)), "tensor", config=WGMMA),
    "one-pixel": Open(layer((2, 64, 1, 1), (32, 64, 1, 1)), "tensor", config=mma(16, 32, 1, 2)),
    "split-k": Open(layer((2, 64, 7, 9), (64, 64, 3, 3), **EPILOGUE), "tensor", config=mma(32, 32, 2, 1, split_k=3)),
    "cluster": Open(
        layer((2, 64, 7, 9), (64, 64, 3, 3), **EPILOGUE),
        "tensor",
        config=mma(32, 32, 2, 1, split_k=2, in_cluster=True),
    ),
    "groups-nchw-split-k": Open(
        layer((1, 48, 6, 6), (64, 24, 3, 3), groups=2, layouts=FIRST), "tensor", config=wgmma(64, 32, 1, 1, split_k=2)
    ),
    "groups": Open(layer((2, 256, 5, 5), (128, 64, 1, 1), groups=4), "tensor", config=WGMMA),
    "float32": Open(layer((2, 32, 7, 6), (32, 32, 3, 3), "float32", stride=2), "tensor", config=MMA),
    "int8": Open(
        layer((2, 64, 7, 6), (32, 64, 3, 3), "uint8", out_dtype="int8", x_zero_point=7, out_zero_point=3, scale=True),
        "tensor",
        config=MMA,
    ),
    "tf32-nchw": Open(
        layer((2, 32, 10, 10), (32, 32, 3, 3), "float32", FIRST, precision="tf32"), "tensor", config=WGMMA
    ),
}

GROUPED = {
    "grouped": Open(layer((2, 64, 7, 9), (64, 16, 3, 3), groups=4, **EPILOGUE), "grouped"),
    "grouped-pairs": Open(layer((2, 16, 9, 7), (16, 4, 3, 3), "bfloat16", groups=4, stride=2), "grouped"),
}

CASES = {**PLAIN, **TENSOR, **GROUPED}

KERNEL_CALLS = ("call_tir", "call_tir_inplace")

BATCHES = (1, 3, 7)
"""Batches with another number of tiles each, the last of which ends at different pixels of a tile."""


def with_twins(mod: tvm.IRModule, sizes: Mapping[str, int]) -> tvm.IRModule:
    """Return a network's module with the serial twins of its kernels for these sizes."""
    known, twins = relax.transform.BindSymbolicVars(dict(sizes))(mod), mod.clone()

    def visit(call: relax.Expr) -> None:
        if calls(call, *KERNEL_CALLS) and "tvmconv_" in call.args[0].name_hint:
            output = call.ty.fields[0] if isinstance(call.ty, tvm.ir.TupleType) else call.ty
            shapes = [[int(size) for size in ty.shape] for ty in (call.args[1][0].ty, output)]
            name = call.args[0].name_hint
            twins[name] = serial_twin(with_shapes(mod[name], dict(zip(("x", "output"), shapes, strict=True))))

    relax.analysis.post_order_visit(known["main"], visit)
    return twins


def network_of_twins(
    source: Model, mod: tvm.IRModule, layers: tuple[Layer, ...], sizes: Mapping[str, int] = MappingProxyType({})
) -> Network:
    """Return a network for a GPU, of a model and its module with kernels, as serial code on the CPU for these sizes."""
    cpu = resolve_target(TWIN_TARGET)
    executable = build(with_twins(mod, sizes), cpu)
    return Network(executable, str(cpu), source.inputs, source.outputs, layers, ())


def model(batch: int | str) -> tvmconv.Model:
    """Return a model with convolutions of two templates, and with a linear layer, which gets a kernel too."""
    graph = Graph((batch, 16, 8, 8))
    y = graph.node("Relu", graph.conv("x", (24, 16, 3, 3), pads=[1] * 4))
    y = graph.node("Relu", graph.conv(y, (24, 1, 3, 3), pads=[1] * 4, group=24))
    y = graph.node("Add", graph.conv(y, (16, 24, 1, 1)), "x")
    y = graph.node("Flatten", graph.node("GlobalAveragePool", y))
    return tvmconv.import_model(graph.model(graph.node("Gemm", y, graph.random(16, 10))))


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 16, 8, 8)).astype("float32")
