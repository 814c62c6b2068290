"""Code for another kind of CPU: 64-bit ARM's, built and linked here, and run in an emulator where there is one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tvmconv
from tests.shared.command_line import tvmconv as tvmconv_command
from tests.shared.network_graph import Graph
from tests.shared.pages import snippets
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.autotvm import LocalRunner, task
from tvmconv.autotvm.measure import worker
from tvmconv.checking.operands import random_operands
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.errors import CompileError, InvalidArgumentError, NoDeviceError, WrongResultError
from tvmconv.targets import cpu_of, resolve_target, toolchain
from tvmconv.targets.devices import host_arch
from tvmconv.testing import conformance, emulated
from tvmconv.testing.conformance import How, check
from tvmconv.testing.trials import Trial

TRIPLE = "aarch64-linux-gnu"
TARGET = resolve_target({"kind": "llvm", "mtriple": TRIPLE})
HALF = resolve_target({"kind": "llvm", "mtriple": TRIPLE, "mcpu": "neoverse-n1", "mattr": ["+fullfp16"]})

pytestmark = [
    pytest.mark.usefixtures("without_torch"),
    pytest.mark.skipif(host_arch() == "aarch64", reason="this machine is of that kind"),
]

ELF, MACHINE, AARCH64 = b"\x7fELF", 18, 183
"""The first bytes of a library, the offset at which it names its machine, and the number of 64-bit ARM."""

LANES, REGISTERS = 4, 32
MULTIPLY_ADD = re.compile(r"\bfmla\s+v\d+\.4s, v\d+\.4s, v\d+\.(4s|s\[\d\])")


def obstacle() -> str | None:
    """Return the reason why nothing can be run in an emulator here."""
    try:
        emulated.require_emulator(TRIPLE)
    except NoDeviceError as error:
        return str(error)
    return None


needs_compiler = pytest.mark.skipif(
    toolchain.find_cross_compiler(TRIPLE) is None, reason=f"{TRIPLE}-gcc is not installed"
)
needs_emulator = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


@dataclass(frozen=True)
class Case:
    """A workload, and the template that is to compute it."""

    algorithm: str
    workload: ConvWorkload
    sparsity: float | None = None

    @property
    def id(self) -> str:
        return self.algorithm


DENSE = ConvWorkload.conv2d((1, 16, 13, 11), (24, 16, 3, 3), stride=2, shift=True, activation="relu")
CASES = (
    Case("depthwise", ConvWorkload.depthwise((2, 8, 21, 19), (8, 1, 3, 3), scale=True, activation="silu")),
    Case("direct", DENSE),
    Case("im2win", DENSE),
    Case("pointwise", ConvWorkload.conv2d((1, 24, 14, 14), (40, 24, 1, 1), padding=0, residual=True)),
    Case("sparse", DENSE, 0.9),
)
INTEGERS = {
    dtype: ConvWorkload.conv2d((1, 19, 9, 8), (22, 19, 3, 3), dtype=dtype, out_dtype="int8", scale=True, x_zero_point=9)
    for dtype in QUANTIZED
}
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def is_for_arm(library: Path) -> bool:
    header = library.read_bytes()[:20]
    return header.startswith(ELF) and int.from_bytes(header[MACHINE:], "little") == AARCH64


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda command: None)
    monkeypatch.setattr(toolchain, "find_spec", lambda package: None)


def compiled(case: Case) -> tvmconv.Operator:
    if case.sparsity is None:
        return tvmconv.compile(case.workload, TARGET, algorithm=case.algorithm)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(case.workload.w_shape) * (rng.random(case.workload.w_shape) > case.sparsity)
    conv = tvmconv.sparse_conv2d(weight, stride=2, shift=np.ones(24), activation="relu", target=TARGET)
    return conv.operator(case.workload.x_shape)


def test_it_has_vectors_of_its_own() -> None:
    assert (cpu_of(TARGET).lanes, cpu_of(TARGET).registers) == (LANES, REGISTERS)


@by_case
def test_kernels_multiply_and_add_vectors(case: Case) -> None:
    operator = compiled(case)
    if case.sparsity is None:
        assert operator.selection.config.vector == LANES
    assert len(MULTIPLY_ADD.findall(operator.source("asm"))) >= 16


@pytest.mark.parametrize("algorithm", ["direct", "im2win"])
def test_tiles_are_transposed_in_blocks_of_vectors(algorithm: str) -> None:
    """Check that a tile of more columns than a vector has lanes is not moved lane by lane into rows of the output."""
    workload = ConvWorkload.conv2d((1, 64, 56, 56), (64, 64, 3, 3))
    default = select(Problem(workload), TARGET, algorithm=algorithm).config
    vectors, columns = 1, 3 * LANES + 2
    operator = tvmconv.compile(workload, TARGET, replace(default, vectors=vectors, rows=1, columns=columns))
    blocks, rest = divmod(columns, LANES)
    text = operator.source("asm")
    assert len(re.findall(r"\btrn[12]\s+v\d+\.4s", text)) >= LANES * blocks * vectors
    assert len(re.findall(r"\bmov\s+v\d+\.s\[", text)) <= LANES * rest * vectors


@needs_compiler
def test_operators_are_saved_and_not_called(tmp_path: Path) -> None:
    operator = compiled(CASES[0])
    operator.save(tmp_path / "operator.so")
    assert is_for_arm(tmp_path / "operator.so")
    with pytest.raises(NoDeviceError, match="a CPU of aarch64"):
        operator(*(array for name, array in random_operands(operator.workload).items() if name != "output"))
    with pytest.raises(NoDeviceError, match="a CPU of aarch64"):
        tvmconv.load(tmp_path / "operator.so")


@needs_compiler
def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the snippet of its section, which is the last of the page."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
    exec(snippets(page)[-1], {})
    assert is_for_arm(tmp_path / "depthwise.so")


@needs_compiler
def test_networks_are_built_and_exported(tmp_path: Path) -> None:
    graph = Graph((1, 3, 16, 16))
    y = graph.conv(graph.node("Relu", graph.conv("x", (8, 3, 3, 3), True)), (8, 1, 3, 3), group=8)
    network = tvmconv.build(graph.model(graph.node("GlobalAveragePool", y)), TARGET)
    assert [layer.kernel for layer in network.layers] == ["tvmconv cpu/direct", "tvmconv cpu/depthwise"]
    network.export(tmp_path / "network.so")
    assert is_for_arm(tmp_path / "network.so")
    with pytest.raises(NoDeviceError, match="a CPU of aarch64"):
        network(np.zeros((1, 3, 16, 16), "float32"))


@needs_compiler
def test_the_tuner_links_for_the_target(tmp_path: Path) -> None:
    made = task.create(CASES[0].workload, TARGET)
    config = made.knobs(made.space.default)
    worker.build(made.problem.to_json(), made.name, config, str(TARGET), str(tmp_path / "kernel.so"))
    assert is_for_arm(tmp_path / "kernel.so")
    with pytest.raises(InvalidArgumentError, match=f"one of arch {host_arch()}"):
        LocalRunner().device(made)


def test_a_missing_compiler_is_named(no_compiler: None, tmp_path: Path) -> None:
    operator = compiled(CASES[0])
    with pytest.raises(CompileError, match="aarch64-linux-gnu-gcc: install Debian's package gcc-aarch64-linux-gnu"):
        operator.save(tmp_path / "depthwise.so")


def test_a_missing_emulator_is_named(no_compiler: None) -> None:
    with pytest.raises(NoDeviceError, match="Debian's packages qemu-user, gcc-aarch64-linux-gnu"):
        emulated.require_emulator(TRIPLE)


def test_edges_of_memory_are_not_emulated() -> None:
    done = tvmconv_command("verify", "--bounds", "--target", TARGET)
    assert done.exit_code == 2
    assert "expected this machine's own kind of CPU, with --bounds" in done.stderr


@pytest.mark.parametrize(
    ("triple", "prefix"),
    [
        ("aarch64-linux-gnu", "aarch64-linux-gnu"),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu"),
        ("arm64-linux-gnu", "aarch64-linux-gnu"),
        ("x86_64-unknown-linux-gnu", None),
    ],
)
def test_triples(triple: str, prefix: str | None) -> None:
    assert toolchain.cross_triple(str(resolve_target({"kind": "llvm", "mtriple": triple}))) == prefix
    gpu = {"kind": "cuda", "arch": "sm_87", "host": {"kind": "llvm", "mtriple": triple}}
    assert toolchain.cross_triple(str(resolve_target(gpu))) == prefix


@needs_emulator
@by_case
def test_kernels_compute_in_an_emulator(case: Case) -> None:
    trial = Trial(case.workload, case.algorithm, None, 1, sparsity=case.sparsity)
    check(How(str(TARGET)), trial)


@needs_emulator
@pytest.mark.parametrize(
    ("case", "features"),
    sparing(product(CASES, ([], ["+bf16"])), lambda index: index % 4 in (0, 3)),  # each case once
    ids=lambda value: getattr(value, "id", "bf16" if value else "baseline"),
)
def test_bfloat16_in_an_emulator(case: Case, features: list[str]) -> None:
    target = resolve_target({"kind": "llvm", "mtriple": TRIPLE, "mattr": features})
    workload = msgspec.structs.replace(case.workload, dtype="bfloat16")
    check(How(str(target)), Trial(workload, case.algorithm, None, 1, case.sparsity is None, sparsity=case.sparsity))


@needs_emulator
def test_half_precision_in_an_emulator() -> None:
    workload = ConvWorkload.conv2d((1, 16, 9, 9), (16, 16, 3, 3), dtype="float16")
    check(How(str(HALF)), Trial(workload, "direct", None, 1))


@needs_emulator
@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("mcpu", ["generic", "neoverse-n1", "neoverse-v1"])
def test_integers_in_an_emulator(mcpu: str, dtype: str) -> None:
    """Check the sums of `smlal`, `sdot` and `usdot`."""
    target = resolve_target({"kind": "llvm", "mtriple": TRIPLE, "mcpu": mcpu})
    check(How(str(target)), Trial(INTEGERS[dtype], "dot", None, 1))


@needs_emulator
def test_what_is_wrong_there_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a kernel that computes something else, and one that refuses its operands."""
    case = CASES[0]
    kernel = build_kernel(Problem(case.workload), select(Problem(case.workload), TARGET), TARGET).executable

    def without_scale(executable: Any, target: str, triple: str, operands: dict[str, np.ndarray]) -> np.ndarray:
        return emulated.emulate(executable, target, triple, {**operands, "scale": np.ones_like(operands["scale"])})

    monkeypatch.setattr(conformance, "emulate", without_scale)
    with pytest.raises(WrongResultError, match="6384 of 6384 elements are wrong"):
        check(How(str(TARGET)), Trial(case.workload, case.algorithm, None, 1))
    operands = random_operands(case.workload)
    operands["x"] = operands["x"][:1]
    with pytest.raises(RuntimeError, match=r"x.shape\[0\]"):
        emulated.emulate(kernel, str(TARGET), TRIPLE, operands)


