"""Schedules for CPUs."""

from importlib import import_module

MODULES = {
    "amx": "amx",
    "depthwise": "depthwise",
    "depthwise_dot": "dot.depthwise_dot",
    "direct": "direct",
    "dot": "dot",
    "im2win": "direct.im2win",
    "input_gradient": "gradients.input",
    "pointwise": "pointwise",
    "weight_gradient": "gradients.weight",
    "winograd": "winograd",
    "sparse": "sparse",
}
"""The module of each template, by its algorithm; each is an attribute of this package under the algorithm's name."""

globals().update((algorithm, import_module(f".{path}", __name__)) for algorithm, path in MODULES.items())
