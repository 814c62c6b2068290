"""The sparse CUDA template against the float64 reference through its serial twin, and the code of its kernels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.schedules.cases.sparse_cuda import config
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, kernels
from tvmconv.lowering.folding.folding import bind, expanded, output_blocks
from tvmconv.lowering.folding.skeleton import Skeleton, make_skeleton
from tvmconv.lowering.launches import build_launches
from tvmconv.lowering.serial import TWIN_TARGET, serial_twin
from tvmconv.problem import Problem
from tvmconv.problem.constants import COMPILED_IN, Constants, constants_of
from tvmconv.problem.errors import CodeSizeError, InvalidArgumentError
from tvmconv.runtime.sparse.operator import compile_operator
from tvmconv.runtime.sparse.report import SparseReport
from tvmconv.schedules.cuda.sparse import Config, template
from tvmconv.schedules.cuda.sparse import tiles as sparse_tiles
from tvmconv.support.store import default_folder
from tvmconv.targets import backend_named, cuda, kernel_cache, resolve_target
from tvmconv.testing import check_result, random_operands

CPU, SM_90 = resolve_target(TWIN_TARGET), resolve_target({"kind": "cuda", "arch": "sm_90"})


def twin(workload: ConvWorkload, chosen: Config) -> Skeleton:
    assert not template.space(Problem(workload), SM_90).violated(chosen)
    return make_skeleton(serial_twin(template.schedule(Problem(workload), chosen, SM_90).mod["main"]), CPU)


def check(workload: ConvWorkload, made: Skeleton, weight: np.ndarray, channels: int) -> None:
    """Run the twin of the template with a weight, and check its result."""
    operands = {**random_operands(workload), "w": weight.astype(workload.dtype)}
    dense = expanded(workload, constants_of(operands))
    executable = build_launches(bind(made, dense, output_blocks(dense["w"], channels)), CPU, KERNEL_NAME)
    tensors = [tvm.runtime.tensor(array) for name, array in operands.items() if name not in COMPILED_IN]
    executable[KERNEL_NAME](*tensors)
    check_result(workload, operands, tensors[-1].numpy())


def pruned(workload: ConvWorkload, density: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.where(rng.random(workload.w_shape) < density, rng.standard_normal(workload.w_shape), 0)


def test_a_block_has_images_of_a_known_batch_alone() -> None:
    workload = ConvWorkload.conv2d((8, 64, 7, 7), (64, 64, 3, 3))
    known, opened = (select(Problem(workload, 0.9, open_sizes=sizes), SM_90).config for sizes in ((), ("batch",)))
    assert (known.images > 1, opened.images) == (True, 1)
    with pytest.raises(InvalidArgumentError, match="whole_images"):
        select(Problem(workload, 0.9, open_sizes=("batch",)), SM_90, known)


LAYER = ConvWorkload.conv2d((1, 6, 9, 10), (12, 6, 3, 3), shift=True)


def test_template_is_reused_for_other_weights() -> None:
    made, weight = twin(LAYER, config()), pruned(LAYER, 0.5)
    single = np.zeros(LAYER.w_shape)
    single[5, 3, 1, 2] = 2.0
    holes = weight.copy()
    holes[3], holes[:, 4], holes[:, 2:4] = 0, 0, 0
    negative_zeros = np.where(weight == 0, -0.0, weight)
    for each in (weight, single, holes, negative_zeros, np.zeros(LAYER.w_shape), np.ones(LAYER.w_shape)):
        check(LAYER, made, each, 8)


def constants(weight: np.ndarray, workload: ConvWorkload = LAYER, **vectors: np.ndarray) -> Constants:
    return constants_of({**random_operands(workload), "w": weight, **vectors})


def cuda_source(workload: ConvWorkload, chosen: Config, weight: np.ndarray, **vectors: np.ndarray) -> str:
    made = make_skeleton(template.schedule(Problem(workload), chosen, SM_90).mod["main"], SM_90)
    dense = expanded(workload, constants(weight, workload, **vectors))
    executable = build_launches(bind(made, dense, output_blocks(dense["w"], chosen.block_m)), SM_90, KERNEL_NAME)
    return str(executable.mod.imports[0].inspect_source())


def test_nothing_is_left_of_zeros() -> None:
    weight = pruned(LAYER)
    weight[:, 4] = 0
    source = cuda_source(LAYER, config(block_c=1, block_m=12), weight)
    products = source.count("* 0x") + source.count("* -0x")
    assert products == np.count_nonzero(weight)
    reads = np.count_nonzero(weight.any(axis=0))
    assert source.count("float x") == reads
    assert source.count(" tvmconv::copy_word<") == 5 * 3  # channels that are read, and words of a thread


def test_vectors_are_immediates() -> None:
    workload = ConvWorkload.conv2d((1, 2, 8, 10), (3, 2, 3, 3), scale=True, shift=True)
    scale, shift = np.array([2, 3, 5], "float32"), np.array([7, 11, 13], "float32")
    source = cuda_source(workload, config(), np.ones(workload.w_shape), scale=scale, shift=shift)
    assert re.findall(r"(\w+)_ptr\)? \{", source) == ["x"], "the last parameter"
    found = re.findall(r"\* \S+/\*(\S+)\*/\) \+ \S+/\*(\S+)\*/\)", source)
    assert np.array_equal(np.array(found, "float32"), np.stack([scale, shift], axis=1))


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_copies_are_waited_for(num_stages: int) -> None:
    """A chunk's copies arrive before its products, and start when all threads are done with the memory."""
    source = cuda_source(LAYER, config(num_stages=num_stages, block_m=12), np.ones(LAYER.w_shape))
    copied = committed = arrived = read = finished = 0
    for line in source.splitlines():
        if line.strip().startswith("tvmconv::copy_word<"):
            copied += 1
            assert committed - finished < num_stages
        elif line.strip().startswith("tvmconv::commit_words("):
            committed += 1
        elif found := re.search(r" tvmconv::wait_for_words<(\d+)>\(\);", line):
            arrived = committed - int(found[1])
        elif "__syncthreads();" in line:
            finished = read // PLACES
        elif re.search(r"float x\d+ = ", line):
            assert arrived > read // PLACES
            read += 1
    assert (committed, read) == (3, 3 * PLACES)
    assert copied % committed == 0


