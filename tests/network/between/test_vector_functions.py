"""Exponentials and the like between convolutions on a CPU: numbers, and that LLVM makes vectors of them."""

from __future__ import annotations

import re

import numpy as np

from tests.shared.network_graph import Graph
from tvmconv.compute.functions import Float64
from tvmconv.network import build
from tvmconv.targets.devices import cpu_of

NUMBERS = (0, 1e-30, 0.1, 1, 5, 20, 86, 88.3, 88.5, 88.72, 88.73, 100, np.inf)
"""Where functions are checked, and the negatives of these: exp is finite up to 88.72, which is close to its end."""


def test_numbers() -> None:
    """Each is right to a few roundings where numbers are normal, and so are NaN, infinities and what is nearly one."""
    x = np.float32([*NUMBERS, *(-each for each in NUMBERS), np.nan, -87.5, -95, -103, *np.linspace(-9, 9, 500)])
    graph = Graph((x.size,))
    names = ("Exp", "Erf", "Sigmoid", "Tanh")
    y = build(graph.model(*(graph.node(name, "x") for name in names)))(x)
    wide, by_hand = x.astype("float64"), Float64()
    with np.errstate(over="ignore"):
        expected = np.exp(wide), by_hand.erf(wide), 1 / (1 + np.exp(-wide)), np.tanh(wide)
        for name, found, exact in zip(names, y, expected, strict=True):
            rounded = exact.astype("float32")
            np.testing.assert_allclose(found, rounded, rtol=6e-7, atol=2e-38, err_msg=name)


def test_vectors() -> None:
    """A softmax calls no function of the C library for each of its elements."""
    graph = Graph((64, 208))  # whole vectors of any target
    total = graph.node("Add", graph.node("Erf", "x"), graph.node("Mul", graph.node("Tanh", "x"), "x"))
    network = build(graph.model(graph.node("Softmax", total)))
    (machine_code,) = network._executable.mod.imports
    calls = set(re.findall(r"call [^@\n]*<.*?@([\w.]+)", code := machine_code.inspect_source("ll")))
    assert calls == {f"llvm.fmuladd.v{cpu_of(network.target).lanes}f32"}
    assert not re.search(r"@(llvm\.)?(exp|tanh|erf)f?\b", code)


def test_functions_of_functions_are_left_alone() -> None:
    """A chain of them would take lowering minutes."""
    graph = Graph((64, 200))
    inner = graph.node("Sigmoid", graph.node("Erf", graph.node("Exp", "x")))
    (machine_code,) = build(graph.model(inner))._executable.mod.imports
    assert "@erff" in machine_code.inspect_source("ll")
