"""Errors of network builds: a limit of TVM is told with the operator at fault, a bug of tvmconv comes out as itself."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import product
from typing import Any

import onnx
import pytest
import tvm
from onnx import helper
from tvm import te, topi

from tests.shared.network_graph import Graph
from tests.shared.sparing import in_turns, sparing
from tvmconv.network import build, compiling, import_model, passes
from tvmconv.network.between.cpu import spreading
from tvmconv.network.frontends.onnx import conversion as onnx_conversion
from tvmconv.network.graph.faults import Refused, tvm_errors_as_refusals
from tvmconv.network.passes import execution
from tvmconv.problem.errors import UnsupportedModelError
from tvmconv.targets import resolve_target

X = (1, 8, 9, 11)
CUDA = {"kind": "cuda", "arch": "sm_90"}


def tensor(name: str, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def small() -> onnx.ModelProto:
    graph = Graph(X)
    return graph.model(graph.node("Sqrt", graph.node("MaxPool", graph.conv("x", (4, 8, 3, 3)), kernel_shape=[2, 2])))


def broken(*arguments: Any, **named: Any) -> Any:
    raise TypeError("a bug of ours")


def breaking(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Break the pass with a name, in each list of passes."""
    for part in ("IMPORTING", "BUILDING", "COMPILING"):
        changed = (each._replace(function=broken) if each.name == name else each for each in getattr(passes, part))
        monkeypatch.setattr(passes, part, tuple(changed))


PASSES = {
    "call_kernels": "llvm",
    "sum_in_float32": "llvm",
    "spread_over_threads": "llvm",
    "spread_over_gpu": CUDA,
}
"""The passes of tvmconv that `build` runs, with their targets."""

INSIDE = {"mark_for_vectors": (spreading, "llvm"), "use_cuda_graphs": (execution, CUDA)}
"""Functions that passes call, with their files and targets; TVM's pass manager calls the last of them."""


@pytest.mark.parametrize("name", [*PASSES, *INSIDE])
def test_bugs_of_passes_come_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = import_model(small())
    if name in PASSES:
        breaking(monkeypatch, name)
    else:
        monkeypatch.setattr(INSIDE[name][0], name, broken)
    with pytest.raises(TypeError, match="a bug of ours"):
        build(model, PASSES.get(name) or INSIDE[name][1])


@pytest.mark.parametrize("where", ["converter", "refusals", "constants", "finish"])
def test_bugs_of_importing_come_out(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "converter":  # TVM's importer calls it
        monkeypatch.setitem(onnx_conversion.CONVERTERS, "MaxPool", broken)
    elif where == "refusals":
        monkeypatch.setattr(onnx_conversion, "refuse_misread", broken)
    elif where == "constants":
        monkeypatch.setattr(onnx_conversion, "evaluated", broken)
    else:
        breaking(monkeypatch, "fold_constants")
    with pytest.raises(TypeError, match="a bug of ours"):
        import_model(small())


def test_bugs_in_code_without_a_file_come_out() -> None:
    for name, refused in (
        ("tvmconv.network.passes.convolutions.concat_slices", False),
        ("tvm.relax.op", True),
        ("numpy.linalg", False),
    ):
        code = compile("def run(): raise TypeError('a bug')", "<generated>", "exec")
        module: dict[str, Any] = {"__name__": name}
        exec(code, module)
        with pytest.raises(Refused if refused else TypeError, match="a bug"), tvm_errors_as_refusals():
            module["run"]()


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    return fail


ERRORS = [
    ZeroDivisionError("not today"),
    ValueError("not today"),
    tvm.error.InternalError("not today"),
    KeyError("not today"),
]


@pytest.mark.parametrize(("error", "target"), sparing(product(ERRORS, ("llvm", CUDA)), in_turns), ids=repr)
def test_what_tvm_cannot_lower(error: Exception, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's lowering of an operator calls a function of TVM that fails."""
    model = import_model(small())
    exec_globals = {"error": error}
    exec(compile("def sqrt(*arguments, **named): raise error", topi.__file__, "exec"), exec_globals)
    monkeypatch.setattr(topi, "sqrt", exec_globals["sqrt"])
    op = tvm.ir.Op.get("relax.sqrt")
    old = op.get_attr("FLegalize")
    op.reset_attr("FLegalize")
    op.set_attr("FLegalize", lambda builder, call: builder.call_te(topi.sqrt, call.args[0]))
    try:
        with pytest.raises(
            UnsupportedModelError, match=r"TVM cannot compile sqrt \(node 'Sqrt_sqrt2_output'\) for "
        ) as caught:
            build(model, target)
    finally:
        op.reset_attr("FLegalize")
        op.set_attr("FLegalize", old)
    assert "not today" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert caught.value.exit_code == 3


def test_what_tvm_cannot_compute_for_a_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter calls TVM, which calls a function of TVM that fails: this is no bug of the converter."""

    def converter(node: Any) -> Any:
        return node.builder.emit_te(topi.transpose, node.operands[0], [0, 1, 2, 7])

    monkeypatch.setitem(onnx_conversion.CONVERTERS, "MaxPool", converter)
    with pytest.raises(UnsupportedModelError, match="MaxPool"):
        import_model(small())


def test_bugs_of_computations_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM calls what a converter computes an element by."""

    def converter(node: Any) -> Any:
        return node.builder.emit_te(lambda x: te.compute(x.shape, lambda *at: broken(*at)), node.operands[0])

    monkeypatch.setitem(onnx_conversion.CONVERTERS, "MaxPool", converter)
    with pytest.raises(TypeError, match="a bug of ours"):
        import_model(small())


def test_the_search_for_an_operator_ends() -> None:
    """Compiling each operator of a large model alone may take minutes: the message says that it was stopped."""
    model = import_model(small())
    fault, problem = compiling.operator_at_fault(model.mod, resolve_target("llvm"), "not today", seconds=-1.0)
    assert (fault, problem) == ("the model (the first 0 operators that were tried in -1 s compile alone)", "not today")


def refused_in_a_branch() -> onnx.ModelProto:
    branches = {
        name: helper.make_graph([helper.make_node(operator, ["x"], ["z"])], name, [], [tensor("z", None)])
        for name, operator in (("then_branch", "Relu"), ("else_branch", "Unknown"))
    }
    nodes = [helper.make_node("Sqrt", ["x"], ["a"]), helper.make_node("If", ["c"], ["y"], **branches)]
    inputs = [tensor("x", (2, 3)), helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, ())]
    return helper.make_model(helper.make_graph(nodes, "branches", inputs, [tensor("y", None)]))


def refused_behind_a_node() -> onnx.ModelProto:
    graph = Graph(X)
    return graph.model(graph.node("Unknown", graph.node("Sqrt", "x")))


@pytest.mark.parametrize("model", [refused_behind_a_node, refused_in_a_branch])
def test_a_refused_import_prints_nothing(
    model: Callable[[], onnx.ModelProto], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"Unknown \(node"):
        import_model(model())
    gc.collect()  # TVM prints when the builder of the module is freed
    assert capfd.readouterr() == ("", "")
