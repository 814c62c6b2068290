"""The memory of networks with open sizes: what is shared, what is kept between calls, and when graphs are dropped."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.relax.backend.cuda.pipeline import finalize_passes
from tvm.runtime.vm import VirtualMachine
from tvm.tirx.analysis import undefined_vars

import tvmconv
from tests.shared.network_graph import Graph, check_network
from tvmconv import lowering
from tvmconv.compute.substitution import evaluated
from tvmconv.network.graph.graph import calls
from tvmconv.network.passes.execution import with_cuda_graphs
from tvmconv.network.passes.execution.memory_plan import plan_memory
from tvmconv.network.runtime import session as sessions
from tvmconv.network.runtime.session import IN_MEMORY, MEMORY_SIZES, Session
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import resolve_target

CPU = resolve_target("llvm")
MEGABYTE = 2**20
SHAPES = ((2, 9, 11), (1, 4, 5), (3, 12, 10), (1, 4, 5), (2, 9, 11), (1, 16, 30), (3, 12, 10), (1, 4, 5))
"""Batches with heights and widths, in an order in which memory grows and is large enough in turns."""


def branches(dtype: str = "float32", shape: tuple[int | str, ...] = ("n", 3, "h", "w")) -> ModelProto:
    """Return a model with tensors that are in use for long, joined and of half the size, and an output that is read."""
    graph = Graph(shape, dtype)
    first = graph.node("Relu", graph.conv("x", (16, 3, 3, 3), pads=[1] * 4))
    small = graph.node("Relu", graph.conv(first, (24, 16, 3, 3), pads=[1] * 4, strides=[2, 2]))
    small = graph.node("GlobalAveragePool", graph.conv(small, (16, 24, 1, 1)))
    sums = graph.node("Add", graph.conv(first, (16, 16, 1, 1)), first)
    parts = sums, graph.conv("x", (8, 3, 1, 1)), graph.conv(sums, (16, 16, 3, 3), pads=[1] * 4)
    y = graph.node("Sigmoid", graph.conv(graph.node("Concat", *parts, axis=1), (16, 40, 1, 1)))
    return graph.model(graph.node("Mul", graph.node("Add", y, sums), small), sums)


def images(batch: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, height, width)).astype("float32")


@pytest.fixture(scope="module")
def network() -> tvmconv.Network:
    return tvmconv.build(tvmconv.import_model(branches()))


def check(x: np.ndarray, results: Any) -> None:
    check_network(lambda _: tuple(results), branches("float64"), x, 1e-5)


def test_no_call_is_disturbed_by_the_sizes_of_others(network: tvmconv.Network) -> None:
    """All results are compared at the end, so that none may have been overwritten."""
    inputs = [images(*shape) for shape in SHAPES]
    for x, results in zip(inputs, [network(x) for x in inputs], strict=True):
        check(x, results)


def test_nothing_that_memory_had_before_is_read(network: tvmconv.Network) -> None:
    """It is full of NaN here, and larger than it has to be."""
    x = images(2, 9, 11)
    operand = tvm.runtime.tensor(x)
    sizes = network.machine[MEMORY_SIZES](operand)
    memory = [tvm.runtime.tensor(np.full(size + 64, 255, "uint8")) for size in sizes]
    check(x, [y.numpy() for y in network.machine[IN_MEMORY](operand, *memory)])


def test_main_takes_memory_by_itself(network: tvmconv.Network) -> None:
    """A program without tvmconv calls it."""
    for shape in SHAPES[:3]:
        x = images(*shape)
        check(x, [y.numpy() for y in network.machine["main"](tvm.runtime.tensor(x))])


def test_an_array_is_as_large_as_the_largest_of_its_tensors() -> None:
    """Two of them hold a chain; TVM takes one for each size, as it does not compare open ones."""
    graph, y = Graph(("n", 4, 12, 12)), "x"
    for channels, of in ((8, 4), (12, 8), (6, 12), (10, 6), (5, 10)):
        y = graph.node("Relu", graph.conv(y, (channels, of, 3, 3)))
    mod = _lowered(tvmconv.import_model(graph.model(y)))
    before = relax.transform.StaticPlanBlockMemory()(mod)
    assert str(before["main"].script()).count("R.memory.alloc_storage") == 4
    planned = plan_memory(mod, sizes_known=False)
    sizes = planned[MEMORY_SIZES].ret_ty.values
    assert [evaluated(size, dict.fromkeys(undefined_vars(size), 7)) for size in sizes] == [
        7 * 4 * elements for elements in (8 * 10 * 10, 12 * 8 * 8)
    ]
    assert "alloc_storage" not in str(relax.transform.StaticPlanBlockMemory()(planned)[IN_MEMORY].script())


def storage(mod: tvm.IRModule) -> list[int]:
    """Return the bytes that "main" allocates, in their order."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [int(value.args[0].values[0]) for value in values if calls(value, "memory.alloc_storage")]


