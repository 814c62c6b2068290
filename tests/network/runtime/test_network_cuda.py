"""Networks built for CUDA without a GPU: their source has to compile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import helper, numpy_helper
from tvm import relax, te
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.relax.backend.cuda.pipeline import finalize_passes
from tvm.s_tir import Schedule

import tvmconv
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.grouped import groups
from tests.schedules.cases.matvec import rows
from tests.schedules.cases.tensor import FIRST, Layouts, layer
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels, with_precision
from tests.shared.sparing import every
from tvmconv import ConvWorkload, lowering
from tvmconv.autotvm.task import create, extract_from_model
from tvmconv.dispatch import Selection, select
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.network.between.gpu.fusion import lower_and_fuse_for_gpu
from tvmconv.network.passes.convolutions.packing import split_packing
from tvmconv.network.passes.execution import network_pipeline, with_cuda_graphs
from tvmconv.network.runtime.session import IN_CAPTURE, IN_GRAPHS, IN_MEMORY
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.model.rates import rates_of
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import gpu_of
from tvmconv.testing import check_result, random_operands, serial_twin

LAYOUTS = Layouts("NHWC", "KCRS", "NHWC")
"""The layouts of a network's convolutions on tensor cores."""

WIDE = ConvWorkload.depthwise((2, 3, 14, 14), (3, 1, 13, 12), dtype="float16")
"""A convolution of many taps."""

LAID_OUT = {
    "direct": ("direct", layer((2, 16, 9, 11), (24, 16, 3, 3), "float32", FIRST, residual=True), {}, ["packed"]),
    "parts": ("direct", layer((2, 16, 9, 11), (24, 16, 3, 3), "float32", FIRST), {"split_k": 2}, ["packed"]),
    "tensor": ("tensor", layer((2, 64, 9, 7), (24, 64, 3, 3), layouts=LAYOUTS, shift=True), {}, ["packed"]),
    "linear": ("linear", rows(36, 70, 64, shift=True), {}, ["image"]),
    "winograd": (
        "winograd", layer((2, 64, 9, 7), (24, 64, 3, 3), "float32", LAYOUTS, shift=True), {}, ["weight_points"]
    ),
    "grouped": ("grouped", groups(4, 8, (2, 9, 11), w_layout="KCRS"), {}, ["packed"]),
    "shallow": ("shallow", layer((2, 3, 9, 11), (24, 3, 3, 3), layouts=FIRST), {}, ["packed"]),
    "bands": ("depthwise_bands", Problem(WIDE), {}, ["packed"]),
    "zero-point": (
        "tensor", layer((2, 64, 9, 7), (24, 64, 1, 1), "uint8", LAYOUTS, x_zero_point=3), {}, ["w", "offsets"]
    ),
}  # fmt: skip
"""Problems by the algorithms that solve them, knobs that are other than by default, and what a network's kernel reads
instead of the weight."""


def chosen(name: str) -> tuple[Problem, Selection]:
    """Return a problem of `LAID_OUT` with the configuration for it."""
    algorithm, problem, knobs, _ = LAID_OUT[name]
    selection = select(problem, SM_90, algorithm=algorithm)
    return problem, select(problem, SM_90, replace(selection.config, **knobs))


@pytest.mark.parametrize("name", LAID_OUT)
def test_kernel_with_the_weight_laid_out_ahead(name: str) -> None:
    problem, selection = chosen(name)
    kernel, packing = split_packing(lowering.lower(problem, selection, SM_90, lowering.KERNEL_NAME))
    assert packing is not None
    *_, read = LAID_OUT[name]
    assert [str(param.name) for param in kernel.params[1 : 1 + len(read)]] == read
    operands = random_operands(problem.workload)
    x, _, *others = map(tvm.runtime.tensor, operands.values())
    twin = tvm.IRModule({lowering.KERNEL_NAME: serial_twin(kernel)})
    executable = lowering.build(twin, resolve_target(TWIN_TARGET))
    executable[lowering.KERNEL_NAME](x, *packing(operands["w"]), *others)
    check_result(problem.workload, operands, others[-1].numpy())


def test_what_the_kernel_begins_stays_in_it() -> None:
    """Sums of the weight that begin with zeros in a step of its own would be overwritten by that in each call."""
    x, w, k = te.placeholder((8,), name="x"), te.placeholder((8, 4), name="w"), te.reduce_axis((0, 4))
    sums = te.compute((8,), lambda i: te.sum(w[i, k], axis=k), name="sums")
    schedule = Schedule(te.create_prim_func([x, w, te.compute((8,), lambda i: x[i] + sums[i], name="output")]))
    block = schedule.get_sblock("sums")
    assert split_packing(schedule.mod["main"])[1] is not None
    schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    func = schedule.mod["main"]
    assert split_packing(func) == (func, None)


