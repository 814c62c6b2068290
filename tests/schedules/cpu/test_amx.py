"""Convolutions of integers and bfloat16 by the tiles of AMX: compiled kernels, run by an emulator of instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.schedules import kernels_here
from tests.schedules.cases.layers import SHAPES, layer
from tests.schedules.cpu.emulated_tiles import TILES, Counts, Emulator, compiled_emulator, needs_x86
from tests.shared.network_graph import Graph
from tests.shared.sparing import every, pairs, sparing
from tvmconv.checking import verify
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cpu import amx as amx_module
from tvmconv.schedules.cpu.amx import code as amx_code
from tvmconv.schedules.cpu.amx import template as amx
from tvmconv.schedules.cpu.amx import tiles as amx_tiles
from tvmconv.targets import cpu_of, dot_instruction, processors, resolve_target, tile_instruction
from tvmconv.targets.processors import has_tiles
from tvmconv.testing import check_result, random_configs, random_operands

SAPPHIRE_RAPIDS = resolve_target(
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids", "num-cores": 1}
)

TYPES = (*QUANTIZED, "bfloat16")

pytestmark = needs_x86


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return compiled_emulator(tmp_path_factory.mktemp("tiles"))


@pytest.fixture
def tiles(emulator: Emulator) -> Iterator[Emulator]:
    """Emulate AMX during a test."""
    with emulator.running():
        emulator.counts()
        yield emulator


result = partial(kernels_here.result, "amx", target=TILES)
run = partial(kernels_here.run, "amx", target=TILES)

LAYOUTS = (
    *(("NCHW", "NCHW"), ("NCHW16c", "NCHW16c"), ("NCHW8c", "NCHW8c"), ("NCHW", "NCHW16c"), ("NCHW4c", "NHWC")),
    *(("NHWC", "NHWC"), ("NCHW16c", "NCHW")),
)


@pytest.mark.parametrize(
    ("shape", "layouts", "number"),
    sparing(pairs(SHAPES, LAYOUTS), lambda index: index % 5 == 0),  # all shapes, layouts and types
    ids=str,
)
def test_layouts(shape: str, layouts: tuple[str, str], number: int, tiles: Emulator) -> None:
    x, w, options = SHAPES[shape]
    dtype = TYPES[number % 3]
    if dtype in QUANTIZED:
        options = {"out_dtype": QUANTIZED[number % 2], "scale": True, "x_zero_point": 3, **options}
    workload = layer(x, w, layouts, dtype=dtype, **options)
    run(workload)
    (config,) = random_configs(workload, TILES, 1, "amx")
    run(workload, config)


FEW: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 3, 19, 18), (24, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 3, 11, 23), (16, 3, 3, 5), {"stride": (2, 3), "padding": (0, 4, 1, 2), "dilation": (1, 2), "residual": True}),
    ((1, 2, 9, 9), (40, 2, 9, 9), {"shift": True}),
)


@pytest.mark.parametrize(("dtype", "number"), every(2, product(TYPES, range(len(FEW)))))
def test_rows_of_windows_with_few_channels(dtype: str, number: int, tiles: Emulator) -> None:
    """A row of taps in all channels is taken for channels, which fill a row of a tile."""
    x, w, options = FEW[number]
    if dtype in QUANTIZED:
        options = {"out_dtype": "int8", "scale": True, "x_zero_point": 5, **options}
    workload = layer(x, w, dtype=dtype, **options)
    computed = amx_tiles.computed(Problem(workload), TILES).workload
    assert (computed.in_channels, computed.kernel) == (w[1] * w[3], (w[2], 1))
    run(workload)
    (config,) = random_configs(workload, TILES, 1, "amx")
    run(workload, config)


@pytest.mark.parametrize("dtype", TYPES)
def test_windows_of_one_row(dtype: str, tiles: Emulator) -> None:
    """They stay as they are: a plane whose windows are pixels would be taken for a single row."""
    run(layer((2, 3, 6, 14), (16, 3, 1, 5), dtype=dtype, stride=(1, 2), padding=(0, 2)))


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_ragged_sizes_and_extreme_zero_points(dtype: str, tiles: Emulator) -> None:
    """No size is a multiple of another."""
    for point in (np.iinfo(dtype).min, np.iinfo(dtype).max):
        options = {"x_zero_point": int(point), "out_dtype": "int8", "scale": True, "shift": True, "residual": True}
        run(layer((2, 19, 11, 9), (35, 19, 3, 3), dtype=dtype, **options))


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_no_sum_saturates(dtype: str, tiles: Emulator) -> None:
    workload = layer((1, 64, 4, 4), (16, 64, 1, 1), dtype=dtype)
    operands = random_operands(workload)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for x, w in ((most, 127), (least, -128), (most, -128)):
        operands["x"][:], operands["w"][:] = x, w
        assert (result(workload, operands) == 64 * int(x) * w).all()


def test_bfloat16_beside_infinity(tiles: Emulator) -> None:
    """NaN and infinities are where float32 multiply-adds have them, and no others."""
    workload = layer((1, 19, 9, 9), (18, 19, 3, 3), dtype="bfloat16", shift=True)
    operands = random_operands(workload)
    operands["x"][0, 3, 4, 4], operands["x"][0, 5, 8, 0], operands["x"][0, 7, 0, 8] = np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        check_result(workload, operands, result(workload, operands))


@pytest.mark.parametrize("staged", [1, 2])
def test_instructions_run(staged: int, tiles: Emulator) -> None:
    """Each task configures the tiles once, and each step loads and multiplies no tile twice, on several threads."""
    workload = layer((1, 64, 16, 16), (64, 64, 3, 3), ("NCHW16c", "NCHW16c"), dtype="uint8")
    config = amx.Config(2, 16, rows=2, columns=16, channels=64, tiles=2, staged=staged, parallel=True)
    run(workload, config)
    squares, steps, tasks = 8 * 2, 9, 4 if staged == 1 else 8
    expected = Counts(tasks, 4 * squares * steps, 4 * squares, 4 * squares * steps, 4 * squares, tasks)
    assert tiles.counts() in (expected, None)


def test_another_instruction_is_wrong(tiles: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of 128 and more have no sign, and one that takes it for one is found out."""
    made = amx_code.tile_code

    def with_signs(*arguments: Any) -> amx_code.TileCode:
        code = made(*arguments)
        return code._replace(text=code.text.replace("llvm.x86.tdpbusd", "llvm.x86.tdpbssd"))

    monkeypatch.setattr(amx_module, "tile_code", with_signs)
    with pytest.raises(AssertionError, match="elements are wrong"):
        run(layer((1, 16, 6, 6), (16, 16, 3, 3), dtype="uint8"))


