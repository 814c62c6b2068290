"""What the tests of schedules share: cases, configurations, operands, the check against the reference, serial twins."""

from ..serial import serial_twin
from .cases import CONV2D, DEPTHWISE, Case
from .closeness import assert_close
from .configs import random_configs
from .operands import Sample, check_result, random_operands

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
