"""Schedules for NVIDIA GPUs."""

from importlib import import_module

MODULES = {
    "attention": "attention",
    "depthwise": "depthwise",
    "depthwise_bands": "depthwise_bands",
    "depthwise_nhwc": "depthwise_nhwc",
    "depthwise_planes": "depthwise_planes",
    "direct": "simt.direct",
    "gate": "gate",
    "grouped": "grouped",
    "im2win": "simt.im2win",
    "input_gradient": "gradients.input",
    "input_gradient_nhwc": "gradients.input_nhwc",
    "matvec": "matvec",
    "shallow": "shallow",
    "tensor": "tensor",
    "weight_gradient": "gradients.weight",
    "weight_gradient_diagonals": "gradients.diagonals",
    "weight_gradient_nhwc": "gradients.weight_nhwc",
    "winograd": "tensor.winograd",
    "linear": "tensor.linear",  # behind `tensor`, which is taken where estimates are equal
    "sparse": "sparse",
}
"""The module of each template, by its algorithm; each is an attribute of this package under the algorithm's name."""

globals().update((algorithm, import_module(f".{path}", __name__)) for algorithm, path in MODULES.items())
