"""Layouts of networks: the tensors in blocks of channels, and the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx
import pytest
import tvm

from tests.open_sizes.batches import network_of_twins
from tests.shared.network_graph import Graph, check_network, normal
from tests.shared.passes import use_kernels
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.autotvm import extract_from_model
from tvmconv.network import build, import_model
from tvmconv.network.graph.shuffles import gather_shuffles
from tvmconv.network.passes.convolutions.layouts import choose_layouts
from tvmconv.network.sites import find_convolutions
from tvmconv.targets import resolve_target

AVX2 = resolve_target({"kind": "llvm", "mcpu": "haswell"})
"""A target with eight lanes in a vector."""

GPU = resolve_target({"kind": "cuda", "arch": "sm_90a"})

LETTERS = {"NCHW": "p", "NCHW8c": "b", "NHWC": "l"}

X_SHAPE = (2, 16, 9, 10)


@dataclass(frozen=True)
class Case:
    """A graph, and the layouts that its convolutions read and write: "p" NCHW, "b" in blocks, "l" NHWC."""

    id: str
    body: Callable[[Graph], str]
    layouts: str
    x_shape: tuple[int, ...] = X_SHAPE
    given_on_gpu: str | None = None
    precision: str = "strict"
    """The precision on a CPU, where "strict" leaves out Winograd's convolution, which takes long to compile."""

    @property
    def on_gpu(self) -> str:
        """The layouts on a GPU: where nothing else is given the tensors that a CPU has in blocks are in NHWC."""
        return self.given_on_gpu or self.layouts.replace("b", "l")