@pytest.mark.parametrize("dtype", TYPES)
def test_code_for_sapphire_rapids(dtype: str) -> None:
    """A tile of sums is zeroed and stored once, and nowhere else, so that none is spilled between its products."""
    workload = layer((1, 128, 14, 14), (64, 128, 3, 3), ("NCHW16c", "NCHW16c"), dtype=dtype)
    selection = select(Problem(workload), SAPPHIRE_RAPIDS)
    assert selection.name == "cpu/amx"
    assembly = build_kernel(Problem(workload), selection, SAPPHIRE_RAPIDS).executable.mod.inspect_source("asm")
    instruction, config = tile_instruction(SAPPHIRE_RAPIDS, dtype), selection.config
    assert instruction is not None
    names = (instruction.name, "tileloadd", "tilezero", "tilestored", "ldtilecfg", "tilerelease", "syscall")
    products, loads, zeros, stores, *once = (len(re.findall(rf"\t{name}\b", assembly)) for name in names)
    sums = config.rows * config.vectors
    assert zeros == stores == sums
    assert products % sums == 0
    assert loads == products // sums * (config.rows + config.vectors)
    assert once == [1, 1, 1]


def test_selection() -> None:
    """Layers with many channels are multiplied in tiles; very small ones, and targets without tiles, as before."""
    blocks = ("NCHW16c", "NCHW16c")
    large = layer((1, 256, 14, 14), (256, 256, 3, 3), blocks, dtype="int8", scale=True, out_dtype="int8")
    small = layer((1, 16, 4, 4), (16, 16, 3, 3), blocks, dtype="int8", scale=True, out_dtype="int8")
    half = layer((1, 256, 14, 14), (256, 256, 3, 3), blocks, dtype="bfloat16")
    without = resolve_target({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["-amx-tile"]})
    chosen = [select(Problem(each), SAPPHIRE_RAPIDS).name for each in (large, small, half)]
    assert chosen == ["cpu/amx", "cpu/dot", "cpu/amx"]
    assert select(Problem(large), without).name == "cpu/dot"
    with pytest.raises(InvalidArgumentError, match="cpu/amx has no tiles for int8"):
        select(Problem(large), without, algorithm="amx")


def test_a_step_has_whole_vectors() -> None:
    for channels, expected in ((3, 12), (64, 64), (80, 48), (144, 48), (256, 64)):
        problem = Problem(layer((1, channels, 14, 14), (64, channels, 3, 3), dtype="int8"))
        assert amx.default_config(problem, SAPPHIRE_RAPIDS).channels == expected


