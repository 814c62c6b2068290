"""Graphs of torch with operators that tvmconv lacks: torch runs these, networks of tvmconv the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any

from tvmconv.network import import_model
from tvmconv.problem.errors import UnsupportedModelError

if TYPE_CHECKING:
    import torch

Run = Callable[..., tuple[Any, ...]]
"""A function that runs a graph on its inputs."""

NAMED = 5
"""The most operators that a warning names."""


def split_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    weights: Sequence[int],
    compile_part: Callable[..., Run],
    error: UnsupportedModelError,
) -> Run:
    """Return the function that runs a graph on inputs like these, with parts that `compile_part` compiles.

    `weights` are the indices of inputs that are weights; `compile_part` gets a part of the graph whose operators can be
    imported, and the indices of the weights among its inputs. The graph's operators are first brought into a form in
    which no operator changes a tensor, except for those at the end that write to inputs, so that parts do not share
    memory. Raises the `error` where no operator is supported.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    others: dict[int, Any] = {}

    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        values = list(inputs)
        for i, tensor in zip(tensors, given, strict=True):
            values[i] = tensor
        results = graph(*values)
        others.update({i: value for i, value in enumerate(results) if not isinstance(value, torch.Tensor)})
        return [value for value in results if isinstance(value, torch.Tensor)]

    with torch.no_grad():
        pure = torch.func.functionalize(function, remove="mutations")
        whole = make_fx(pure, tracing_mode="fake")(*(inputs[i].detach() for i in tensors))
    total = sum(node.op == "call_function" for node in whole.graph.nodes)
    reasons = _unsupported(whole)

    class Supported(OperatorSupportBase):  # type: ignore[misc]
        def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
            return node.op == "call_function" and node not in reasons

    partitioner = CapabilityBasedPartitioner(whole, Supported(), allows_single_node_partition=True)
    names = [node.name for node in whole.graph.nodes if node.op == "placeholder"]
    changed = {node.args[0].name for node in whole.graph.nodes if node.target is torch.ops.aten.copy_.default}
    constant = {names[index] for index, i in enumerate(tensors) if i in weights} - changed
    parts = partitioner.partition_and_fuse()
    count = 0
    for node in parts.graph.nodes:
        if node.op == "call_module":
            count += 1
            constant_arguments = [index for index, each in enumerate(node.args) if each.name in constant]
            part = getattr(parts, node.target)
            setattr(parts, node.target, _compiled_part(part, partial(compile_part, weights=constant_arguments)))
    if not count:
        raise error
    _tell(reasons, total)

    def run(*values: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            outputs = list(parts(*(values[i] for i in tensors)))
        for i, value in sorted(others.items()):
            outputs.insert(i, value)
        return tuple(outputs)

    return run


def _compiled_part(part: torch.fx.GraphModule, compile_part: Callable[[torch.fx.GraphModule], Run]) -> torch.nn.Module:
    """Return a part of a graph as a module that a network runs; torch runs it where TVM cannot compile it."""
    import torch

    output = part.graph.output_node()
    is_one = not isinstance(output.args[0], (tuple, list))
    if is_one:  # a graph has several results
        output.args = ((output.args[0],),)
        part.recompile()
    runs = [compile_part(part)]

    class Part(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *inputs: torch.Tensor) -> Any:
            try:
                results = runs[0](*inputs)
            except UnsupportedModelError as error:
                warnings.warn(f"torch runs a part of a graph that tvmconv cannot compile: {error}", stacklevel=2)
                runs[0] = part
                results = part(*inputs)
            return results[0] if is_one else results

    return Part()


def _tell(reasons: Mapping[torch.fx.Node, str], total: int) -> None:
    """Warn of the operators that torch runs."""
    reasons_by_operator = list(dict.fromkeys(f"{node.target}: {reason}" for node, reason in reasons.items()))
    more = f"; and {len(reasons_by_operator) - NAMED} more" if len(reasons_by_operator) > NAMED else ""
    warnings.warn(
        f"torch runs {len(reasons)} of the {total} operators of a graph, which tvmconv lacks, and tvmconv the others: "
        f"{'; '.join(reasons_by_operator[:NAMED])}{more}",
        stacklevel=2,
    )


def _unsupported(graph: torch.fx.GraphModule) -> dict[torch.fx.Node, str]:
    """Return the operators of a graph that cannot be imported, each with the reason."""
    alike: dict[Any, list[torch.fx.Node]] = {}
    reasons = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is getitem:
            continue
        if getattr(node.target, "_schema", None) is None or node.target._schema.is_mutable:
            reasons[node] = "it changes a tensor"
        elif "val" not in node.meta:
            reasons[node] = "it checks, and returns nothing"
        else:
            alike.setdefault(_description(node), []).append(node)
    for first, reason in _refused([nodes[0] for nodes in alike.values()]).items():
        reasons |= dict.fromkeys(alike[_description(first)], reason)
    # One result of several is refused together with the operator that computes them.
    for node in graph.graph.nodes:
        if node.target is getitem and node.args[0] in reasons:
            reasons[node] = reasons[node.args[0]]
    return reasons


def _description(node: torch.fx.Node) -> str:
    """Return a key for what an operator computes: its name, its numbers, and the shapes and types of its tensors."""
    import torch

    def described(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        tensor = value.meta["val"]
        return f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}" if isinstance(tensor, torch.Tensor) else tensor

    return f"{node.target}{torch.fx.node.map_arg((node.args, node.kwargs), described)}"


def _refused(nodes: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, str]:
    """Return the operators that cannot be imported, with the reason for each; the search halves the list."""
    if not nodes:
        return {}
    try:
        import_model(*_module_of(nodes))
    except UnsupportedModelError as error:
        if len(nodes) == 1:
            return {nodes[0]: str(error)}
        middle = len(nodes) // 2
        return {**_refused(nodes[:middle]), **_refused(nodes[middle:])}
    return {}


def _module_of(nodes: Sequence[torch.fx.Node]) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a module of these operators, none of which reads another, and inputs for it: their arguments."""
    import torch

    graph, results = torch.fx.Graph(), []
    examples: list[torch.Tensor] = []
    for node in nodes:
        inputs = {}
        for argument in node.all_input_nodes:
            inputs[argument] = graph.placeholder(f"input_{len(examples)}")
            value = argument.meta["val"]
            examples.append(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device))
        copy = graph.node_copy(node, inputs.__getitem__)
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            results.append(copy)
        else:
            wanted = [index for index, each in enumerate(value) if isinstance(each, torch.Tensor)]
            results += [graph.call_function(getitem, (copy, index)) for index in wanted]
    graph.output(tuple(results))
    return torch.fx.GraphModule(torch.nn.Module(), graph), tuple(examples)
