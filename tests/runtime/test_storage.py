"""Operators and networks in files: saved and loaded, saved again, damaged, and of other versions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.problem.errors import CompileError, InvalidArgumentError
from tvmconv.runtime import operators, storage
from tvmconv.runtime.operator import compile_problem
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands

WORKLOAD = ConvWorkload.depthwise((2, 6, 13, 15), (6, 2, 3, 3), stride=2, scale=True, shift=True, activation="relu6")
OPERANDS = random_operands(WORKLOAD)
DENSE = ConvWorkload.conv2d((2, 6, 9, 11), (8, 3, 3, 3), groups=2, shift=True, residual=True, activation="relu")
DENSE_OPERANDS = random_operands(DENSE)


def test_conv2d_operator_is_saved_with_its_template(tmp_path: Path) -> None:
    operator = tvmconv.compile(DENSE)
    operator.save(tmp_path / "conv2d.so")
    loaded = tvmconv.load(tmp_path / "conv2d.so")
    assert loaded.selection.name == "cpu/direct"
    assert loaded.selection.config == operator.selection.config
    inputs = {name: array for name, array in DENSE_OPERANDS.items() if name != "output"}
    check_result(DENSE, DENSE_OPERANDS, loaded(**inputs))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "depthwise.so"
    tvmconv.compile(WORKLOAD).save(path)
    return path


def test_save_and_load(saved: Path) -> None:
    operator = tvmconv.load(saved)
    assert isinstance(operator, operators.Operator)
    assert operator.workload == WORKLOAD
    assert operator.selection == tvmconv.compile(WORKLOAD).selection
    check_result(WORKLOAD, OPERANDS, operator(*(OPERANDS[name] for name in ("x", "w", "scale", "shift"))))


@pytest.mark.parametrize("keep", [0, 10, 1000, -1, -8, -20])
def test_damaged_file_is_refused_before_it_is_run(saved: Path, tmp_path: Path, keep: int) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(InvalidArgumentError, match="a file that `tvmconv build`, export or save wrote"):
        tvmconv.load(damaged)


def test_file_cut_in_the_middle_is_refused_before_it_is_run(saved: Path, tmp_path: Path) -> None:
    damaged, whole = tmp_path / "damaged.so", saved.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2] + whole[-2000:])
    with pytest.raises(InvalidArgumentError, match="or save wrote; this one is cut off"):
        tvmconv.load(damaged)


def test_library_that_cannot_be_loaded_is_named_as_it_is(saved: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"none" + saved.read_bytes()[4:])
    with pytest.raises(InvalidArgumentError, match=r"a library that can be loaded .*: invalid ELF header") as caught:
        tvmconv.load(damaged)
    assert str(caught.value).count(str(damaged)) == 3
    assert "/./" not in str(caught.value)


def test_file_of_another_tvm_is_refused(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    version = tvm.__version__.encode()
    other.write_bytes(saved.read_bytes().replace(b'"tvm":"' + version, b'"tvm":"' + b"9" * len(version)))
    with pytest.raises(InvalidArgumentError, match="made with apache-tvm"):
        tvmconv.load(other)


def test_save_needs_a_folder_and_a_name(tmp_path: Path) -> None:
    operator = tvmconv.compile(WORKLOAD)
    with pytest.raises(InvalidArgumentError, match="a name that ends in .so"):
        operator.save(tmp_path / "depthwise.bin")
    with pytest.raises(InvalidArgumentError, match="a file in a folder that exists"):
        operator.save(tmp_path / "nowhere" / "depthwise.so")
    with pytest.raises(InvalidArgumentError, match="a file that exists"):
        tvmconv.load(tmp_path / "missing.so")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", ["operator", "network"])
def test_name_of_a_standard_module_is_warned_of(write: str, tmp_path: Path) -> None:
    """Programs in its folder import the file instead of the module; other names have no warning."""
    if write == "operator":
        save: Any = tvmconv.compile(WORKLOAD).save
    else:
        graph = Graph((1, 4, 5, 5))
        save = tvmconv.build(graph.model(graph.conv("x", (4, 4, 1, 1)))).export
    with pytest.warns(UserWarning, match="take it for the standard module operator, and fail") as told:
        save(tmp_path / "operator.so")
    assert [warning.filename for warning in told] == [__file__]
    (tmp_path / "script.py").write_text("import operator")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
    assert "operator.so" in done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path / "model.so")


def test_failed_save_leaves_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path_factory.mktemp("bin") / "broken"
    compiler.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    target = tmp_path / "depthwise.so"
    target.write_text("before")
    with pytest.raises(tvmconv.TvmconvError, match="C\\+\\+ compiler"):
        tvmconv.compile(WORKLOAD).save(target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    assert storage.MARK not in target.read_bytes()


def test_an_operator_that_is_saved_again_where_one_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file loads as it was saved, also twice, or by a relative path."""
    monkeypatch.chdir(tmp_path)
    x, w = np.full((1, 4, 6, 6), -1, "float32"), np.ones((4, 1, 1, 1), "float32")
    loaded = []
    for low, path in ((-5, "depthwise.so"), (0, tmp_path / "depthwise.so"), (3, "depthwise.so")):
        workload = tvmconv.ConvWorkload.depthwise(x.shape, w.shape, activation=("clip", low, 9))
        tvmconv.compile(workload).save(path)
        loaded += [tvmconv.load(path), tvmconv.load(path)]
    assert [float(operator(x, w)[0, 0, 0, 0]) for operator in loaded] == [-1, -1, 0, 0, 3, 3]