def conv(g: Graph, x: str, out: int = 16, inputs: int = 16, size: int = 3) -> str:
    return g.conv(x, (out, inputs, size, size), True, pads=[size // 2] * 4)


def depthwise(g: Graph, x: str) -> str:
    return g.conv(x, (16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])


def ends(g: Graph, middle: Callable[[str], str], channels: int = 16) -> str:
    """Put something between two convolutions."""
    return conv(g, middle(conv(g, "x")), inputs=channels)


def residual(g: Graph) -> str:
    first = conv(g, "x")
    return conv(g, g.node("Relu", g.node("Add", conv(g, conv(g, first)), first)))


def slower_in_blocks(g: Graph) -> str:
    """Build 1x1 convolutions; the second has to write NCHW, and would have to transpose its output."""
    return conv(g, conv(g, "x", out=4, size=1), out=64, inputs=4, size=1)


def gated(g: Graph, x: str) -> str:
    return g.node("Mul", x, g.node("Sigmoid", conv(g, g.node("GlobalAveragePool", x), size=1)))


def pooled(kind: str) -> Callable[[Graph], str]:
    return lambda g: ends(g, lambda x: g.node(kind, x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1]))


def output_of_a_branch(g: Graph) -> str:
    y = conv(g, conv(g, "x"))
    return g.node("Concat", g.node("GlobalAveragePool", y), g.node("GlobalMaxPool", y), axis=1)


def permuted(g: Graph, x: str, axes: tuple[int, ...]) -> str:
    """Put a permutation of axes and its inverse around a softmax of the last one."""
    there = g.node("Softmax", g.node("Transpose", x, perm=axes), axis=-1)
    return g.node("Transpose", there, perm=[axes.index(axis) for axis in range(4)])


def shuffled(g: Graph, x: str) -> str:
    """Bring the channels of four groups in turns."""
    parted = g.node("Reshape", x, g.constant([2, 4, 4, 9, 10], "int64"))
    turned = g.node("Transpose", parted, perm=[0, 2, 1, 3, 4])
    return g.node("Reshape", turned, g.constant([2, 16, 9, 10], "int64"))


def interleaved(g: Graph, x: str) -> str:
    """Bring both halves of the channels in turns, one of them behind a convolution."""
    first, middle, last, axis = (g.constant([index], "int64") for index in (0, 8, 16, 1))
    halves = g.node("Slice", x, first, middle, axis), conv(g, g.node("Slice", x, middle, last, axis), 8, 8)
    stacked = g.node("Concat", *(g.node("Unsqueeze", each, g.constant([2], "int64")) for each in halves), axis=2)
    return g.node("Reshape", stacked, g.constant([2, 16, 9, 10], "int64"))


def split(g: Graph, x: str) -> str:
    """Swap both halves of the channels, one of them behind a convolution."""
    g.nodes.append(onnx.helper.make_node("Split", [x], ["left", "right"], name="split", axis=1))
    return g.node("Concat", conv(g, "right", 8, 8), "left", axis=1)


def transposed(g: Graph, x: str, size: int, cut: int) -> str:
    """Double the rows and the columns, in as many channels."""
    weight = g.random(16, 16, size, size, scale=0.25 / size)
    return g.node("ConvTranspose", x, weight, strides=[2, 2], pads=[cut] * 4)


def normalized(g: Graph, x: str) -> str:
    return permuted(g, x, (0, 2, 3, 1))


CASES = (
    Case("two", lambda g: conv(g, conv(g, "x")), "pb bp"),
    Case("three", lambda g: conv(g, g.node("Relu", conv(g, conv(g, "x")))), "pb bb bp", precision="float32"),
    Case("alone", lambda g: conv(g, "x"), "pp"),
    Case("read-in-nchw", lambda g: conv(g, g.node("Transpose", conv(g, "x"), perm=[0, 1, 3, 2])), "pp pp"),
    Case("channels-of-no-blocks", lambda g: conv(g, conv(g, "x", out=12), inputs=12), "pp pp", given_on_gpu="pl lp"),
    Case("one-by-one-between", lambda g: ends(g, lambda x: conv(g, x, size=1)), "pb bb bp"),
    Case("one-by-one-first", lambda g: conv(g, conv(g, "x", size=1)), "pb bp"),
    Case("one-by-one-last", lambda g: conv(g, conv(g, "x", size=5), size=1), "pb bp"),
    Case("slower-in-blocks", slower_in_blocks, "pp pp", (1, 16, 56, 56), "pl lp"),
    Case("depthwise-between", lambda g: ends(g, lambda x: depthwise(g, x)), "pb bb bp"),
    Case("depthwise-last", lambda g: depthwise(g, conv(g, "x")), "pp pp"),
    Case("groups", lambda g: ends(g, lambda x: g.conv(x, (16, 8, 1, 1), group=2)), "pp pp pp", given_on_gpu="pl ll lp"),
    Case("residual", residual, "pb bb bb bp"),
    Case("max-pool", pooled("MaxPool"), "pb bp"),
    Case("average-pool", pooled("AveragePool"), "pb bp"),
    Case("pool-of-the-input", lambda g: conv(g, g.node("MaxPool", "x", kernel_shape=[2, 2])), "pp"),
    Case("elementwise", lambda g: ends(g, lambda x: g.node("Mul", x, g.node("Sigmoid", x))), "pb bp"),
    Case("scalar", lambda g: ends(g, lambda x: g.node("Mul", g.node("Relu", x), g.constant(0.5))), "pb bp"),
    Case("vector", lambda g: ends(g, lambda x: g.node("Mul", g.node("Relu", x), g.random(16, 1, 1))), "pb bp"),
    Case("rows", lambda g: ends(g, lambda x: g.node("Mul", x, g.random(9, 1))), "pp pp"),
    Case("constant-tensor", lambda g: ends(g, lambda x: g.node("Mul", x, g.random(2, 16, 9, 10))), "pp pp"),
    Case(
        "constant-residual",
        lambda g: ends(g, lambda x: conv(g, g.node("Add", conv(g, x), g.random(2, 16, 9, 10)))),
        "pp pp pb bp",
    ),
    Case("batch-norm", lambda g: ends(g, lambda x: g.batch_norm(g.node("Relu", x), 16)), "pp pp"),
    Case("gate", lambda g: ends(g, lambda x: gated(g, x)), "pb pp bp"),
    Case("means", output_of_a_branch, "pb bp"),
    Case("mean-of-a-block", lambda g: ends(g, lambda x: g.node("Mul", x, g.node("GlobalAveragePool", x))), "pb bp"),
    Case("mean-of-all", lambda g: ends(g, lambda x: g.node("Mul", x, g.node("ReduceMean", x))), "pp pp"),
    Case("mean-of-channels", lambda g: ends(g, lambda x: g.node("Mul", x, g.node("ReduceMean", x, axes=[1]))), "pp pp"),
    Case(
        "concatenation",
        lambda g: ends(g, lambda x: g.node("Concat", conv(g, x, 8), conv(g, x, 24), axis=1), 32),
        "pb bb bb bp",
    ),
    Case(
        "concatenation-of-no-blocks",
        lambda g: ends(g, lambda x: g.node("Concat", conv(g, x, 4), conv(g, x, 12), axis=1)),
        "pb bp bp pp",
        given_on_gpu="pl ll ll lp",
    ),
    Case(
        "concatenation-with-a-constant",
        lambda g: ends(g, lambda x: g.node("Concat", x, g.random(2, 16, 9, 10), axis=1), 32),
        "pp pp",
    ),
    Case("concatenation-with-the-input", lambda g: ends(g, lambda x: g.node("Concat", x, "x", axis=1), 32), "pp pp"),
    Case(
        "computed-weight",
        lambda g: conv(g, g.node("Conv", conv(g, "x"), conv(g, "x")), inputs=2),
        "pb pp bp pp",
        given_on_gpu="pp pp pp pp",
    ),
    Case("shuffle", lambda g: ends(g, lambda x: shuffled(g, x)), "pp pp", given_on_gpu="pl lp"),
    Case("stack", lambda g: ends(g, lambda x: interleaved(g, x)), "pp pp pp", given_on_gpu="pl ll lp"),
    Case("split", lambda g: ends(g, lambda x: split(g, x)), "pp pp pp", given_on_gpu="pl ll lp"),
    Case("transposed", lambda g: ends(g, lambda x: transposed(g, x, 2, 0)), "pb bb bp"),
    Case("transposed-and-cut", lambda g: ends(g, lambda x: transposed(g, x, 4, 1)), "pb bb bp"),
    Case("norm-of-channels", lambda g: ends(g, lambda x: normalized(g, x)), "pp pp", given_on_gpu="pl lp"),
    Case("other-axes-last", lambda g: ends(g, lambda x: permuted(g, x, (0, 3, 2, 1))), "pp pp"),
)


def layouts(model: onnx.ModelProto, target: tvm.target.Target) -> str:
    source = import_model(model).mod
    source = gather_shuffles(source) if target is GPU else source
    return described(site.described for site in choose_layouts(source, find_convolutions(source), target)[0])


def described(workloads: Iterable[ConvWorkload]) -> str:
    return " ".join(LETTERS[each.layout] + LETTERS[each.out_layout] for each in workloads)


def test_sparse_kernels_read_and_write_nchw() -> None:
    graph = Graph(X_SHAPE)
    y = conv(graph, conv(graph, conv(graph, conv(graph, "x"))))
    source = import_model(graph.model(y)).mod
    sites = find_convolutions(source)
    chosen, _ = choose_layouts(source, sites, AVX2, [sites[1].output])
    assert described(site.described for site in chosen) == "pp pp pb bp"
    assert chosen[1] == sites[1]


def test_tasks_are_what_the_network_needs() -> None:
    graph = Graph(X_SHAPE)
    source = import_model(graph.model(conv(graph, conv(graph, conv(graph, conv(graph, "x"))))))
    needed = Counter(layer.convolution.workload for layer in build(source, AVX2, precision="strict").layers)
    tasks = extract_from_model(source, AVX2, precision="strict")
    assert {task.problem.workload: task.weight for task in tasks} == needed
    assert len(needed) == 3


def model(case: Case, dtype: str) -> onnx.ModelProto:
    graph = Graph(case.x_shape, dtype)
    return graph.model(case.body(graph))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_layouts(case: Case) -> None:
    assert layouts(model(case, "float32"), AVX2) == case.layouts


@pytest.mark.usefixtures("nhwc_is_faster")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_layouts_on_a_gpu(case: Case) -> None:
    assert layouts(model(case, "float32"), GPU) == case.on_gpu


def test_large_layers_are_in_nhwc_on_a_gpu() -> None:
    graph = Graph((32, 64, 28, 28), "float16")
    y = conv(graph, "x", 64, 64)
    assert layouts(graph.model(conv(graph, conv(graph, y, 256, 64, size=1), 64, 256, size=1)), GPU) == "pl ll lp"


COVERED = (
    *("one-by-one-first", "one-by-one-last", "max-pool", "elementwise", "vector", "constant-residual"),
    *("mean-of-a-block", "concatenation-of-no-blocks", "transposed-and-cut"),
)
"""Cases whose parts are in others, too, on a CPU."""


# Where nothing has another layout there is less to get wrong.
@pytest.mark.parametrize(
    "case",
    sparing(CASES, lambda index: "b" in CASES[index].layouts and CASES[index].id not in COVERED),
    ids=lambda case: case.id,
)
def test_numbers(case: Case) -> None:
    network = build(model(case, "float32"), AVX2, precision=case.precision)
    assert described(layer.convolution.workload for layer in network.layers) == case.layouts
    check_network(network, model(case, "float64"), normal(*case.x_shape), 1e-5)


ALIKE = (
    *("two", "one-by-one-first", "one-by-one-last", "average-pool", "elementwise", "scalar"),
    *("concatenation-of-no-blocks", "three", "constant-residual", "max-pool", "split"),
    *("one-by-one-between", "groups", "vector", "mean-of-a-block", "stack", "transposed"),
)
"""Cases whose parts are in others, too, on a GPU."""


@pytest.mark.usefixtures("nhwc_is_faster")
@pytest.mark.parametrize(
    "case",
    sparing(CASES, lambda index: "l" in CASES[index].on_gpu and CASES[index].id not in ALIKE),
    ids=lambda case: case.id,
)
def test_numbers_of_serial_twins(case: Case) -> None:
    source = import_model(model(case, "float32"))
    mod, layers = use_kernels(source.mod, GPU)
    check_network(network_of_twins(source, mod, layers), model(case, "float64"), normal(*case.x_shape), 1e-5)
