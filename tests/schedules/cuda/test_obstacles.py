"""What templates for CUDA do not take, and why; and which of them is chosen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.bands import planes
from tests.schedules.cases.grouped import groups
from tests.schedules.cases.matvec import rows
from tests.schedules.cases.nhwc import nhwc
from tests.schedules.cases.planes import last
from tests.schedules.cases.problems import conv2d, depthwise
from tests.schedules.cases.shallow import image
from tests.schedules.cases.winograd import conv
from tvmconv import ConvWorkload
from tvmconv.dispatch import algorithms_for, select, template_for
from tvmconv.dispatch.registry import TEMPLATES
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import resolve_target

SM_75 = resolve_target({"kind": "cuda", "arch": "sm_75"})
WINDOWS = {
    "stride": (planes((1, 2, 9, 9), 7, stride=2), "takes strides and dilations of 1"),
    "dilation": (planes((1, 2, 9, 9), 3, dilation=(1, 2)), "takes strides and dilations of 1"),
    "multiplier": (
        depthwise((1, 2, 9, 9), (2, 2, 3, 3), dtype="float16"),
        "takes one output channel for each input channel, not 2",
    ),
}
DENSE, LINEAR = "is for dense convolutions in one group", "takes 1x1 kernels on images of one pixel, without padding"
ONE_STRIDE = "takes 3x3 and 5x5 kernels with a stride and a dilation of 1"

REFUSED: dict[str, dict[str, tuple[Problem, str]]] = {
    "depthwise_bands": {
        **WINDOWS,
        "strict": (
            msgspec.structs.replace(planes((1, 2, 9, 9), 7, dtype="float32"), precision="strict"),
            "is not for the precision strict",
        ),
        "window": (planes((1, 1, 400, 400), 399), "takes windows that fit in shared memory, not of 399x399"),
    },
    "depthwise_nhwc": {
        "multiplier": (nhwc((1, 8, 9, 9), (8, 2, 3, 3)), "takes one output for each channel, not 2"),
        "window": (nhwc((1, 2, 120, 121), (2, 1, 3, 3), dilation=57), "that it can unroll in registers, not of 115x1"),
        "taps": (nhwc((8, 64, 56, 56), (64, 1, 31, 31), dtype="float16"), "takes windows that it can unroll"),
    },
    "depthwise_planes": {
        **WINDOWS,
        "channels": (last(planes((1, 3, 9, 9), 7)), "takes even numbers of channels in NHWC, not 3"),
        "float32": (planes((1, 2, 9, 9), 7, dtype="float32"), "takes float16 or bfloat16, not float32"),
        "taps": (planes((2, 2, 9, 9), (2, 1)), "takes windows and planes of more than 2 elements, not of 2"),
        "planes": (
            planes((1, 1, 112, 112), 7),
            "takes small planes and windows, which a block has room for, not 112x112 and 7x7",
        ),
    },
    "grouped": {
        "one group": (groups(1, 32, (1, 8, 8)), "is for convolutions in groups of several channels"),
        "12 channels": (groups(2, 12, (1, 8, 8)), "takes groups of multiples of 8 channels up to 64, or .* not of 12"),
        "odd pairs": (groups(3, 4, (1, 8, 8)), "or an even number of groups of 4, not of 4 to 4"),
        "wide": (groups(2, 96, (1, 8, 8)), "up to 64, .*, not of 96 to 96"),
        "window": (groups(2, 8, (1, 90, 90), 81), "takes windows that fit in shared memory and code, not of 81x81"),
        "gaps": (groups(2, 8, (1, 8, 8), 1, stride=2), "takes windows at least as wide as their stride of 2, not of 1"),
    },
    "linear": {
        "groups": (conv2d((4, 8, 1, 1), (8, 4, 1, 1), groups=2), DENSE),
        "rows": (rows(6, 64, 32), "takes rows in multiples of 4, not 6"),
        "many-rows": (rows(2048, 64, 32), "takes up to 1024 rows, not 2048"),
        "few-rows": (rows(32, 64, 32, "float32"), "takes more than 32 rows in float32, not 32"),
        "pixels": (conv2d((4, 8, 1, 2), (8, 8, 1, 1), dtype="float16"), LINEAR),
        "precision": (rows(40, 64, 32, "float32", precision="strict"), "is not for the precision strict"),
    },
    "matvec": {
        "groups": (conv2d((1, 8, 1, 1), (8, 4, 1, 1), groups=2), DENSE),
        "rows": (rows(5, 64, 32), "takes up to 4 images, not 5"),
        "pixels": (conv2d((1, 8, 1, 2), (8, 8, 1, 1)), LINEAR),
        "padding": (conv2d((1, 8, 1, 1), (8, 8, 3, 3), padding=1), LINEAR),
    },
    "shallow": {
        "groups": (image((1, 4, 8, 8), 16, groups=2), DENSE),
        "channels": (image((1, 5, 8, 8), 16), "takes up to 4 input channels, not 5"),
        "outputs": (image((1, 3, 8, 8), 18), "takes output channels in multiples of 8, not 18"),
        "terms": (image((1, 3, 8, 8), 16, 1, stride=2), "takes windows of 8 terms or more, not of 3"),
        "dilation": (image((1, 3, 8, 8), 16, dilation=2), "takes a dilation of 1"),
        "window": (image((1, 3, 200, 200), 8, 151), "takes windows that fit in shared memory and code, not of 151x151"),
    },
    "winograd": {
        "groups": (Problem(ConvWorkload.conv2d((1, 8, 8, 32), (32, 3, 3, 16), groups=2, layout="NHWC")), DENSE),
        "stride": (conv((1, 16, 9, 9), 16, stride=2), ONE_STRIDE),
        "7x7": (conv((1, 64, 9, 9), 16, taps=7), ONE_STRIDE),
        "strict": (conv((1, 32, 9, 9), 16, precision="strict"), "has errors that depend on outputs nearby"),
        "channels": (conv((1, 18, 9, 9), 16), "takes input channels in multiples of 4, not 18"),
        "outputs": (conv((1, 16, 9, 9), 18), "takes output channels in multiples of 4, not 18"),
        "few-channels": (conv((1, 28, 9, 9), 16), "takes 32 input channels or more for 3x3 kernels, not 28"),
        "few-channels-of-5x5": (conv((1, 92, 9, 9), 16, taps=5), "takes 96 input channels or more for 5x5 .*, not 92"),
        "too-large": (conv((128, 128, 112, 112), 128), "takes up to 3221225472 bytes of transf.*, not 3706454016"),
        "too-large-a-weight": (
            conv((1, 8192, 6, 6), 4096),
            "takes weights of at most 1073741824 elements when they are transformed, not of 1207959552",
        ),
    },
}


def by_name(table: dict[str, dict[str, tuple[Problem, str]]]) -> pytest.MarkDecorator:
    rows = [(algorithm, *row) for algorithm, cases in table.items() for row in cases.values()]
    names = [f"{algorithm}-{name}" for algorithm, cases in table.items() for name in cases]
    return pytest.mark.parametrize(("algorithm", "problem", "why"), rows, ids=names)


@by_name(REFUSED)
def test_obstacles(algorithm: str, problem: Problem, why: str) -> None:
    """A template does not take a problem, and says why where it is asked for."""
    assert algorithm not in algorithms_for(problem, SM_90)
    with pytest.raises(InvalidArgumentError, match=f"cuda/{algorithm} .*{why}"):
        template_for(problem, SM_90, algorithm)


@pytest.mark.parametrize("algorithm", ["depthwise_bands", "depthwise_planes", "grouped", "shallow", "tensor"])
def test_tensor_cores_that_are_too_old(algorithm: str) -> None:
    example: Any = TEMPLATES[f"cuda/{algorithm}"]
    why = example.obstacle(example.examples[0], SM_75)
    assert why == "needs a GPU with tensor cores, sm_80 or later, not sm_75"


CHOSEN = {
    "depthwise_bands": [planes((32, 128, 56, 56), 31), planes((32, 256, 28, 28), 29)],
    "depthwise": [
        planes((32, 240, 28, 28), 5),
        planes((32, 144, 56, 56), 3),
        planes((8, 4096, 1, 2048), (1, 4), padding=(0, 3, 0, 0)),
    ],
    "grouped": [groups(32, 4, (32, 56, 56)), groups(26, 8, (8, 14, 14))],
    "tensor": [groups(32, 32, (1, 7, 7)), groups(2, 64, (32, 14, 14))],
    "shallow": [
        image((32, 3, 224, 224), 64, 7, stride=2, padding=3),
        image((32, 3, 224, 224), 24, stride=2, padding=1),
    ],
}


@pytest.mark.parametrize(("name", "problem"), [(name, each) for name, some in CHOSEN.items() for each in some], ids=str)
def test_choice(name: str, problem: Problem) -> None:
    """Large windows are multiplied on tensor cores, and groups of few channels without the zeros between them."""
    assert select(problem, SM_90).name == f"cuda/{name}"