def test_small_tensors_in_use_for_long_get_small_arrays() -> None:
    """TVM, which plans in the order of calls, gives each of them the memory of the large one before it."""
    graph, parts = Graph((1, 8, 9, 11)), []
    for _ in range(3):
        large = graph.conv(graph.conv("x", (64, 8, 1, 1)), (64, 64, 1, 1))
        parts.append(graph.conv(large, (8, 64, 1, 1)))
    mod = _lowered(tvmconv.import_model(graph.model(graph.conv(graph.node("Concat", *parts, axis=1), (2, 24, 1, 1)))))
    plane = 4 * 9 * 11
    assert plan_memory(mod, sizes_known=False).same_as(mod)
    by_tvm = storage(relax.transform.StaticPlanBlockMemory()(mod))
    assert [nbytes // plane for nbytes in by_tvm] == [64, 64, 64, 64]
    assert sorted(nbytes // plane for nbytes in storage(plan_memory(mod, sizes_known=True))) == [8, 8, 8, 64, 64]


def test_no_tensor_of_known_sizes_is_written_while_another_is_in_use() -> None:
    mod = plan_memory(_lowered(tvmconv.import_model(branches(shape=(2, 3, 9, 11)))), sizes_known=True)
    assert len(storage(mod)) == 4
    executable = lowering.build(mod, CPU, tvm.transform.Sequential(cpu.finalize_passes(CPU)))
    x = images(2, 9, 11)
    check(x, [y.numpy() for y in VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))])


def test_kernels_with_their_weights_compiled_in_share_memory() -> None:
    graph, y, rng = Graph(("n", 16, 8, 8)), "x", np.random.default_rng(0)
    for _ in range(4):
        weight = rng.standard_normal((16, 16, 3, 3)) * (rng.random((16, 16, 3, 3)) < 0.1)
        y = graph.node("Relu", graph.node("Conv", y, graph.constant(weight), pads=[1] * 4))
    model = tvmconv.import_model(graph.model(y))
    network, dense = (tvmconv.build(model, sparse=sparse, precision="strict") for sparse in ("always", "never"))
    assert {layer.kernel for layer in network.layers} == {"tvmconv cpu/sparse"}
    for batch in (3, 1, 7):
        x = rng.standard_normal((batch, 16, 8, 8)).astype("float32")
        np.testing.assert_allclose(network(x), dense(x), rtol=0, atol=1e-4)
    sizes = network.machine[MEMORY_SIZES](tvm.runtime.tensor(x))
    assert list(sizes) == [x.nbytes] * 2


def _lowered(model: tvmconv.Model) -> tvm.IRModule:
    passes = [*cpu.legalize_passes(CPU), *cpu.dataflow_lower_passes(CPU)]
    return tvm.transform.Sequential(passes)(model.mod)


