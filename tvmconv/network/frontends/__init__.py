"""Importers of ONNX and torch, and the code that both share."""
