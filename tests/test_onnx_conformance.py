"""A part of ONNX's own tests: operators of convolutional networks, former failures, and a sample of all others."""

from __future__ import annotations

import json
import re

import onnx_conformance
import pytest
from sparing import sparing

LISTED = onnx_conformance.read_page(onnx_conformance.PAGE.read_text())

CHOSEN = re.compile(
    r"(?i)test_(conv|.*pool_2d_ceil|maxpool_with_argmax|resize_.*(antialias|symmetric|axes_2|prefer_ceil)|gridsample_"
    r"(bi|volu)|group_norm|mod_float_edge|tile|pow_types_int|nonmaxsuppression_iou|reduce_max_bool|onehot_with_axis)"
)
ALIKE = re.compile("(?i)test_(conv(?!transpose2d)|gridsample|group_norm)")

EVERY = 60
"""The step of the sample: one in so many of the other tests runs."""

NAMES = [name for place, name in enumerate(sorted(LISTED)) if CHOSEN.match(name) or place % EVERY == 0]


@pytest.mark.parametrize(
    "name",
    # Of those that are much alike a half: some as they are, some with constants.
    sparing(NAMES, lambda place: not ALIKE.match(NAMES[place]) or place % 4 in (0, 3)),
)
def test_conformance(name: str) -> None:
    found, outcome, why = json.loads(onnx_conformance.result(name))
    assert (found, outcome) == (name, LISTED[name]), why


def test_page_has_all_and_none_is_wrong() -> None:
    assert set(LISTED) == set(onnx_conformance.names())
    assert set(LISTED.values()) == {onnx_conformance.RIGHT, onnx_conformance.REFUSED}