def test_mirrored_taps_are_saved_as_such(tmp_path: Path) -> None:
    problem = Problem(tvmconv.ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3)), mirrored=True)
    target = resolve_target("llvm")
    compile_problem(problem, select(problem, target), target).save(tmp_path / "depthwise.so")
    assert tvmconv.load(tmp_path / "depthwise.so").problem == problem


def test_a_network_that_is_exported_again_where_one_was_loaded(tmp_path: Path) -> None:
    path, loaded = tmp_path / "network.so", []
    for weight in (1, 3):
        graph = Graph((1, 4, 5, 5))
        scaled = graph.node("Conv", "x", graph.constant(np.full((4, 1, 1, 1), weight)), group=4)
        tvmconv.build(graph.model(graph.node("Sigmoid", scaled))).export(path)
        loaded.append(tvmconv.load(path))
    x = np.ones((1, 4, 5, 5), "float32")
    for weight, network in zip((1, 3), loaded, strict=True):
        np.testing.assert_allclose(network(x), 1 / (1 + np.exp(-weight * x)), rtol=1e-5)


def network_of_a_pool() -> tvmconv.Network:
    graph = Graph((1, 4, 6, 6))
    return tvmconv.build(graph.model(graph.node("Softmax", graph.conv("x", (4, 4, 3, 3)), axis=1)))


def sparse_layer() -> tvmconv.SparseConv2d:
    layer = tvmconv.sparse_conv2d(np.eye(4, dtype="float32").reshape(4, 4, 1, 1))
    layer.operator((1, 4, 6, 6))
    return layer


COPIED = {
    "network": (network_of_a_pool, ()),
    "operator": (
        lambda: tvmconv.compile(ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3))),
        (np.full((4, 1, 3, 3), 0.5, "float32"),),
    ),
    "sparse-operator": (lambda: sparse_layer().operators[0], ()),
    "sparse-layer": (sparse_layer, ()),
}


@pytest.mark.parametrize(("make", "weights"), COPIED.values(), ids=COPIED)
def test_copies_and_pickles_compute_the_same(make: Any, weights: tuple[Any, ...]) -> None:
    original, x = make(), np.random.default_rng(0).random((1, 4, 6, 6), "float32")
    expected = original(x, *weights)
    copied = copy.deepcopy(original)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(copied))))
    for other in (copied, again):
        assert type(other) is type(original)
        np.testing.assert_array_equal(other(x, *weights), expected)


def test_a_network_that_was_loaded_is_pickled_though_its_file_is_another_or_gone(tmp_path: Path) -> None:
    network, x = network_of_a_pool(), np.ones((1, 4, 6, 6), "float32")
    network.export(tmp_path / "network.so")
    loaded = tvmconv.load(tmp_path / "network.so")
    content = (tmp_path / "network.so").read_bytes()
    tvmconv.compile(WORKLOAD).save(tmp_path / "network.so")
    assert content in pickle.dumps(loaded)
    (tmp_path / "network.so").unlink()
    restored = pickle.loads(pickle.dumps(loaded))
    assert restored.layers == network.layers
    np.testing.assert_array_equal(restored(x), network(x))


def test_pickling_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of_a_pool()
    monkeypatch.setattr(storage, "find_compiler", lambda: None)
    with pytest.raises(CompileError, match="needs a C\\+\\+ compiler"):
        pickle.dumps(network)


@pytest.mark.usefixtures("without_torch")
def test_another_process_unpickles_a_network() -> None:
    network, x = network_of_a_pool(), np.ones((1, 4, 6, 6), "float32")
    script = "import pickle, sys; network, x = pickle.load(sys.stdin.buffer); print(float(network(x).sum()))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps((network, x)), capture_output=True, check=True
    )
    assert float(done.stdout) == pytest.approx(float(network(x).sum()))
