"""Resize of ONNX with sizes that are open, or that follow from open ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.open_sizes.planes import image
from tests.shared.network_graph import Graph
from tvmconv.network import build, import_model
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError

RESIZED = {
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "cubic": {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
    "nearest": {"mode": "nearest", "nearest_mode": "ceil"},
}


@pytest.mark.parametrize("how", RESIZED.values(), ids=RESIZED)
def test_resizing_of_any_size(how: dict[str, str]) -> None:
    """The formulas for any size give what the tables for a known one do."""
    graph = Graph((1, 2, "height", "width"))
    model = graph.model(graph.node("Resize", "x", "", graph.constant([1, 1, 3, 2], "float32"), **how))
    network = build(model)
    for shape in ((1, 2, 1, 1), (1, 2, 5, 8)):
        expected = build(import_model(model, shapes={"x": shape}))(image(*shape))
        np.testing.assert_allclose(network(image(*shape)), expected, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class Resized:
    """A Resize of images (n, c, height, width)."""

    mode: str
    coordinates: str
    scales: tuple[float, float] | None = None
    """The scales of height and width; the sizes of another input where there are none."""
    sizes: tuple[int, int] | None = None
    rounding: str = "round_prefer_floor"
    exclude_outside: int = 0

    def model(self) -> onnx.ModelProto:
        """Return a graph with the Resize; its second input "like" has the sizes that are wanted."""
        graph = Graph(("n", "c", "height", "width"))
        sizes = scales = roi = ""
        if self.scales is not None:
            scales = graph.constant([1, 1, *self.scales], "float32")
        else:
            wanted = graph.constant(self.sizes or (), "int64")
            if self.sizes is None:
                graph.inputs.append(helper.make_tensor_value_info("like", onnx.TensorProto.FLOAT, ("a", "b")))
                wanted = graph.node("Shape", "like")
            sizes = graph.node("Concat", graph.node("Shape", "x", end=2), wanted, axis=0)
        if self.coordinates == "tf_crop_and_resize":
            roi = graph.constant([0, 0, -0.125, 0.25, 1, 1, 0.75, 1.25], "float32")
        return graph.model(
            graph.node(
                "Resize",
                "x",
                roi,
                scales,
                sizes,
                mode=self.mode,
                coordinate_transformation_mode=self.coordinates,
                nearest_mode=self.rounding,
                exclude_outside=self.exclude_outside,
                extrapolation_value=9.0,
            )
        )

    def __str__(self) -> str:
        size = self.scales or self.sizes or "as-another"
        return f"{self.mode}-{self.coordinates}-{size}-{self.rounding}{'-excluding' * self.exclude_outside}"


TO_ANY_SIZE = (
    Resized("linear", "half_pixel"),
    Resized("linear", "align_corners"),
    Resized("linear", "asymmetric", sizes=(7, 5)),
    Resized("linear", "tf_crop_and_resize"),
    Resized("linear", "half_pixel", scales=(1.5, 0.7)),
    Resized("nearest", "asymmetric", rounding="floor"),
    Resized("nearest", "half_pixel", rounding="round_prefer_ceil"),
    Resized("nearest", "half_pixel_symmetric", scales=(0.7, 2.4), rounding="ceil"),
    Resized("nearest", "pytorch_half_pixel", sizes=(1, 9)),
    Resized("cubic", "pytorch_half_pixel", sizes=(7, 1)),
    Resized("cubic", "half_pixel", exclude_outside=1),
)


@pytest.mark.parametrize("case", TO_ANY_SIZE, ids=str)
def test_resizing_to_any_size(case: Resized) -> None:
    """One network resizes images of any size to any size, as ONNX Runtime does."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = case.model()
    network = build(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape, like in (((1, 2, 10, 6), (20, 9)), ((2, 1, 5, 3), (2, 7)), ((1, 1, 2, 4), (6, 7))):
        feeds = {"x": image(*shape)}
        if len(network.inputs) > 1:
            feeds["like"] = image(*like)
        (expected,) = session.run(None, feeds)
        np.testing.assert_allclose(network(**feeds), expected, rtol=0, atol=2e-5)


def test_an_image_of_which_a_scale_leaves_nothing() -> None:
    network = build(Resized("linear", "half_pixel", scales=(0.25, 1)).model())
    with pytest.raises(InvalidArgumentError, match=r"Resize \(node .* needs an axis 2 that its scale 0.25 leaves"):
        network(image(1, 1, 3, 4))


def test_smoothing_needs_sizes_that_are_known() -> None:
    graph = Graph((1, 2, "height", 8))
    scales = graph.constant([1, 1, 0.5, 1], "float32")
    resized = graph.node("Resize", "x", "", scales, mode="linear", antialias=1)
    graph.opset = 19
    with pytest.raises(UnsupportedModelError, match=r"Resize \(node .*: its antialias needs sizes that are known"):
        import_model(graph.model(resized))


def test_a_scale_that_float32_has_not() -> None:
    """An image of 10 rows times 0.7 has 7 rows, though the float32 number 0.7 is a little less."""
    graph = Graph((1, 1, 10, 3))
    resized = graph.node("Resize", "x", "", graph.constant([1, 1, 0.7, 1], "float32"), mode="nearest")
    assert build(graph.model(resized)).outputs[0].shape == (1, 1, 7, 3)