@pytest.mark.parametrize("name", LAID_OUT)
def test_estimate_leaves_out_what_is_laid_out_ahead(name: str) -> None:
    problem, selection = chosen(name)
    clocks, ahead = (
        selection.template.estimate(msgspec.structs.replace(problem, constant_weight=constant), selection.config, SM_90)
        for constant in (False, True)
    )
    assert clocks - ahead > 0.999 * rates_of(gpu_of(SM_90)).further


def test_tasks_are_of_the_templates_that_the_network_takes() -> None:
    """Of an operator, which lays its weight out in each call, that is another one."""
    graph = Graph((1, 320, 14, 14))
    model = tvmconv.import_model(graph.model(graph.node("Relu", graph.conv("x", (128, 320, 1, 1), bias=True))))
    (task,) = extract_from_model(model, SM_90)
    _, (layer,) = use_kernels(model.mod, SM_90)
    assert layer.kernel == f"tvmconv {task.name}"
    assert create(task.workload, SM_90).name != task.name


@pytest.mark.parametrize("name", ["x", "data.0", "gpu_0/data-0", "0"])
def test_source_compiles_whatever_the_input_is_called(name: str) -> None:
    weights = {"w": (4, 1, 3, 3), "v": (8, 4, 1, 1)}
    graph = helper.make_graph(
        [helper.make_node("Conv", [name, "w"], ["y"], group=4), helper.make_node("Conv", ["y", "v"], ["z"])],
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 4, 8, 8))],
        [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 8, 6, 6))],
        [numpy_helper.from_array(np.ones(shape, "float32"), weight) for weight, shape in weights.items()],
    )
    model = tvmconv.import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    assert model.inputs[0].name == name
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod, layers = use_kernels(model.mod, target)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/depthwise", "tvmconv cuda/direct"]
    kernels = [cuda.kernel_resources(source, "sm_90") for source in cuda.sources(lowering.build(mod, target).mod)]
    names = sorted(kernel.name for each in kernels for kernel in each)
    assert re.fullmatch("tvmconv_depthwise_[0-9a-f]{12}_kernel tvmconv_direct_[0-9a-f]{12}_kernel", " ".join(names))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_linear_layers_get_kernels(rows: int) -> None:
    graph = Graph((rows, 8))
    model = tvmconv.import_model(graph.model(graph.node("Relu", graph.node("Gemm", "x", graph.random(8, 6)))))
    _, layers = use_kernels(model.mod, resolve_target({"kind": "cuda", "arch": "sm_90"}))
    assert [layer.kernel for layer in layers] == [f"tvmconv cuda/{'matvec' if rows < 5 else 'direct'}"]


@pytest.mark.parametrize("word", every(2, ["float16", "bfloat16"]))
def test_one_row_has_a_weight_of_halves(word: str) -> None:
    """It is read as it lies: nothing lays it out, and there is no second one in float32."""
    graph = Graph((1, 512))
    model = tvmconv.import_model(graph.model(graph.node("Relu", graph.node("Gemm", "x", graph.random(512, 24)))))
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod, layers = use_kernels(with_precision(model.mod, target, word)[0], target)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/matvec"]
    constants: list[tvm.ir.GenericConst] = []
    tvm_ffi.structural_walk(mod["main"], [(tvm.ir.GenericConst, constants.append)])
    assert [(tuple(each.value.shape), str(each.value.dtype)) for each in constants] == [((24, 512, 1, 1), word)]


def test_convolutions_of_tvm_are_not_fused() -> None:
    """TVM schedules a fused grouped convolution wrong for a GPU; equal ones still share a function."""
    graph = Graph((1, 8, 9, 9))
    y = "x"
    for _ in range(2):
        y = graph.node("Relu", graph.batch_norm(graph.conv(y, (8, 4, 1, 1), group=2), 8))
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod = lower_and_fuse_for_gpu(tvmconv.import_model(graph.model(y)).mod, target)
    sources = cuda.sources(lowering.build(mod, target).mod)
    kernels = [kernel.name for source in sources for kernel in cuda.kernel_resources(source, "sm_90")]
    assert [name for name in kernels if "conv2d" in name] == ["conv2d1_kernel"]


@contextmanager
def registered(functions: dict[str, Callable[..., object]]) -> Iterator[None]:
    """Register functions instead of TVM's for CUDA graphs, which only a GPU has, during the block."""
    names = {f"vm.builtin.cuda_graph.{name}": function for name, function in functions.items()}
    before = {name: tvm.get_global_func(name, allow_missing=True) for name in names}
    for name, function in names.items():
        tvm.register_global_func(name, function, override=True)
    yield
    for name, old in before.items():
        if old is None:
            tvm_ffi.registry.remove_global_func(name)
        else:
            tvm.register_global_func(name, old, override=True)


def five_layers(batch: int | str = 1) -> tvmconv.Model:
    graph = Graph((batch, 4, 12, 12))
    y = "x"
    for _ in range(5):
        y = graph.node("Relu", graph.conv(y, (4, 4, 3, 3)))
    return tvmconv.import_model(graph.model(y))


