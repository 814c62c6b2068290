"""What ONNX and torch have in common: functions from plain arguments to expressions of Relax."""