def resident() -> int:
    """Return the bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells a process's memory there")
@pytest.mark.parametrize("batch", ["n", 8], ids=["open", "known"])
def test_memory_is_given_back_when_asked(batch: int | str) -> None:
    """The largest call decides how much there is, and after it the smallest leaves it there."""
    graph = Graph((batch, 3, 256, 256))
    y = graph.node("Relu", graph.conv("x", (64, 3, 1, 1)))  # 16 MiB of each image
    network = tvmconv.build(tvmconv.import_model(graph.model(graph.node("GlobalAveragePool", y))))
    large = images(8, 256, 256)
    small = large[:1] if batch == "n" else large
    expected = network(small)
    before = resident()
    network(large)
    network(small)
    if batch == "n":
        assert resident() - before > 80 * MEGABYTE
    kept = resident()
    network.release_memory()
    assert kept - resident() > 80 * MEGABYTE
    np.testing.assert_array_equal(network(small), expected)
    if batch == "n":
        assert kept - resident() > 80 * MEGABYTE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells a process's memory there")
def test_what_others_keep_stays_where_no_pool_is_shared() -> None:
    """A network with open sizes has nothing in TVM's pool, in which another keeps 128 MiB for its next call."""

    def built(batch: int | str) -> tvmconv.Network:
        graph = Graph((batch, 3, 256, 256))
        y = graph.node("Relu", graph.conv("x", (64, 3, 1, 1)))
        return tvmconv.build(tvmconv.import_model(graph.model(graph.node("GlobalAveragePool", y))))

    opened, other = built("n"), built(8)
    opened(images(1, 256, 256))
    other(images(8, 256, 256))
    before = resident()
    opened.release_memory()
    assert before - resident() < 64 * MEGABYTE
    before = resident()
    other.release_memory()
    assert before - resident() > 80 * MEGABYTE