def calls(mod: tvm.IRModule, function: str) -> list[str]:
    """Return the names of functions of the module, or of TVM's for graphs, that a function calls."""
    found = []
    for block in mod[function].body.blocks:
        for value in (binding.value for binding in block.bindings if isinstance(binding.value, relax.Call)):
            if isinstance(value.op, tvm.ir.GlobalVar):
                found.append(value.op.name_hint)
            elif isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_builtin_with_ctx":
                found.append(str(value.args[0].global_symbol).removeprefix("vm.builtin.cuda_graph."))
    return found


def test_launches_in_between_are_one_graph() -> None:
    """The graph has all but those that read the input or write the output; a caller's capture has them one by one."""
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod = network_pipeline(target)(use_kernels(five_layers().mod, target)[0])
    memory, first, graph, last = calls(mod, "main")
    assert (memory, graph) == ("get_cached_alloc", "run_or_capture")
    assert calls(mod, IN_CAPTURE) == [memory, first, "main_cuda_graph_capture", last]
    captured = calls(mod, "main_cuda_graph_capture")
    assert len(captured) == 3
    assert all(name.startswith("tvmconv_direct") for name in (first, *captured, last))


def test_a_graph_for_each_batch() -> None:
    """It is for the batch and the memory that it was captured with; "main", whose memory may move, has no graph."""
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod = network_pipeline(target)(use_kernels(five_layers("n").mod, target)[0])
    names = ("main", IN_MEMORY, IN_GRAPHS, f"{IN_GRAPHS}_cuda_graph_capture")
    launches = ("tvmconv_direct", "main", "run_or_capture")
    named = {name: [each for each in calls(mod, name) if each.startswith(launches)] for name in names}
    first, graph, last = named[IN_GRAPHS]
    assert graph == "run_or_capture"
    assert named[IN_MEMORY] == [first, names[-1], last]
    assert named["main"] == [IN_MEMORY]
    assert len(named[names[-1]]) == 3
    assert [size.name for size in mod[names[-1]].params[-1].ty.values] == ["n", "memory_0_bytes", "memory_1_bytes"]
    assert IN_CAPTURE not in {var.name_hint for var in mod.get_global_vars()}


@pytest.mark.parametrize("axis", [1, 3])
def test_sorting_is_in_no_graph(axis: int) -> None:
    """TVM's kernels for it have a workspace in TVM's pool, whose pages do not stay where they are."""
    graph = Graph((1, 4, 9, 9))
    y = graph.node("Relu", graph.conv("x", (8, 4, 3, 3)))
    sums = graph.node("Relu", graph.node("CumSum", y, graph.constant(axis, "int64")))
    model = graph.model(graph.node("Relu", graph.conv(sums, (8, 8, 3, 3))))
    network = tvmconv.build(tvmconv.import_model(model), {"kind": "cuda", "arch": "sm_90"})
    assert "run_or_capture" not in network._executable.as_text()


def test_users_may_do_without_graphs() -> None:
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    assert "run_or_capture" in tvmconv.build(five_layers(), target)._executable.as_text()
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": False}):
        assert "run_or_capture" not in tvmconv.build(five_layers(), target)._executable.as_text()


def test_a_capture_is_refused_where_memory_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph((1, 4, 12, 12))
    network = tvmconv.build(graph.model(graph.node("Relu", "x")))
    monkeypatch.setattr("tvmconv.runtime.arrays.is_in_capture", lambda array: True)
    with pytest.raises(InvalidArgumentError, match="one with CUDA graphs of its own"):
        network(np.zeros((1, 4, 12, 12), "float32"))


def test_both_functions_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run on the CPU, with the launches instead of the graph; workspaces do no harm there."""
    monkeypatch.setattr("tvmconv.network.passes.execution.has_workspace", lambda func: False)
    replayed: list[int] = []
    kept: dict[int, object] = {}
    invoke = tvm.get_global_func("vm.builtin.invoke_closure")

    def run_or_capture(context: object, function: object, arguments: list[object], index: int) -> object:
        replayed.append(index)
        return invoke(context, function, *arguments)

    def get_cached_alloc(context: object, function: object, index: int) -> object:
        if index not in kept:
            kept[index] = invoke(context, function)
        return kept[index]

    model, target = five_layers(), resolve_target("llvm")
    passes = [*cpu.library_dispatch_passes(target), *cpu.legalize_passes(target), *cpu.dataflow_lower_passes(target)]
    pipeline = tvm.transform.Sequential([*passes, *with_cuda_graphs(finalize_passes(target))])
    executable = lowering.build(use_kernels(model.mod, target)[0], target, pipeline)
    with registered({"run_or_capture": run_or_capture, "get_cached_alloc": get_cached_alloc}):
        machine = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu())
    reference = tvmconv.build(model)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 4, 12, 12)).astype("float32")
        for function in ("main", IN_CAPTURE):
            np.testing.assert_array_equal(machine[function](tvm.runtime.tensor(x)).numpy(), reference(x))
    assert replayed == [0] * 3
