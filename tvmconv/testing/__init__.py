"""What the tests of schedules share: cases, configurations, operands, the check against the reference, serial twins."""

from ..serial import serial_twin
from .cases import CONV2D, DEPTHWISE, Case
from .closeness import assert_close
from .configs import random_configs
from .operands import check_result, check_sample, random_operands

__all__ = [
    "CONV2D",
    "DEPTHWISE",
    "Case",
    "assert_close",
    "check_result",
    "check_sample",
    "random_configs",
    "random_operands",
    "serial_twin",
]