def test_many_sizes_take_the_memory_of_the_largest(network: tvmconv.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SIZES", 4)
    network.release_memory()
    for height in range(1, 12):
        check(images(2, height, 12 - height), network(images(2, height, 12 - height)))
    network(images(2, 9, 11))
    session = network._session
    needed = network.machine[MEMORY_SIZES](tvm.runtime.tensor(images(2, 9, 11)))
    assert [array.shape[0] for array in session._arrays] == list(needed)
    assert len(session._needed) == 4


class Graphs:
    """CUDA graphs in words: a replay calls what was captured with what it was captured with, whatever is given."""

    def __init__(self) -> None:
        self.captured: dict[Any, tuple[Any, ...]] = {}
        self.captures = self.replays = 0

    def run_or_capture(self, context: Any, function: Any, arguments: Any, index: int, sizes: Any) -> Any:
        invoke = tvm.get_global_func("vm.builtin.invoke_closure")
        key = index, *sizes
        if key in self.captured:
            self.replays += 1
            captured, states = self.captured[key]
            invoke(context, function, *captured)
            return states
        self.captures += 1
        states = invoke(context, function, *arguments)
        self.captured[key] = list(arguments), states
        return states


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """Let a function run instead of TVM's CUDA graphs, which a machine loses with its end."""
    found = Graphs()

    def machine(*arguments: Any) -> VirtualMachine:
        found.captured.clear()
        return VirtualMachine(*arguments)

    name = "vm.builtin.cuda_graph.run_or_capture"
    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_global_func(name, found.run_or_capture, override=True)
    monkeypatch.setattr(sessions, "VirtualMachine", machine)
    monkeypatch.setattr("tvmconv.network.passes.execution.has_workspace", lambda func: False)
    yield found
    if before is None:
        tvm_ffi.registry.remove_global_func(name)
    else:
        tvm.register_global_func(name, before, override=True)


@cache
def built_with_graphs() -> tvm.runtime.Executable:
    """Return a network for the CPU that is built with graphs, as for a GPU."""
    plan = tvm.transform.module_pass(lambda mod, _: plan_memory(mod, sizes_known=True), opt_level=0)
    passes = [*cpu.legalize_passes(CPU), *cpu.dataflow_lower_passes(CPU), plan, *with_cuda_graphs(finalize_passes(CPU))]
    mod = tvmconv.import_model(branches()).mod
    return lowering.build(mod, CPU, tvm.transform.Sequential(passes))


def session_with_graphs() -> Session:
    return Session(built_with_graphs(), tvm.cpu(), "naive")


def call(session: Session, x: np.ndarray) -> None:
    check(x, [y.numpy() for y in session.run([tvm.runtime.tensor(x)])])


def test_sizes_that_come_again_are_captured_and_replayed(graphs: Graphs) -> None:
    session, x = session_with_graphs(), images(2, 9, 11)
    counts = []
    for seed in range(4):
        call(session, np.random.default_rng(seed).standard_normal(x.shape).astype("float32"))
        counts.append((graphs.captures, graphs.replays))
    captures = counts[1][0]
    assert counts == [(0, 0), (captures, 0), (captures, captures), (captures, 2 * captures)]
    assert captures > 0


def test_graphs_of_old_memory_are_dropped(graphs: Graphs) -> None:
    """Smaller sizes leave them, larger ones move the memory; every result is right."""
    session, counts = session_with_graphs(), []
    for shape in [(2, 9, 11)] * 3 + [(1, 4, 5)] * 3 + [(3, 12, 10)] + [(2, 9, 11)] * 2 + [(1, 4, 5)]:
        call(session, images(*shape))
        counts.append((len(graphs.captured), graphs.captures))
    each = counts[1][0]
    assert [captured // each for captured, _ in counts] == [0, 1, 1, 1, 2, 2, 0, 1, 1, 2]


def test_the_number_of_graphs_is_bounded(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SIZES", 2)
    session, counts = session_with_graphs(), []
    for batch in (3, 3, 2, 2, 1, 1, 2, 3):
        call(session, images(batch, 6, 7))
        counts.append(len(graphs.captured))
    each = counts[1]
    assert [count // each for count in counts] == [0, 1, 1, 2, 2, 1, 2, 2]


def test_a_caller_captures_no_network_with_open_sizes(graphs: Graphs) -> None:
    """Its memory is another after a larger call."""
    with pytest.raises(InvalidArgumentError, match="one whose memory may move"):
        session_with_graphs().run_in_capture([tvm.runtime.tensor(images(2, 9, 11))])


def test_tensors_whose_sizes_the_models_numbers_decide_are_left_to_tvm() -> None:
    graph = Graph(("n", 3, 6, 7))
    graph.inputs.append(graph._value("v", (5,)))
    rows = graph.node("Squeeze", graph.node("NonZero", "v"), graph.constant([0], "int64"))
    y = graph.node("Relu", graph.conv("x", (4, 3, 3, 3)))
    y = graph.node("Flatten", graph.node("Sqrt", graph.node("GlobalAveragePool", y)))
    many = graph.node("Gather", graph.constant(np.arange(20).reshape(5, 4)), rows)
    y = graph.node("MatMul", graph.node("Relu", many), graph.node("Transpose", y))
    proto = graph.model(graph.node("Relu", y))
    network = tvmconv.build(tvmconv.import_model(proto))
    for x in (images(2, 6, 7), images(5, 6, 7), images(1, 6, 7)):
        v = np.array([0, 1, 0, 2, 3], "float32")
        (expected,) = ReferenceEvaluator(proto).run(None, {"x": x, "v": v})
        np.testing.assert_allclose(network(x, v), expected, rtol=1e-5)


def test_a_file_keeps_the_functions(network: tvmconv.Network, tmp_path: Path) -> None:
    network.export(tmp_path / "network.so")
    loaded = tvmconv.load(tmp_path / "network.so")
    assert isinstance(loaded, tvmconv.Network)
    for shape in SHAPES:
        check(images(*shape), loaded(images(*shape)))
    assert len(loaded._session._arrays) == 4