class Unwritten(np.ndarray[Any, Any]):
    """An array that leaves no file."""

    def tofile(self, *_: Any) -> None: ...


class CutOff(np.ndarray[Any, Any]):
    """An array that writes its first element alone."""

    def tofile(self, file: Any, *_: Any) -> None:
        np.asarray(self.flat[:1]).tofile(file)


@needs_emulator
@pytest.mark.parametrize(("kind", "reason"), [(Unwritten, "No such file or directory"), (CutOff, "it ends too early")])
def test_operands_that_cannot_be_read_are_told(kind: type[np.ndarray[Any, Any]], reason: str) -> None:
    workload = CASES[0].workload
    kernel = build_kernel(Problem(workload), select(Problem(workload), TARGET), TARGET).executable
    operands = random_operands(workload)
    operands["x"] = operands["x"].view(kind)
    with pytest.raises(RuntimeError, match=f"0.bin: {reason}"):
        emulated.emulate(kernel, str(TARGET), TRIPLE, operands)


@needs_emulator
def test_random_convolutions_in_an_emulator() -> None:
    done = tvmconv_command("verify", "--target", TARGET, "--count", 4, "--parallel", 2, "--algorithm", "pointwise")
    assert done.exit_code == 0, done.output
    assert "7 convolutions" in done.output
