"""CUDA graphs of a network: the GPU gets many launches at once and need not wait for the CPU between them."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars

from tvmconv.lowering.workspace import has_workspace

from ...graph.graph import operator_name
from ...runtime.session import IN_CAPTURE, IN_GRAPHS, IN_MEMORY
from .memory_plan import open_sizes

OPTION = "relax.backend.use_cuda_graph"
SIZES_IN_GRAPHS = "relax.rewrite_cuda_graph.capture_symbolic_vars"
"""The attribute of a function with the names of open sizes for which TVM's pass is to make a graph for each value."""

RUN_OR_CAPTURE = "vm.builtin.cuda_graph.run_or_capture"


def with_cuda_graphs(passes: list[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """Return the passes of a pipeline with `use_cuda_graphs` in the place of TVM's."""
    ours = tvm.transform.module_pass(lambda mod, _: use_cuda_graphs(mod), opt_level=0, name="use_cuda_graphs")
    return [ours if each.info.name == "RewriteCUDAGraph" else each for each in passes]


def use_cuda_graphs(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a function that captures its launches in CUDA graphs first and replays them from then on.

    Where TVM's option `relax.backend.use_cuda_graph` is set to False, nothing is in a graph.

    In a graph are the launches that read and write nothing but the network's own memory; outside of it are those that
    read the inputs or write the outputs, and all whose sizes the model's numbers decide. A network that sorts has none:
    TVM's kernels for that take a workspace from a pool, which may give it back while a graph is still to use it.

    Where sizes are known, the function is "main". Where a caller captures a graph, CUDA allows neither another capture
    nor the launch of a graph: so there is a second function, `IN_CAPTURE`, with the same launches in the same memory,
    one by one. Where sizes are open, the function is `IN_GRAPHS`, beside `IN_MEMORY`, whose launches stay one by one:
    a graph has the sizes and the memory that were given when it was captured, and is one of them alone.

    Before: `def main(x): y = conv(x); z = conv(y); return conv(z)`.
    After: `def main(x): y = conv(x); z = run_or_capture(main_cuda_graph_capture, y); return conv(z)`, and
    `def main_in_capture(x): y = conv(x); z = main_cuda_graph_capture(y); return conv(z)`.
    """
    wanted = tvm.transform.PassContext.current().config.get(OPTION, True)
    if not wanted or any(map(has_workspace, (f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)))):
        return mod
    is_open = any(var.name_hint == IN_MEMORY for var in mod.get_global_vars())
    captured, other = (IN_GRAPHS, IN_MEMORY) if is_open else ("main", IN_CAPTURE)
    mod = mod.clone()
    if is_open:
        function = copy_with_new_vars(mod[IN_MEMORY])
        sizes = [var.name for var in open_sizes(function)]
        mod[IN_GRAPHS] = function.with_attrs({"global_symbol": IN_GRAPHS, SIZES_IN_GRAPHS: sizes})
    with tvm.transform.PassContext(config={OPTION: True}):  # without, TVM's pass does nothing
        mod = relax.transform.RewriteCUDAGraph()(mod).clone()
    one_by_one = _OneByOne(mod).visit_expr(copy_with_new_vars(mod[captured]))
    mod[other] = one_by_one.with_attr("global_symbol", other)
    return mod


@mutator
class _OneByOne(PyExprMutator):  # type: ignore[misc]
    """A mutator that replaces each launch of a graph by a call of the function that is captured in it."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if operator_name(call) != "relax.call_builtin_with_ctx" or call.args[0].global_symbol != RUN_OR_CAPTURE:
            return super().visit_call_(call)
        function, arguments, *_ = call.args[1].fields
        return self.visit_expr(relax.Call(function, list(arguments.fields)))
