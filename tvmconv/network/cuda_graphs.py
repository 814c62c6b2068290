"""CUDA graphs of a network: the GPU gets many launches at once and need not wait for the CPU between them."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.backend.cuda.pipeline import (
    dataflow_lower_passes,
    finalize_passes,
    legalize_passes,
    library_dispatch_passes,
)
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars

from ..workspace import has_workspace
from .graph import operator_name
from .network import IN_CAPTURE

OPTION = "relax.backend.use_cuda_graph"
RUN_OR_CAPTURE = "vm.builtin.cuda_graph.run_or_capture"


def cuda_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """Return TVM's own pipeline for a GPU, with `use_cuda_graphs`."""
    passes = [
        *library_dispatch_passes(target),
        *legalize_passes(target),
        *dataflow_lower_passes(target),
        *with_cuda_graphs(finalize_passes(target)),
    ]

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return tvm.transform.module_pass(run, opt_level=0, name="cuda_pipeline")


def with_cuda_graphs(passes: list[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """Return the passes of a pipeline with `use_cuda_graphs` in the place of TVM's."""
    ours = tvm.transform.module_pass(lambda mod, _: use_cuda_graphs(mod), opt_level=0, name="use_cuda_graphs")
    return [ours if each.info.name == "RewriteCUDAGraph" else each for each in passes]


def use_cuda_graphs(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a "main" that captures its launches in CUDA graphs first and replays them from then on.

    Where TVM's option `relax.backend.use_cuda_graph` is set to False, nothing is in a graph.

    In a graph are the launches that read and write nothing but the network's own memory; outside of it are those that
    read the inputs or write the outputs, and all whose sizes are known only at run time. A network that sorts has none:
    TVM's kernels for that take a workspace from a pool, which may give it back while a graph is still to use it. Where
    a caller captures a graph, CUDA allows neither another capture nor the launch of a graph: so there is a second
    function, `IN_CAPTURE`, with the same launches in the same memory, one by one.

    Before: `def main(x): y = conv(x); z = conv(y); return conv(z)`.
    After: `def main(x): y = conv(x); z = run_or_capture(main_cuda_graph_capture, y); return conv(z)`, and
    `def main_in_capture(x): y = conv(x); z = main_cuda_graph_capture(y); return conv(z)`.
    """
    wanted = tvm.transform.PassContext.current().config.get(OPTION, True)
    if not wanted or any(map(has_workspace, (f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)))):
        return mod
    with tvm.transform.PassContext(config={OPTION: True}):  # without, TVM's pass does nothing
        mod = relax.transform.RewriteCUDAGraph()(mod).clone()
    one_by_one = _OneByOne(mod).visit_expr(copy_with_new_vars(mod["main"]))
    mod[IN_CAPTURE] = one_by_one.with_attr("global_symbol", IN_CAPTURE)
    return mod


@mutator
class _OneByOne(PyExprMutator):  # type: ignore[misc]
    """A mutator that replaces each launch of a graph by a call of the function that is captured in it."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if operator_name(call) != "relax.call_builtin_with_ctx" or call.args[0].global_symbol != RUN_OR_CAPTURE:
            return super().visit_call_(call)
        function, arguments, *_ = call.args[1].fields
        return self.visit_expr(relax.Call(function, list(arguments.fields)))
