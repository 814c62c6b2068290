"""An exported network in processes with less and less of TVM and tvmconv, as on the page on deploying."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.pages import snippets
from tvmconv.network import Network

pytestmark = pytest.mark.usefixtures("without_torch")

PAGE = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
SNIPPETS = snippets(PAGE)
RUNTIME = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"

REPORT = """
import sys
np.save("y.npy", np.asarray(y))
maps = open("/proc/self/maps").read()
print(*(name for name in ("libtvm_ffi.so", "libtvm_runtime.so", "libtvm_compiler.so") if f"/{name}" in maps))
print(*(name for name in ("tvm", "tvm.relax", "tvmconv") if name in sys.modules))
"""


@dataclass(frozen=True)
class Process:
    """A snippet of the page, with the modules and libraries that its process has loaded in the end."""

    id: str
    snippet: str
    runtime_only: bool
    loaded: set[str]


FFI = {"libtvm_ffi.so", "libtvm_runtime.so"}
PROCESSES = (
    Process("tvmconv", SNIPPETS[0], True, FFI | {"tvm", "tvmconv"}),
    Process("tvm", SNIPPETS[1], True, FFI | {"tvm"}),
    Process("tvm-whole", SNIPPETS[1], False, FFI | {"tvm", "tvm.relax", "libtvm_compiler.so"}),
    Process("ffi", SNIPPETS[2], False, FFI),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with net.so, a network with kernels of tvmconv and of TVM, and its output for ones."""
    graph = Graph((1, 3, 32, 32))
    y = graph.conv(graph.node("Relu", graph.conv("x", (8, 3, 3, 3), True)), (8, 1, 3, 3), group=8)
    network = tvmconv.build(graph.model(graph.node("Sigmoid", graph.node("GlobalAveragePool", y))))
    path = tmp_path_factory.mktemp("deployed")
    network.export(path / "net.so")
    np.save(path / "expected.npy", network(np.ones((1, 3, 32, 32), "float32")))
    return path


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.id)
def test_process(process: Process, folder: Path) -> None:
    environment = {**os.environ, "LIBTVM_RUNTIME": str(RUNTIME), "TVM_USE_RUNTIME_LIB": str(int(process.runtime_only))}
    command = [sys.executable, "-c", process.snippet + REPORT]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == process.loaded
    np.testing.assert_array_equal(np.load(folder / "y.npy"), np.load(folder / "expected.npy"))
    (folder / "y.npy").unlink()


def test_what_the_runtime_lacks_is_said(folder: Path) -> None:
    """The error says that building needs the compiler, and so does an operator."""
    tvmconv.compile(tvmconv.ConvWorkload.depthwise((1, 2, 4, 4), (2, 1, 3, 3))).save(folder / "depthwise.so")
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    calls = ("tvmconv.build", "tvmconv.compile", "tvmconv.sparse_conv2d", "tvmconv.load('depthwise.so')")
    script = (
        "import sys, tvmconv\n"
        "for call in sys.argv[1:]:\n"
        "    try: exec(call)\n"
        "    except tvmconv.TvmconvError as error: print(type(error).__name__, error, sep=': ')\n"
        "    else: print('nothing')"
    )
    command = [sys.executable, "-c", script, *calls, "import tvmconv.relay"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()
    assert len(said) == len(calls) + 1, done.stderr
    assert all(line.startswith("CompileError: this needs TVM's compiler") for line in said), said


def test_any_batch_with_the_runtime_alone(tmp_path: Path) -> None:
    """A network with an open batch keeps it, with its bound, and needs no more than one for a known batch."""
    graph = Graph((1, 3, 16, 16))
    y = graph.conv(graph.node("Relu", graph.conv("x", (8, 3, 3, 3), True)), (8, 1, 3, 3), group=8)
    model = tvmconv.import_model(graph.model(graph.node("GlobalAveragePool", y)), shapes={"x": ("n<=4", 3, 16, 16)})
    network = tvmconv.build(model)
    assert all(layer.kernel.startswith("tvmconv") for layer in network.layers)
    network.export(tmp_path / "net.so")
    images = np.random.default_rng(0).standard_normal((5, 3, 16, 16)).astype("float32")
    np.savez(tmp_path / "images.npz", *(images[:batch] for batch in (1, 4, 3, 5)))
    script = (
        "import numpy as np, tvmconv\n"
        "network, images = tvmconv.load('net.so'), np.load('images.npz').values()\n"
        "*fitting, too_many = images\n"
        "np.savez('y.npz', *map(network, fitting))\n"
        "try: network(too_many)\n"
        "except tvmconv.TvmconvError as error: print(error)"
    )
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("with n of 1 to 4\n"), done.stderr
    for batch, y in zip((1, 4, 3), np.load(tmp_path / "y.npz").values(), strict=True):
        np.testing.assert_array_equal(y, network(images[:batch]))


@pytest.mark.parametrize(
    "arguments", [["build", "net.onnx", "-o", "other.so"], ["tasks", "net.onnx"], ["verify", "--count", "1"]], ids=str
)
def test_commands_say_what_the_runtime_lacks(arguments: list[str], folder: Path) -> None:
    (folder / "net.onnx").write_bytes(b"a model that nobody gets to read")
    done = command_with_runtime_alone(arguments, folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this needs TVM's compiler: start the process without TVM_USE_RUNTIME_LIB")


def test_command_line_runs_a_network(folder: Path) -> None:
    done = command_with_runtime_alone(["run", "net.so", "--fill-mode", "ones", "-o", "outputs.npz", "--json"], folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"]["kind"] == "llvm"
    (output,) = np.load(folder / "outputs.npz").values()
    np.testing.assert_array_equal(output, np.load(folder / "expected.npy"))


def command_with_runtime_alone(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tvmconv.cli import main; main()", *arguments]
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_description_is_that_of_the_network(folder: Path) -> None:
    loaded = tvmconv.load(folder / "net.so")
    assert isinstance(loaded, Network)
    assert [layer.kernel for layer in loaded.layers] == ["tvmconv cpu/direct", "tvmconv cpu/depthwise"]
