"""The result of `relay.build`: a library of one network, which is started on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import tvm

from tvmconv.network import Model, Network
from tvmconv.network import build as build_network
from tvmconv.network.loading import load
from tvmconv.problem.errors import InvalidArgumentError

NAME = "default"
"""The name of the network in its library, which Relay's `mod_name` could change."""


class Library:
    """A built network under Relay's interface: `library["default"](device)` is what a `GraphModule` runs."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def __getitem__(self, name: str) -> Callable[[tvm.runtime.Device], Network]:
        if name != NAME:
            raise InvalidArgumentError("name", name, repr(NAME))
        return self._network_on

    def export_library(self, path: str | PathLike[str]) -> None:
        """Write the network to one file; `load_module` and `tvmconv.load` read it."""
        self.network.export(path)

    def _network_on(self, device: tvm.runtime.Device) -> Network:
        if device != self.network.device:
            raise InvalidArgumentError("device", str(device), f"{self.network.device}, which it was built for")
        return self.network


def build(mod: Model, target: Any = "llvm", params: Mapping[str, Any] | None = None) -> Library:
    """Compile a model of `relay.frontend` for anything that `tvmconv.targets.resolve_target` takes.

    `params` has to be the frontend's parameters, which are empty: weights are in the model itself.

    >>> import torch
    >>> from tvmconv import relay
    >>> module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> mod, params = relay.frontend.from_pytorch(module, [("x", (1, 3, 16, 16))])
    >>> library = relay.build(mod, "llvm", params)
    >>> library.export_library("net.so")
    """
    if params:
        raise InvalidArgumentError("params", list(params), "none: weights are constants of the model")
    return Library(build_network(mod, target))


def load_module(path: str | PathLike[str]) -> Library:
    """Load a file that `export_library` wrote, as `tvm.runtime.load_module` was used.

    >>> import torch
    >>> from tvmconv import relay
    >>> module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> mod, params = relay.frontend.from_pytorch(module, [("x", (1, 3, 16, 16))])
    >>> relay.build(mod, "llvm", params).export_library("net.so")
    >>> from tvmconv.contrib import graph_executor
    >>> import tvm
    >>> executor = graph_executor.GraphModule(relay.load_module("net.so")["default"](tvm.cpu()))
    >>> executor.run(x=torch.zeros(1, 3, 16, 16))
    >>> executor.get_output(0).shape
    (1, 8, 14, 14)
    """
    network = load(path)
    if not isinstance(network, Network):
        raise InvalidArgumentError("path", str(path), "a file with a network; this one holds an operator")
    return Library(network)
