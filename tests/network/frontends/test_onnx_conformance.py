"""A part of ONNX's own tests: operators of convolutional networks, former failures, and a sample of all others."""

from __future__ import annotations

import json
import re

import pytest

from tests import onnx_conformance
from tests.shared.sparing import sparing

LISTED = onnx_conformance.read_page(onnx_conformance.PAGE.read_text())

CHOSEN = re.compile(
    r"(?i)test_(conv|.*pool_2d_ceil|maxpool_with_argmax|resize_.*(antialias|symmetric|axes_2|prefer_ceil)|gridsample_"
    r"(bi|volu)|group_norm|mod_float_edge|tile|pow_types_int|nonmaxsuppression_iou|reduce_max_bool|onehot_with_axis)"
)
ALIKE = re.compile("(?i)test_(conv(?!transpose2d)|gridsample|group_norm)")

EVERY = 90
"""The step of the sample: one in so many of the other tests runs."""

ONE_OF_EACH = (
    "test_averagepool_2d_precomputed_same_upper",
    "test_bitshift_right_int16",
    "test_dropout_default",
    "test_gridsample_border_padding",
    "test_gridsample_reflection_padding",
    "test_isinf",
    "test_lppool_1d_default",
    "test_lppool_2d_dilations",
    "test_lrn_default",
    "test_mish",
    "test_mod_int64_fmod",
    "test_prelu_broadcast",
    "test_reduce_l2_default_axes_keepdims_example, constants",
    "test_reduce_log_sum_exp_default_axes_keepdims_example, constants",
    "test_reduce_prod_default_axes_keepdims_example",
    "test_resize_downsample_scales_cubic_A_n0p5_exclude_outside, constants",
    "test_resize_downsample_scales_cubic_align_corners, constants",
    "test_resize_downsample_sizes_linear_pytorch_half_pixel, constants",
    "test_resize_downsample_sizes_nearest_not_larger, constants",
    "test_resize_tf_crop_and_resize_extrapolation_value, constants",
    "test_rms_normalization_2d_axis0",
    "test_selu",
    "test_sign",
    "test_softplus",
    "test_thresholdedrelu",
    "test_upsample_nearest, constants",
)
"""Tests of operators that have a converter here and no other test, and of their modes; each takes a moment."""

NAMES = [name for index, name in enumerate(sorted(LISTED)) if CHOSEN.match(name) or index % EVERY == 0]


@pytest.mark.parametrize(
    "name",
    # Of those that are much alike a quarter: some as they are, some with constants.
    [*ONE_OF_EACH, *sparing(NAMES, lambda index: not ALIKE.match(NAMES[index]) or index % 8 in (0, 3))],
)
def test_conformance(name: str) -> None:
    found, outcome, why = json.loads(onnx_conformance.result(name))
    assert (found, outcome) == (name, LISTED[name]), why


def test_page_has_all_and_none_is_wrong() -> None:
    assert set(LISTED) == set(onnx_conformance.names())
    assert set(LISTED.values()) == {onnx_conformance.RIGHT, onnx_conformance.REFUSED}