# Whether Linux gives tiles


@pytest.mark.skipif(has_tiles(), reason="this machine has tiles")
def test_without_permission(tmp_path: Path) -> None:
    """A kernel asks Linux for tiles by itself, in a library of its own too, and says so where it gets none."""
    workload = layer((1, 16, 6, 6), (16, 16, 3, 3), dtype="int8")
    operator = tvmconv.compile(workload, TILES, algorithm="amx")
    operator.save(tmp_path / "kernel.so")
    inputs = {name: array for name, array in random_operands(workload).items() if name != "output"}
    for each in (operator, tvmconv.load(tmp_path / "kernel.so")):
        with pytest.raises(RuntimeError, match="Linux gives this process no tiles of AMX"):
            each(**inputs)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("model", ["sapphirerapids", "rocketlake"])
def test_this_machine(model: str, given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are there if Linux has them, whatever model of CPU a virtual machine calls its own."""
    flags = "avx2 avx512f avx512bw avx512_vnni avx_vnni avx512_bf16 avx512vbmi amx_tile amx_int8 amx_bf16"
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: model)
    monkeypatch.setattr(processors, "has_tiles", lambda: given)
    monkeypatch.setattr(processors, "_flags", flags.split)
    processors._unlike.cache_clear()
    target = resolve_target("llvm")
    processors._unlike.cache_clear()
    assert str(target.attrs["mcpu"]) == model
    for dtype in TYPES:
        assert (tile_instruction(target, dtype) is not None) == given
    assert dot_instruction(target, "bfloat16") is not None


def test_features_that_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are for what a virtual machine shows of its CPU."""
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "sapphirerapids")
    monkeypatch.setattr(processors, "_flags", "avx avx2 fma".split)
    processors._unlike.cache_clear()
    target = resolve_target("llvm")
    processors._unlike.cache_clear()
    assert tile_instruction(target, "int8") is None
    assert dot_instruction(target, "bfloat16") is None
    assert cpu_of(target).lanes == 8


# Libraries and networks


def test_library_for_any_batch(tmp_path: Path, tiles: Emulator) -> None:
    workload = layer((4, 12, 9, 7), (20, 12, 3, 3), dtype="uint8", out_dtype="int8", scale=True, x_zero_point=3)
    tvmconv.compile(workload, TILES, open_sizes=("batch",), algorithm="amx").save(tmp_path / "kernel.so")
    operator = tvmconv.load(tmp_path / "kernel.so")
    for batch in (5, 1):
        sized = msgspec.structs.replace(workload, batch=batch)
        operands = random_operands(sized)
        check_result(sized, operands, operator(**{key: array for key, array in operands.items() if key != "output"}))


def test_network_in_bfloat16(tiles: Emulator) -> None:
    """Convolutions hand tensors to each other in blocks of the target's lanes, their weights laid out ahead."""
    graph = Graph((1, 64, 12, 12))
    y = graph.node("Relu", graph.conv("x", (64, 64, 3, 3), bias=True, pads=[1] * 4))
    y = graph.node("Relu", graph.node("Add", graph.conv(y, (64, 64, 3, 3), pads=[1] * 4), y))
    model = graph.model(graph.conv(y, (32, 64, 1, 1)))
    x = np.random.default_rng(1).standard_normal((1, 64, 12, 12)).astype("float32")
    network = tvmconv.build(model, TILES, precision="bfloat16")
    assert [each.kernel for each in network.layers] == ["tvmconv cpu/amx"] * 3
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = verify.compare({"y": network(x)}, {"y": expected[0]}, network.multiplied)
    assert found.agrees
    counted = tiles.counts()
    assert counted is None or counted.products > 0


def test_outputs_that_lie_in_a_concatenation(tiles: Emulator) -> None:
    """A kernel of a network for any batch writes its part of a tensor that others write, too."""
    graph = Graph(("n", 32, 12, 12))
    y = graph.conv("x", (64, 32, 3, 3), pads=[1] * 4)
    parts = [graph.conv(y, (64, 64, 3, 3), pads=[1] * 4), graph.conv(y, (64, 64, 1, 1))]
    model = graph.model(graph.node("Concat", *parts, axis=1))
    network = tvmconv.build(model, TILES, precision="bfloat16")
    assert [each.kernel for each in network.layers] == ["tvmconv cpu/amx"] * 3
    x = np.random.default_rng(2).standard_normal((2, 32, 12, 12)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = verify.compare({"y": network(x)}, {"y": expected}, network.multiplied)
    assert found.agrees
