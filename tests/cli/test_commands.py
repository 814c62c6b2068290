"""The commands that take a model or a workload: their output, and their failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload, compile  # noqa: A004
from tvmconv.checking import verify
from tvmconv.targets import has_gpu

onnx = pytest.importorskip("onnx")

DEPTHWISE = ConvWorkload.depthwise((1, 8, 12, 10), (8, 1, 3, 3), shift=True, activation="relu")
TRANSPOSED = "conv2d_transpose NCHW 1x8x12x10 float32, weight IOHW 8x5x1x1, stride 1x1, padding 0,0,0,0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two depthwise convolutions with equal workloads, and a transposed one with a computed weight."""
    generator = np.random.default_rng(0)
    weights = {
        "w0": generator.standard_normal((8, 1, 3, 3)),
        "b0": generator.standard_normal(8),
        "w1": generator.standard_normal((8, 1, 3, 3)),
        "b1": generator.standard_normal(8),
        "w2": generator.standard_normal((8, 5, 1, 1)),
    }
    depthwise = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 8}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], **depthwise),
        onnx.helper.make_node("Relu", ["c0"], ["r0"]),
        onnx.helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], **depthwise),
        onnx.helper.make_node("Relu", ["c1"], ["r1"]),
        onnx.helper.make_node("ReduceMean", ["r1"], ["means"], axes=[0, 2, 3]),
        onnx.helper.make_node("Transpose", ["means"], ["factors"], perm=[1, 0, 2, 3]),
        onnx.helper.make_node("Mul", ["factors", "w2"], ["weight"]),
        onnx.helper.make_node("ConvTranspose", ["r1", "weight"], ["y"], kernel_shape=[1, 1]),
        onnx.helper.make_node("ArgMax", ["y"], ["best"], axis=1),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 8, 12, 10))],
        [
            onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 5, 12, 10)),
            onnx.helper.make_tensor_value_info("best", onnx.TensorProto.INT64, (1, 1, 12, 10)),
        ],
        [onnx.numpy_helper.from_array(array.astype("float32"), name) for name, array in weights.items()],
    )
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def library(model: Path) -> tuple[Path, dict[str, Any]]:
    """Return the model as a library, and the output of `tvmconv build --json`."""
    path = model.with_name("small.so")
    return path, tvmconv_json("build", model, "-o", path)


def test_tasks(model: Path) -> None:
    report = tvmconv_json("tasks", model)
    depthwise, transposed = report["tasks"]
    assert depthwise.keys() == {
        "number", "description", "workload", "layout", "flops", "count", "names", "obstacle"
    }  # fmt: skip
    assert ConvWorkload.from_json(json.dumps(depthwise["workload"])) == DEPTHWISE
    assert (depthwise["number"], depthwise["count"], len(depthwise["names"])) == (1, 2, 2)
    assert depthwise["obstacle"] is None
    assert transposed["description"] == TRANSPOSED
    assert (transposed["number"], transposed["count"]) == (2, 1)
    assert transposed["obstacle"]
    assert report["flops"] == 2 * (2 * 9 * 8 * 120) + 2 * 8 * 5 * 120


def test_tasks_as_a_table(model: Path) -> None:
    *rows, total = tvmconv("tasks", model).stdout.splitlines()
    assert len(rows) == 3
    assert str(DEPTHWISE) in rows[1]
    assert rows[1].rstrip().endswith("tvmconv")
    assert TRANSPOSED in rows[2]
    assert "TVM: " in rows[2]
    assert total == "3 convolutions, 2 different, 0.0 MFLOPs in all"


def test_build(library: tuple[Path, dict[str, Any]]) -> None:
    path, report = library
    assert report.keys() == {"file", "bytes", "target", "seconds", "layers"}
    assert (report["file"], report["bytes"]) == (str(path), path.stat().st_size)
    assert report["target"]["kind"] == "llvm"
    depthwise, transposed = report["layers"]
    assert depthwise.keys() == {"description", "workload", "kernel", "config", "reason", "count", "names"}
    assert (depthwise["description"], depthwise["count"]) == (str(DEPTHWISE), 2)
    assert depthwise["kernel"] == "tvmconv cpu/depthwise"
    assert depthwise["config"]
    assert depthwise["reason"]
    assert (transposed["description"], transposed["kernel"], transposed["count"]) == (TRANSPOSED, "TVM", 1)


