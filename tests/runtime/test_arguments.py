"""Checks of arguments in the functions of a network: in those that get its inputs, and in no others."""

from __future__ import annotations

import re

import pytest
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv.lowering.cpu.library import functions_of_inputs
from tvmconv.network import Network

torch = pytest.importorskip("torch")


def code(network: Network) -> str:
    """Return the code of a network's functions in LLVM's language."""
    (library,) = network._executable.mod.imports
    return str(library.inspect_source("ll"))


def checked(network: Network) -> list[str]:
    """Return the functions that check their arguments, by what they say if these are wrong."""
    return re.findall(r"(\w+)\(\w+: Tensor\(", code(network))


@pytest.mark.parametrize("batch", [2, "N"])
def test_an_input_that_is_not_contiguous_is_refused(batch: int | str) -> None:
    """The virtual machine, by which a deployed network is called, does not look at strides."""
    graph = Graph((batch, 8, 6, 6))
    y = graph.node("Sigmoid", graph.conv(graph.conv("x", (8, 8, 1, 1)), (8, 1, 3, 3), group=8))
    network = tvmconv.build(graph.model(graph.node("Concat", y, y, axis=1)))
    (name,) = checked(network)
    assert name.startswith("tvmconv_")
    with pytest.raises(ValueError, match="expected to be compact array"):
        network.machine["main"](torch.rand((2, 8, 6, 6)).contiguous(memory_format=torch.channels_last))


def test_what_is_called_with_a_view_of_an_input_checks_it() -> None:
    graph = Graph((2, 8, 6, 6))
    view = graph.node("Reshape", "x", graph.constant([16, 36], "int64"))
    y = graph.node("MatMul", view, graph.random(36, 5))
    assert len(checked(tvmconv.build(graph.model(graph.node("MatMul", y, graph.random(5, 3)))))) == 1


def test_what_a_kernel_checks_itself_stays() -> None:
    """A kernel for any width counts the bytes of a row in 32 bits."""
    graph = Graph((1, 16, 8, "W"))
    network = tvmconv.build(graph.model(graph.conv(graph.conv("x", (16, 16, 1, 1)), (16, 16, 3, 3))))
    assert [layer.kernel for layer in network.layers] == ["tvmconv cpu/direct", "tvmconv cpu/winograd"]
    (name,) = checked(network)
    assert name.startswith("tvmconv_direct")
    assert re.search(r"too large, an output has over \d+ columns", code(network))


@I.ir_module
class Cast:
    """A network that calls a function with its input under another name."""

    @T.prim_func(private=True, s_tir=True)
    def read(x: T.Buffer((2, 3), "float32"), y: T.Buffer((2, 3), "float32")) -> None:  # noqa: N805
        for i, j in T.grid(2, 3):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj]

    @R.function(pure=False)
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):  # noqa: N805
        cast = R.match_cast(x, R.Tensor((2, 3), "float32"))
        Cast.read(cast, y)
        return y


def test_an_input_under_another_name_is_followed() -> None:
    assert functions_of_inputs(Cast) == {"read"}
