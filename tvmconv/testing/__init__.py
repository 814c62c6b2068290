"""What the tests of schedules share: cases, operands, the comparison with the reference, and the serial twin."""

from .cases import DEPTHWISE, Case
from .closeness import assert_close
from .operands import check_result, random_operands
from .serial import serial_twin

__all__ = ["DEPTHWISE", "Case", "assert_close", "check_result", "random_operands", "serial_twin"]