def test_build_for_cuda_needs_no_gpu(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cuda.so"
    result = tvmconv("build", model, "-o", path, "--target", "cuda")
    *rows, last = result.stdout.splitlines()
    assert any(str(DEPTHWISE) in row and "tvmconv cuda/depthwise" in row for row in rows)
    assert last.startswith(f"{path}: ")
    assert " MB for cuda, built in " in last


def test_running_for_cuda_needs_a_gpu(model: Path, tmp_path: Path) -> None:

    if has_gpu():
        pytest.skip("there is a GPU")
    library = tmp_path / "cuda.so"
    assert tvmconv("build", model, "-o", library, "--target", "cuda").exit_code == 0
    for arguments in ([model, "--target", "cuda"], [library]):
        result = tvmconv("run", *arguments)
        assert (result.exit_code, result.stdout) == (7, "")
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: this needs an NVIDIA GPU")


def test_run_model(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "y.npz"
    report = tvmconv_json("run", model, "-o", path, "--verify", "onnxruntime", "--print-time", "--repeat", 3)
    assert report.keys() == {"target", "outputs", "seconds", "comparisons", "profile"}
    assert len(report["seconds"]) == 3
    assert min(report["seconds"]) > 0
    for comparison in report["comparisons"]:
        assert comparison.keys() == {"output", "error", "bound", "ratio", "agrees"}
        assert comparison["agrees"] is True
        assert comparison["error"] <= comparison["bound"]
    with np.load(path) as written:
        assert [output["name"] for output in report["outputs"]] == ["y", "best"] == list(written)
        for output in report["outputs"]:
            array = written[output["name"]]
            assert (tuple(output["shape"]), output["dtype"]) == (array.shape, str(array.dtype))
            numbers = [output["min"], output["max"], output["mean"]]
            np.testing.assert_allclose(numbers, [array.min(), array.max(), array.mean()], rtol=1e-5)


def test_run_library(model: Path, library: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A library computes the same as its model on the same input, which --seed and --fill-mode decide."""
    path, _ = library
    inputs = tmp_path / "x.npz"
    np.savez(inputs, x=np.ones((1, 8, 12, 10), "float32"))

    def outputs(*arguments: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = tvmconv_json("run", *arguments)["outputs"]
        return found

    assert outputs(path) == outputs(model)
    assert outputs(path) == outputs(path, "--seed", 0)
    assert outputs(path) != outputs(path, "--seed", 1)
    assert outputs(path, "-i", inputs) == outputs(path, "--fill-mode", "ones")
    assert outputs(path, "-i", inputs) != outputs(path)


def test_run_as_text(library: tuple[Path, dict[str, Any]]) -> None:
    header, y, best, times = tvmconv("run", library[0], "--print-time").stdout.splitlines()
    assert header.split() == ["name", "shape", "dtype", "min", "max", "mean"]
    assert y.split()[:6] == ["y", "(1,", "5,", "12,", "10)", "float32"]
    assert best.split()[:6] == ["best", "(1,", "1,", "12,", "10)", "int64"]
    assert times.startswith("time: ")
    assert "ms (median of 10)" in times


def test_sizes_that_are_left_open(model: Path, tmp_path: Path) -> None:
    """Every command that takes a model takes the shapes of its inputs."""
    proto = onnx.load(model)
    for axis, name in ((0, "batch"), (2, "height")):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    open_model, library = tmp_path / "open.onnx", tmp_path / "open.so"
    onnx.save(proto, open_model)
    (first, _) = tvmconv_json("tasks", open_model)["tasks"]
    assert first["description"] == "depthwise batchx8xheightx10 -> 8, 3x3 padding 1,1,1,1 + shift+relu"
    told = tvmconv("tasks", open_model).stderr
    assert "known only when the model runs are not in the total" in told
    assert "where sizes are open, FLOPs are those of batch 1, height 224" in told
    (refused,) = tvmconv("run", open_model).stderr.splitlines()
    assert "the shape of x is (1, 8, 'height', 10); expected numbers: give them by --input-shapes" in refused
    shape = ("--input-shapes", "x:[1,8,12,10]")
    (first, _) = tvmconv_json("tasks", open_model, *shape)["tasks"]
    assert (first["description"], first["obstacle"]) == (str(DEPTHWISE), None)
    built = tvmconv_json("build", open_model, "-o", library, *shape)
    assert built["layers"][0]["kernel"] == "tvmconv cpu/depthwise"
    assert tvmconv("run", open_model, "--verify", "onnxruntime", *shape).exit_code == 0
    assert tvmconv("inspect", open_model, "--layer", 1, *shape).exit_code == 0
    plan = tvmconv_json("tune", open_model, "-o", tmp_path / "log", "--dry-run", *shape)
    assert len(plan["tasks"]) == 1
    for arguments, message in (
        (("tasks", open_model, "--input-shapes", "x=1,8"), "is not of the form NAME:[1,3,224,224]"),
        (("tasks", open_model, "--input-shapes", "y:[1,8]"), "shapes is 'y'; expected inputs of the model: x"),
        (
            ("run", library, "--input-shapes", "x:[2,8,12,10]"),
            "input-shapes is 'x:[2, 8, 12, 10]'; expected shapes of x",
        ),
        (("run", library, "--input-shapes", "y:[1]"), "input-shapes is 'y:[1]'; expected shapes of x: float32 (1, 8,"),
        (("tune", "--suite", "networks", "-o", tmp_path / "log", *shape), "--input-shapes goes with MODEL"),
    ):
        result = tvmconv(*arguments)
        assert result.exit_code == 2
        assert message in result.output


def test_a_batch_that_is_left_open(model: Path, tmp_path: Path) -> None:
    """A library is run with any batch, within the bounds that it was built with."""
    library, inputs = tmp_path / "open.so", tmp_path / "x.npz"
    open_batch = ("--input-shapes", "x:[n<=4,8,12,10]")
    (first, _) = tvmconv_json("tasks", model, *open_batch)["tasks"]
    assert (first["description"], first["obstacle"]) == (str(DEPTHWISE).replace("1x8", "nx8"), None)
    assert first["flops"] == DEPTHWISE.flops
    assert "where sizes are open, FLOPs are those of batch 1" in tvmconv("tasks", model, *open_batch).stderr
    built = tvmconv_json("build", model, "-o", library, *open_batch)
    assert built["layers"][0]["kernel"] == "tvmconv cpu/depthwise"
    np.savez(inputs, x=np.ones((3, 8, 12, 10), "float32"))
    for arguments, batch in ((), 1), (("--input-shapes", "x:[4,8,12,10]"), 4), (("-i", inputs), 3):
        assert tvmconv_json("run", library, *arguments)["outputs"][0]["shape"][0] == batch
    refused = tvmconv("run", library, "--input-shapes", "x:[5,8,12,10]")
    assert refused.exit_code == 2
    assert "x is (5, 8, 12, 10); expected the shape of x: float32 (n, 8, 12, 10), with n of 1 to 4" in refused.stderr


def test_run_an_operator_of_any_size(tmp_path: Path) -> None:
    library = tmp_path / "operator.so"
    workload = ConvWorkload.depthwise((2, 4, 8, 9), (4, 1, 3, 3), residual=True)
    compile(workload, open_sizes=("batch", "width")).save(library)
    shapes = ("--input-shapes", "x:[3,4,8,7]", "--input-shapes", "residual:[3,4,8,7]")
    assert tvmconv_json("run", library, *shapes)["outputs"][0]["shape"] == [3, 4, 8, 7]
    assert (
        "the shape of x is (1, 4, 8, 'width'); expected numbers: give them by --input-shapes"
        in tvmconv("run", library).stderr
    )


def test_run_that_disagrees(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = verify.run_onnxruntime

    def wrong(*arguments: Any) -> dict[str, verify.Array]:
        return {name: array + array.dtype.type(name == "y") for name, array in right(*arguments).items()}

    monkeypatch.setattr(verify, "run_onnxruntime", wrong)
    result = tvmconv("run", model, "--verify", "onnxruntime", "--json")
    assert result.exit_code == 5
    assert result.stderr == f"error: y of {model} differs from what onnxruntime computes by more than allowed\n"
    y, best = json.loads(result.stdout)["comparisons"]
    assert y["agrees"] is False
    assert y["error"] == pytest.approx(1, rel=1e-4)
    assert best["agrees"] is True


@pytest.mark.parametrize(
    ("show", "content"),
    [("config", "cpu/depthwise"), ("tvmscript", "@T.prim_func"), ("source", "target triple"), ("asm", ".text")],
)
def test_inspect_for_a_cpu(show: str, content: str) -> None:
    assert content in tvmconv("inspect", DEPTHWISE.to_json(), "--show", show).stdout


@pytest.mark.parametrize(
    ("show", "content"),
    [
        ("config", "cuda/depthwise"),
        ("tvmscript", 'thread="blockIdx.x"'),
        ("source", "__global__ void"),
        ("ptx", ".target sm_80"),
        ("resources", "registers"),
    ],
)
def test_inspect_for_cuda_needs_no_gpu(show: str, content: str) -> None:
    target = '{"kind": "cuda", "arch": "sm_80"}'
    assert content in tvmconv("inspect", DEPTHWISE.to_json(), "--target", target, "--show", show).stdout


def test_inspect_shows_the_module_behind_each_pass(model: Path) -> None:
    passes = tvmconv_json("inspect", model, "--passes", "--precision", "float16", "--target", "cuda")
    modules = {each["pass"]: each["module"] for each in passes}
    assert "R.nn.conv2d(" in modules["choose_templates"]
    assert "R.nn.conv2d(" not in modules["call_kernels"]
    assert "tirx.is_scheduled" in modules["spread_over_gpu"]
    assert "outline_branches" not in modules  # which is for CPUs
    text = tvmconv("inspect", model, "--passes").stdout
    assert text.startswith("# behind import_model\n")
    assert "# behind find_layers: no change" in text


def test_passes_are_of_a_model() -> None:
    result = tvmconv("inspect", DEPTHWISE.to_json(), "--passes")
    assert result.exit_code == 2
    assert "MODEL" in result.stderr


def test_inspect_json(model: Path, tmp_path: Path) -> None:
    """A workload can come as text, in a file, or as a layer of a model."""
    file = tmp_path / "workload"
    file.write_text(f"\n{DEPTHWISE.to_json()}\n")
    report = tvmconv_json("inspect", file, "--target", "cuda", "--show", "resources")
    assert report.keys() == {"workload", "precision", "direction", "target", "schedule", "reason", "resources"}
    assert report["target"]["kind"] == "cuda"
    (kernel,) = report["resources"]
    assert kernel["registers"] > 0
    assert kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == 0
    assert kernel.keys() >= {"name", "shared_bytes", "stack_bytes"}

    by_text, by_layer = (
        tvmconv_json("inspect", *subject) for subject in ([DEPTHWISE.to_json()], [model, "--layer", "1"])
    )
    assert by_text == by_layer
    assert ConvWorkload.from_json(json.dumps(by_text["workload"])) == DEPTHWISE == ConvWorkload.from_json(
        json.dumps(report["workload"])
    )  # fmt: skip


WORKLOAD = DEPTHWISE.to_json()
USAGE = [
    (["tasks", "absent.onnx"], "'absent.onnx' does not exist"),
    (["build", "MODEL"], "Missing option '-o'"),
    (["build", "MODEL", "-o", "absent/net.so"], "there is no folder 'absent'"),
    (["build", "MODEL", "-o", "net.tar"], "'net.tar' does not end in .so"),
    (["run", "MODEL", "--fill-mode", "zeros"], "'zeros' is not one of 'random', 'ones'"),
    (["run", "MODEL", "--verify", "torch"], "'torch' is not 'onnxruntime'"),
    (["inspect", WORKLOAD, "--show", "sass"], "'sass' is not one of"),
    (["inspect", "MODEL", "--layer", "0"], "0 is not in the range"),
    (["inspect", "MODEL"], "give --layer N with a model; `tvmconv tasks` lists the numbers"),
    (["build", "MODEL", "-o", "/proc/net.so"], "'/proc/net.so' cannot be written: "),
    (["absent"], "No such command 'absent'"),
]
FAILURES = [
    (["tasks", "NOT_ONNX"], 2, "an ONNX file; this is another format"),
    (["build", "NOT_ONNX", "-o", "net.so"], 2, "an ONNX file; this is another format"),
    (["build", "MODEL", "-o", "net.so", "--target", "vulkan"], 2, "target is 'vulkan'"),
    (["run", "NOT_ONNX"], 2, "an ONNX file; this is another format"),
    (["run", "NOT_OURS"], 2, "a file that `tvmconv build`, export or save wrote"),
    (["run", "MODEL", "--target", "cudax"], 2, "target is 'cudax'"),
    (["run", "MODEL", "-i", "NOT_ONNX"], 2, "an .npz file of arrays"),
    (["run", "MODEL", "-i", "NPY"], 2, "an .npz file of arrays, as numpy.savez writes it"),
    (["run", "MODEL", "-i", "NPZ"], 2, "inputs is 'z'; expected names among x: float32 (1, 8, 12, 10)"),
    (["run", "LIBRARY", "--verify", "onnxruntime"], 2, "verify is 'onnxruntime'; expected none for a library"),
    (["run", "LIBRARY", "--target", "llvm"], 2, "target is 'llvm'; expected none for a library"),
    (["inspect", "absent.json"], 2, "a workload as JSON"),
    (["inspect", '{"batch": 1}'], 2, "Object missing required field"),
    (["inspect", "{"], 2, "a ConvWorkload in JSON"),
    (["inspect", WORKLOAD, "--target", "{"], 2, "valid JSON"),
    (["inspect", WORKLOAD, "--layer", "1"], 2, "layer is 1; expected none for a single workload"),
    (["inspect", WORKLOAD, "--show", "resources"], 2, "show is 'resources'; expected one of config, "),
    (["inspect", WORKLOAD, "--show", "asm", "--target", "cuda"], 2, "show is 'asm'; expected one of config, "),
    (["inspect", "MODEL", "--layer", "3"], 2, "layer is 3; expected a number from 1 to 2"),
    (["inspect", "MODEL", "--layer", "2"], 3, f"layer 2, {TRANSPOSED}: "),
]


@pytest.fixture
def files(model: Path, library: tuple[Path, dict[str, Any]], tmp_path: Path) -> dict[str, Path]:
    """Return the files that the failures name in capitals."""
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "ours.so").write_bytes(b"\x7fELF" + bytes(100))
    np.save(tmp_path / "x.npy", np.ones(3))
    np.savez(tmp_path / "z.npz", z=np.ones(3))
    names = {"NOT_ONNX": "text.onnx", "NOT_OURS": "ours.so", "NPY": "x.npy", "NPZ": "z.npz"}
    return {"MODEL": model, "LIBRARY": library[0], **{name: tmp_path / file for name, file in names.items()}}


@pytest.mark.parametrize(("arguments", "message"), USAGE, ids=[" ".join(case[0])[:50] for case in USAGE])
def test_wrong_usage(arguments: list[str], message: str, files: dict[str, Path]) -> None:
    result = tvmconv(*(files.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Usage: ")
    assert message in result.stderr


@pytest.mark.parametrize(("arguments", "code", "message"), FAILURES, ids=[" ".join(c[0])[:50] for c in FAILURES])
def test_failure(arguments: list[str], code: int, message: str, files: dict[str, Path]) -> None:
    result = tvmconv(*(files.get(argument, argument) for argument in arguments))
    assert result.exit_code == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_missing_package_says_how_to_get_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = tvmconv("run", model, "--verify", "onnxruntime")
    assert result.exit_code == 1
    assert result.stderr == "error: comparing with ONNX Runtime needs onnxruntime: pip install 'tvmconv[onnx]'\n"
