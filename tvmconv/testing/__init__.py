"""Helpers for tests of schedules: cases, configurations, operands, the check against the reference, serial twins."""

from tvmconv.checking.closeness import assert_close
from tvmconv.checking.operands import Sample, check_result, random_operands
from tvmconv.lowering.serial import serial_twin

from .cases import CONV2D, DEPTHWISE, Case
from .configs import random_configs

__all__ = [
    "CONV2D",
    "DEPTHWISE",
    "Case",
    "Sample",
    "assert_close",
    "check_result",
    "random_configs",
    "random_operands",
    "serial_twin",
]
