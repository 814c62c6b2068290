"""Kernels and networks for a height and a width that are known only when they run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvmconv
from tests.shared.huge_arrays import huge
from tvmconv import ConvWorkload, load
from tvmconv.dispatch import select
from tvmconv.lowering import MAX_TILES
from tvmconv.network import Network, build
from tvmconv.problem import OPEN_SIZES, Problem
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError
from tvmconv.schedules.cpu import direct, pointwise
from tvmconv.schedules.cpu.direct import im2win
from tvmconv.schedules.open_sizes import LITTLE_WASTE, samples, tiles_of_open_rows
from tvmconv.schedules.space import wasted
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.open_sizes.planes import image, unet  # noqa: E402
from tests.shared.network_graph import Graph, check_network  # noqa: E402

X, CHANNELS_IN_BLOCKS = (1, 16, 12, 14), {"layout": "NCHW8c", "out_layout": "NCHW8c"}

CASES = {
    "direct": ConvWorkload.conv2d(X, (12, 16, 3, 3), shift=True, residual=True, activation="silu"),
    "direct-in-place": ConvWorkload.conv2d(X, (24, 16, 1, 1), stride=2, scale=True),
    "direct-groups": ConvWorkload.conv2d(X, (10, 8, 3, 2), groups=2, padding=(0, 2, 1, 3), dilation=2, dtype="float16"),
    "im2win": ConvWorkload.conv2d(X, (16, 16, 3, 5), padding=2, stride=(2, 3), residual=True),
    "pointwise": ConvWorkload.conv2d(X, (21, 16, 1, 1), scale=True, residual=True, activation="relu6"),
    "pointwise-groups": ConvWorkload.conv2d(X, (14, 8, 1, 1), groups=2, shift=True, dtype="bfloat16"),
    "depthwise": ConvWorkload.depthwise(X, (16, 2, 3, 3), stride=2, shift=True, activation="relu"),
    "depthwise-bfloat16": ConvWorkload.depthwise(X, (16, 1, 5, 5), dtype="bfloat16", residual=True),
}
CASES["direct-blocks"] = msgspec.structs.replace(
    ConvWorkload.conv2d(X, (16, 16, 3, 3), residual=True, activation="relu6"), **CHANNELS_IN_BLOCKS
)
CASES["depthwise-blocks"] = msgspec.structs.replace(
    ConvWorkload.depthwise(X, (16, 1, 3, 3), scale=True, activation="hardswish"), **CHANNELS_IN_BLOCKS
)


def check_sizes(operator: tvmconv.Operator, **sizes: int) -> None:
    workload = msgspec.structs.replace(operator.workload, **sizes)
    operands = random_operands(workload, workload.height)
    inputs = {name: array for name, array in operands.items() if name != "output"}
    check_result(workload, operands, operator(**inputs))


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_for_planes_of_any_size(name: str) -> None:
    """Sizes are the least that the kernel fits, just past tiles, and larger than the one that knobs are chosen for."""
    workload = CASES[name]
    operator = tvmconv.compile(workload, open_sizes=OPEN_SIZES, algorithm=name.split("-")[0])
    for batch, height, width in ((1, 5, 5), (2, 12, 14), (1, 13, 15), (1, 9, 31), (3, 29, 7)):
        check_sizes(operator, batch=batch, height=height, width=width)


def test_planes_smaller_than_a_tile_of_pixels() -> None:
    """A tile of pixels is as many as two vectors, one, or a single pixel; the last one ends where the plane does."""
    workload = msgspec.structs.replace(CASES["pointwise"], height=1, width=224)
    config = pointwise.Config(vectors=2, vector=4, block=6, tiles=3, parallel=True)
    operator = tvmconv.compile(workload, config=config, algorithm="pointwise", open_sizes=("batch", "width"))
    for pixels in (*range(1, 10), 23, 24, 25, 47):
        check_sizes(operator, batch=2, width=pixels)


def test_planes_of_one_pixel_may_be_larger() -> None:
    """A kernel chosen for linear layers of several rows serves planes of any size, too."""
    workload = ConvWorkload.conv2d((4, 8, 1, 1), (16, 8, 1, 1), shift=True)
    operator = tvmconv.compile(workload, open_sizes=OPEN_SIZES, algorithm="direct")
    for batch, height, width in ((4, 1, 1), (1, 5, 3), (3, 1, 9)):
        check_sizes(operator, batch=batch, height=height, width=width)


def test_open_width_alone() -> None:
    workload = ConvWorkload.conv2d((1, 3, 1, 40), (8, 3, 1, 7), stride=2)
    operator = tvmconv.compile(workload, open_sizes=("width",))
    for width in (2, 40, 41, 399):
        other = msgspec.structs.replace(workload, width=width)
        operands = random_operands(other, width)
        check_result(other, operands, operator(operands["x"], operands["w"]))
    with pytest.raises(InvalidArgumentError, match=r"x is \(2, 3, 1, 40\); expected the shape \(1, 3, 1, 40\)"):
        operator(np.zeros((2, 3, 1, 40), "float32"), operands["w"])


ENDS = {
    "direct": (
        ConvWorkload.conv2d((1, 6, 5, 60), (3, 2, 3, 3), stride=3, groups=3, padding=(4, 3, 2, 1)),
        direct.Config(1, 8, 2, 8, 1, 1, staged=1, parallel=False),
    ),
    "im2win": (
        ConvWorkload.conv2d((1, 16, 8, 27), (6, 8, 3, 3), groups=2, padding=3, activation="sigmoid"),
        im2win.Config(1, 16, 1, 5, 8, 2, staged=1, parallel=False),
    ),
}


@pytest.mark.parametrize("algorithm", ENDS)
def test_vectors_at_the_end_of_rows_of_known_width(algorithm: str) -> None:
    """Rows of 21 and of 31 are no whole tiles, and the last rows of a tile are stored element by element."""
    workload, config = ENDS[algorithm]
    operator = tvmconv.compile(workload, config=config, algorithm=algorithm, open_sizes=("height",))
    for height in (1, 5, 6, 10):
        check_sizes(operator, height=height)


def test_more_tiles_than_a_kernel_counts() -> None:
    operator = tvmconv.compile(ConvWorkload.depthwise((1, 1, 1, 40), (1, 1, 1, 1)), open_sizes=("width",))
    w = np.ones((1, 1, 1, 1), "float32")
    assert operator(np.ones((1, 1, 1, MAX_TILES), "float32"), w).sum() == MAX_TILES
    with pytest.raises(InvalidArgumentError, match=f"x is .*; expected an output of at most {MAX_TILES} rows and col"):
        operator(np.ones((1, 1, 1, MAX_TILES + 1), "float32"), w)


def test_configurations_for_any_size_waste_little() -> None:
    """A task is a few rows, of which most are needed, and not all rows of a plane."""
    workload = ConvWorkload.conv2d((1, 64, 55, 55), (64, 64, 3, 3))
    problem = Problem(workload, open_sizes=OPEN_SIZES)
    opened = select(problem, resolve_target("llvm"), algorithm="direct")
    assert opened.reason == "default configuration"
    heights = [each.output_size[0] for each in samples(problem)]
    assert min(heights) < 55 < max(heights)
    assert sum(wasted(height, opened.config.rows * opened.config.tiles) for height in heights) / 5 <= LITTLE_WASTE
    assert tiles_of_open_rows(problem, 1, 55) < 55
    assert samples(Problem(workload)) == (workload,)


def check(network: Network, model: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    for shape in shapes:
        check_network(network, model, image(*shape), 2e-6)


"""The templates of the kernels of `unet` on a CPU."""


def test_network_for_images_of_any_size(tmp_path: Path) -> None:
    model = unet()
    network = build(model)
    assert all(layer.kernel.startswith("tvmconv cpu/") for layer in network.layers)
    assert [layer.convolution.open_sizes for layer in network.layers] == 3 * [OPEN_SIZES]
    check(network, model, (1, 3, 2, 4), (2, 3, 34, 18), (1, 3, 16, 62))
    network.export(tmp_path / "any.so")
    loaded = load(tmp_path / "any.so")
    assert isinstance(loaded, Network)
    check(loaded, model, (1, 3, 6, 10))
    for each in (network, loaded):
        with pytest.raises(InvalidArgumentError, match=r"'height': 7.*expected sizes for which height // 2 \* 2 == h"):
            each(image(1, 3, 7, 8))
        with pytest.raises(InvalidArgumentError, match="sizes for which .* needs at most 1073741824 elements in x"):
            each(huge(tmp_path, (2, 3, 2**15, 2**14)))


def test_sizes_in_which_parts_agree_are_not_compared() -> None:
    """Sizes that are numbers, or the same for any value, need no condition."""
    assert not any("==" in each.text for each in build(unet((8, 12)), precision="strict")._conditions.all)


def test_planes_too_small_for_a_kernel_are_refused() -> None:
    graph = Graph((1, 3, "height", 9))
    network = build(graph.model(graph.conv("x", (4, 3, 5, 5))))
    check(network, graph.model(graph.nodes[-1].output[0]), (1, 3, 5, 9), (1, 3, 23, 9))
    with pytest.raises(
        InvalidArgumentError,
        match=r"sizes for which 5 <= height: Conv \(node 'conv0'\) has a window of 5 that is larger",
    ):
        network(image(1, 3, 4, 9))


def chosen_rows(graph: Graph) -> str:
    """Add a choice of the rows of "x" where an input "v" is not zero."""
    graph.inputs.append(graph._value("v", (8,)))
    rows = graph.node("Squeeze", graph.node("NonZero", "v"), graph.constant([0], "int64"))
    return graph.node("Gather", "x", rows, axis=2)


def test_sizes_that_numbers_decide() -> None:
    """How many rows there are is known to no caller: it is in no condition."""
    graph = Graph(("n", 3, 8, 9))
    network = build(graph.model(graph.conv(chosen_rows(graph), (4, 3, 3, 3))))
    assert [layer.convolution.open_sizes for layer in network.layers] == [OPEN_SIZES[:2]]
    x, v = image(2, 3, 8, 9), np.array([1, 0, 1, 1, 0, 1, 1, 0], "float32")
    closed = Graph((2, 3, 5, 9))
    (expected,) = ReferenceEvaluator(closed.model(closed.conv("x", (4, 3, 3, 3)))).run(None, {"x": x[:, :, v > 0]})
    np.testing.assert_allclose(network(x, v), expected, rtol=0, atol=1e-5)


def test_sizes_that_numbers_decide_and_have_to_agree() -> None:
    graph = Graph((1, 3, "height", 9))
    with pytest.raises(
        UnsupportedModelError, match=r"Concat \(node 'concat3'\): it needs axes 2 of one size, .* which numbers decide"
    ):
        build(graph.model(graph.conv(graph.node("Concat", "x", chosen_rows(graph), axis=1), (4, 6, 3, 3))))


def test_pooling_of_any_size() -> None:
    graph = Graph((1, 4, "height", "width"))
    windows = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    largest = graph.node("MaxPool", "x", **windows)
    model = graph.model(graph.node("AveragePool", largest, count_include_pad=1, **windows))
    check(build(model), model, (1, 4, 9, 12), (1, 4, 4, 31))


@pytest.mark.parametrize("attributes", [{"ceil_mode": 1}, {"auto_pad": "SAME_UPPER"}], ids=["round-up", "same"])
def test_pooling_whose_padding_the_size_decides(attributes: dict[str, object]) -> None:
    graph = Graph((1, 4, "height", 9))
    model = graph.model(graph.node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], **attributes))
    check(build(model), model, (1, 4, 6, 9), (1, 4, 7, 9))