PLACES = 2 * 9
"""The number of elements of a chunk that a pixel reads."""


def test_denormal_weight_counts() -> None:
    weight = np.zeros(LAYER.w_shape, np.float32)
    weight[2, 1, 0, 1] = 1e-42
    assert "* 0x1.65p-140f" in cuda_source(LAYER, config(), weight)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weight_must_be_finite(value: float) -> None:
    weight = pruned(LAYER)
    weight[0, 0, 0, 0] = value
    with pytest.raises(InvalidArgumentError, match="weight"):
        compile_operator(LAYER, constants(weight), SM_90)


def test_too_much_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.ones(LAYER.w_shape)
    few = replace(backend_named("cuda"), max_products=weight.size - 1)
    monkeypatch.setattr(kernels, "backend_of", lambda target: few)
    with pytest.raises(CodeSizeError, match=f"{weight.size} multiply-adds of a thread; at most {weight.size - 1}"):
        compile_operator(LAYER, constants(weight), SM_90, config())


def test_report_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is compiled once for a folder, without complaint where there can be no folder, and reports its code."""
    weight, chosen = pruned(LAYER), config(num_stages=1)
    compiled: list[str] = []
    compile_source = cuda.compile_source
    monkeypatch.setattr(cuda, "compile_source", lambda *args: compiled.append(args[0]) or compile_source(*args))

    def report() -> SparseReport:
        monkeypatch.setattr(kernel_cache, "_compiled", {})  # as in a new process
        return compile_operator(LAYER, constants(weight), SM_90, chosen).report

    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path))
    first = report()
    nonzeros = np.count_nonzero(weight)
    assert (first.weights, first.nonzeros, first.blocks, first.launches) == (weight.size, nonzeros, 2, 1)
    assert (first.left, first.removed) == (nonzeros, weight.size - nonzeros)
    assert first.sparsity == pytest.approx(1 - nonzeros / weight.size)
    assert 16 * nonzeros < first.code_bytes < 64 * 1024
    assert (report(), len(compiled)) == (first, 1)
    for file in tmp_path.glob("*.cubin"):
        file.write_bytes(file.read_bytes()[:-1000])  # as a power cut may leave it
    assert (report(), len(compiled)) == (first, 2)
    assert (report(), len(compiled)) == (first, 2)
    (tmp_path / "file").touch()
    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path / "file"))  # no folder, not even for the superuser
    assert (report(), len(compiled)) == (first, 3)
    for name in ("TVMCONV_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # a user of a container alone
    with pytest.raises(RuntimeError, match="home directory"):
        default_folder()
    assert (report(), len(compiled)) == (first, 4)


def test_cubin() -> None:
    workload = ConvWorkload.conv2d((1, 16, 14, 28), (64, 16, 3, 3), shift=True, activation="relu")
    chosen = config(block_m=32, threads_y=7, threads_x=28, block_c=4)
    (kernel,) = cuda.kernel_resources(cuda_source(workload, chosen, pruned(workload)), "sm_90")
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    assert 0.9 * sparse_tiles.shared_bytes(workload, chosen) < kernel.shared_bytes
    assert kernel.shared_bytes <= sparse_tiles.shared_bytes(workload, chosen)
    assert kernel.registers <= sparse_tiles.registers(workload, chosen) + 16
