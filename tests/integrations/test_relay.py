"""The names of Relay: scripts of that time, as on the page on migrating, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.pages import snippets
from tvmconv import autotvm, relay
from tvmconv.autotvm.record import append
from tvmconv.contrib.graph_executor import GraphModule
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import device_facts

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()


@pytest.fixture
def model() -> onnx.ModelProto:
    """Return a model with an open batch, two inputs and two outputs."""
    graph = Graph(("batch", 4, 14, 14))
    graph.inputs.append(graph._value("bias", (8, 1, 1)))
    y = graph.node("Add", graph.conv("x", (8, 4, 3, 3)), "bias")
    return graph.model(y, graph.node("Relu", graph.conv(y, (8, 1, 3, 3), group=8)))


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {"x": (1, 4, 14, 14), "bias": (8, 1, 1)}
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def started(model: onnx.ModelProto) -> GraphModule:
    mod, params = relay.frontend.from_onnx(model, {"x": (1, 4, 14, 14)})
    return GraphModule(relay.build(mod, "llvm", params=params)["default"](tvm.cpu()))


def check(module: GraphModule, model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> None:
    expected = ReferenceEvaluator(model).run(None, arrays)
    assert module.get_num_outputs() == len(expected)
    for index, reference in enumerate(expected):
        np.testing.assert_allclose(module.get_output(index).numpy(), reference, rtol=0, atol=1e-5)


def test_inputs_are_set_and_outputs_fetched(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> None:
    module = started(model)
    assert module.get_num_inputs() == 2
    module.set_input("x", arrays["x"])
    module.set_input(1, arrays["bias"])
    module.run()
    check(module, model, arrays)
    arrays["bias"][...] = 2  # what was set is a copy
    assert (module.get_input("bias").numpy() != 2).all()
    module.run(bias=arrays["bias"])
    check(module, model, arrays)
    module.set_input(**arrays)
    out = tvm.runtime.empty((1, 8, 10, 10))
    module.get_output(1, out)
    np.testing.assert_array_equal(out.numpy(), module.get_output(1).numpy())


def test_benchmark(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> None:
    result = started(model).benchmark(tvm.cpu(), repeat=3, number=2, **arrays)
    assert len(result.results) == 3
    assert 0 < result.min <= result.median <= result.max


def test_library_in_a_file(model: onnx.ModelProto, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    mod, _ = relay.frontend.from_onnx(model, {"x": (1, 4, 14, 14)})
    relay.build(mod).export_library(tmp_path / "model.so")
    for loaded in (relay.load_module(tmp_path / "model.so")["default"](tvm.cpu()), tvmconv.load(tmp_path / "model.so")):
        module = GraphModule(loaded)
        module.run(**arrays)
        check(module, model, arrays)


def test_history_is_applied(tmp_path: Path) -> None:
    graph = Graph((1, 4, 14, 14))
    mod, params = relay.frontend.from_onnx(graph.model(graph.conv("x", (8, 4, 3, 3))))
    (task, *_) = autotvm.extract_from_model(mod, "llvm")
    result = autotvm.MeasureResult((1e-6,), autotvm.Status.OK, None, 0.1, 1e9, device_facts("llvm"))
    tried = autotvm.MeasureInput(task.target, task, task.space.configs[5], autotvm.Stage.SEARCH)
    append(tmp_path / "tuned.log", [autotvm.record.Record.of(tried, result)])
    with autotvm.apply_history_best(tmp_path / "tuned.log"):
        library = relay.build(mod, "llvm", params=params)
    (layer,) = library.network.layers
    assert layer.reason.startswith("tuned: 1.00 µs")
    assert layer.config == msgspec.to_builtins(task.space.configs[5])


def test_migrating(
    model: onnx.ModelProto, arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's scripts run; the old one differs from the new one in its imports alone."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    graph = Graph(("batch", 4, 14, 14))
    onnx.save(graph.model(graph.conv("x", (8, 4, 3, 3))), "model.onnx")
    Path("tuned.log").touch()
    (then,) = snippets(PAGE, "text")
    found = snippets(PAGE)
    assert len(found) == 3
    renamed = then.replace("from tvm import autotvm", "from tvmconv import autotvm").replace(
        "tvm.contrib", "tvmconv.contrib"
    )
    assert renamed == found[0]
    names: dict[str, Any] = {"data": arrays["x"], "module_of_torch": torch.nn.Conv2d(3, 8, 3)}
    for snippet in found:
        exec(compile(snippet, "migrating.md", "exec"), names)
    np.testing.assert_array_equal(names["network"](arrays["x"]), tvmconv.load("model.so")(arrays["x"]))


@pytest.mark.parametrize("traced", [True, False])
def test_module_of_torch(traced: bool) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    ).eval()
    x = torch.randn(2, 3, 9, 9)
    source = torch.jit.trace(module, x) if traced else module
    mod, _ = relay.frontend.from_pytorch(source, [("input0", ((2, 3, 9, 9), "float32"))])
    library = relay.build(mod)
    assert [layer.kernel for layer in library.network.layers] == ["tvmconv cpu/direct"]
    runner = GraphModule(library["default"](tvm.cpu()))
    runner.run(input0=x)
    with torch.no_grad():
        np.testing.assert_allclose(runner.get_output(0).numpy(), module(x).numpy(), rtol=0, atol=1e-5)


def test_what_is_refused(model: onnx.ModelProto, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    mod, _ = relay.frontend.from_onnx(model, {"x": (1, 4, 14, 14)})
    with pytest.raises(InvalidArgumentError, match="params is .'w'.; expected none: weights are constants"):
        relay.build(mod, params={"w": arrays["x"]})
    library = relay.build(mod)
    with pytest.raises(InvalidArgumentError, match="name is 'main'; expected 'default'"):
        library["main"]
    with pytest.raises(InvalidArgumentError, match="device is 'cuda.*which it was built for"):
        library["default"](tvm.cuda())
    module = GraphModule(library["default"](tvm.cpu()))
    for wrong, message in (
        (lambda: module.set_input("y", arrays["x"]), "key is 'y'; expected one of x, bias, or its number"),
        (lambda: module.set_input(2, arrays["x"]), "key is 2"),
        (lambda: module.set_input("x", arrays["bias"]), "x is .8, 1, 1.; expected the shape of x"),
        (lambda: module.get_input("x"), "index is 'x'; expected an input that was set"),
        (lambda: module.get_output(0), "after run"),
        (lambda: module.run(x=arrays["x"]), "inputs is '1 arrays'; expected 2"),
        (lambda: module.benchmark(tvm.cpu(), "main"), "func_name is 'main'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            wrong()
    operator = tvmconv.compile(tvmconv.ConvWorkload.depthwise((1, 2, 4, 4), (2, 1, 3, 3)))
    operator.save(tmp_path / "operator.so")
    with pytest.raises(InvalidArgumentError, match="holds an operator"):
        relay.load_module(tmp_path / "operator.so")
