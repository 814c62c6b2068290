"""The last passes: from a module of scheduled functions to calls of TVM's virtual machine, with all memory."""

from __future__ import annotations

from contextlib import suppress

import tvm
from tvm import relax
from tvm.error import InternalError
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars

from tvmconv.lowering.workspace import has_workspace
from tvmconv.targets import backend_of

from ...between.empty_tensors import make_empty_constants
from ...graph.graph import has_branches, operator_name
from ...runtime.session import IN_CAPTURE, IN_GRAPHS, IN_MEMORY
from .memory_plan import open_sizes, plan_memory

RESHAPES = "RewriteDataflowReshape"
"""The name of TVM's pass that turns functions which only reshape into views."""

OPTION = "relax.backend.use_cuda_graph"
"""TVM's option that puts launches into CUDA graphs."""

SIZES_IN_GRAPHS = "relax.rewrite_cuda_graph.capture_symbolic_vars"
"""The attribute of a function with the names of open sizes; TVM's pass makes a graph for each set of their values."""

RUN_OR_CAPTURE = "vm.builtin.cuda_graph.run_or_capture"


def network_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """Return TVM's own pipeline for a target with `plan_memory` added and, for a GPU, `use_cuda_graphs` for TVM's pass.

    TVM's own planning is left out of a network with branches: it would give a branch memory that only the other one
    allocates.
    """
    on_gpu = backend_of(target).on_gpu
    source = cuda if on_gpu else cpu
    passes = [
        *source.library_dispatch_passes(target),
        *source.legalize_passes(target),
        tvm.transform.module_pass(lambda mod, _: make_empty_constants(mod), opt_level=0, name="make_empty_constants"),
        *source.dataflow_lower_passes(target),
        tvm.transform.module_pass(lambda mod, _: plan_memory(mod, on_gpu), opt_level=0, name="plan_memory"),
        *with_cuda_graphs(source.finalize_passes(target)),
    ]

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        left_out = ("StaticPlanBlockMemory",) if has_branches(mod) else ()
        kept = [each for each in passes if each.info.name not in left_out]
        at = next(index for index, each in enumerate(kept) if each.info.name == RESHAPES)
        with target:
            mod = tvm.transform.Sequential(kept[:at])(mod)
            with suppress(InternalError):  # of sizes that TVM cannot divide by each other; reshapes are copies then
                mod = kept[at](mod)
            return tvm.transform.Sequential(kept[at + 1 :])(mod)

    return tvm.transform.module_pass(run, opt_level=0, name="network_pipeline")


def with_cuda_graphs(passes: list[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """Return the passes of a pipeline with `use_cuda_graphs` instead of TVM's pass "RewriteCUDAGraph"."""
    ours = tvm.transform.module_pass(lambda mod, _: use_cuda_graphs(mod), opt_level=0, name="use_cuda_graphs")
    return [ours if each.info.name == "RewriteCUDAGraph" else each for each in passes]


def use_cuda_graphs(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a function that captures its launches in CUDA graphs first and replays them from then on.

    So the GPU gets many launches at once and need not wait for the CPU between them. Where TVM's option
    `relax.backend.use_cuda_graph` is set to False, no launch is in a graph.

    A graph holds the launches that read and write nothing but the network's own memory; outside of it are those that
    read the inputs or write the outputs, and all whose sizes the model's numbers decide. A network that sorts has no
    graph: TVM's kernels for sorting take a workspace from a pool, which may give it back while a graph is still to use
    it.

    Where sizes are known, the function is "main". While a caller captures a graph, CUDA allows neither another capture
    nor the launch of a graph: so there is a second function, `IN_CAPTURE`, with the same launches in the same memory,
    one by one. Where sizes are open, the function is `IN_GRAPHS`, beside `IN_MEMORY`, whose launches stay one by one: a
    graph is for the sizes and the memory that were given when it was captured, and for no others.

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
