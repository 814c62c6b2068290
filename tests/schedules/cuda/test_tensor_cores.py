"""Convolution on tensor cores: numbers through serial twins, and lowered kernels in an emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.s_tir.stmt import SBlock

import tvmconv
from tests.emulated import twins_and_cubins
from tests.emulated.memory import HazardError
from tests.emulated.twins_and_cubins import SM_90, emulated
from tests.schedules.cases.integers import EXACT, INTEGERS, random_integers
from tests.schedules.cases.teams import TEAMS
from tests.schedules.cases.tensor import (
    ALL_CASES,
    CASES,
    FIRST,
    KINDS,
    LAST,
    LAYER,
    MMA,
    NOTHING_READ,
    WGMMA,
    Layouts,
    layer,
    mma,
    one_chunk,
    random_layer,
    wgmma,
)
from tests.shared.sparing import every, in_turns, sparing
from tvmconv import ConvWorkload
from tvmconv.checking.draws import Draw
from tvmconv.compute.tensor.chunks import COPY_BYTES, ROW_BYTES
from tvmconv.compute.tensor.gemm import in_tf32
from tvmconv.dispatch import algorithms_for, select
from tvmconv.lowering import KERNEL_NAME, build_twin
from tvmconv.lowering.gpu.intrinsics import WGMMA as WGMMA_SOURCE
from tvmconv.lowering.modules import build
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.tensor import Config
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.schedules.cuda.tensor.tiles import ahead, block_chunks, shared_bytes, weight_split
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands
from tvmconv.testing.configs import legal_configs

run_twin, lowered = partial(twins_and_cubins.run_twin, "tensor"), partial(twins_and_cubins.lowered, "tensor")


EVERY = ALL_CASES | {f"integers-{name}": case for name, case in INTEGERS.items()}


def sparse_cases(step: int, cases: dict[str, tuple[Problem, Config]]) -> pytest.MarkDecorator:
    """Parametrize with one case of `step`, which has no divisor in common with 6: each shape has so many in a row."""
    return pytest.mark.parametrize(("problem", "config"), every(step, cases.values()), ids=cases.keys())


def random_config(problem: Problem) -> Config:
    """Return a random configuration that the emulator can run, where all warps go through a chunk together."""
    configs = legal_configs(tensor.space(problem, SM_90), str(problem))
    return next(config for config in configs if not config.teams)


def check_ring(problem: Problem, config: Config, func: tirx.PrimFunc) -> None:
    """Check the result in the emulator, and the copies and barriers that it took.

    Each chunk is copied once, whole and no more than that, the first ones ahead of the first barrier. There are two
    barriers more than chunks, before the sums go to shared memory and after, and in clusters another one at the end.
    """
    (run,) = [run for run in emulated(func, problem) if run.copied]
    chunks = block_chunks(problem.workload, config)
    rows = config.block_m + config.block_n * max(1, weight_split(problem, config))
    assert run.copied == [rows * ROW_BYTES // COPY_BYTES] * chunks
    assert run.under_way[0] == ahead(problem, config)
    assert run.barriers == chunks + 2 + config.in_cluster
    assert run.shared_bytes == shared_bytes(problem, config)


@sparse_cases(23, EVERY | {f"teams-{name}": case for name, case in TEAMS.items()})
def test_serial_twin(problem: Problem, config: Config) -> None:
    run_twin(problem, config)


@sparse_cases(7, EVERY)
def test_lowered_kernel(problem: Problem, config: Config) -> None:
    check_ring(problem, config, lowered(problem, config))


@sparse_cases(19, ALL_CASES)
def test_random_configuration(problem: Problem, config: Config) -> None:
    """A random configuration of the space is right in both ways."""
    chosen = random_config(problem)
    run_twin(problem, chosen)
    check_ring(problem, chosen, lowered(problem, chosen))


@pytest.mark.parametrize("problem", NOTHING_READ.values(), ids=NOTHING_READ)
@pytest.mark.parametrize("wgmma", [False, True], ids=["mma", "wgmma"])
def test_padding_alone(wgmma: bool, problem: Problem) -> None:
    config = one_chunk(problem, wgmma)
    run_twin(problem, config)
    check_ring(problem, config, lowered(problem, config))


RANDOM = [
    *(random_layer(Draw(f"{kind[0]}/{kind[1]}/{number}"), *kind) for kind, number in product(KINDS.values(), range(2))),
    *(random_integers(Draw(number)) for number in (0, 3, 6)),
]


@pytest.mark.parametrize("problem", RANDOM, ids=str)
def test_random_convolution(problem: Problem) -> None:
    config = random_config(problem)
    check_ring(problem, config, lowered(problem, config))


@pytest.mark.parametrize("config", [MMA, WGMMA, mma(32, 32, 1, 2, 3, split_k=2)], ids=["mma", "wgmma", "split-k"])
def test_nan_and_infinity(config: Config) -> None:
    """They come out where the reference has them: of pixels, of padding under a weight, and of no neighbour."""
    problem = layer((1, 40, 6, 7), (24, 40, 3, 3), shift=True, activation="relu")
    operands = random_operands(problem.workload)
    operands["x"][0, 0, 0, 3], operands["x"][0, 5, 6, 39], operands["x"][0, 2, 2, 8] = np.nan, np.inf, -np.inf
    operands["w"][7, 0, 1, 5], operands["w"][11, 2, 2, 39] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        run_twin(problem, config, **operands)
        emulated(lowered(problem, config), problem, **operands)


def later(call: tvm.ir.Call) -> tvm.ir.Call:
    """Return a wait for what is one chunk older."""
    name, pending, source = call.args
    return cuda_func_call(str(name.value), pending + 1, source_code=str(source.value))


def left_out(_call: tvm.ir.Call) -> tvm.ir.Call:
    """Return a wait for products, of which `mma` leaves none."""
    return cuda_func_call("tvmconv::done", 0, source_code=WGMMA_SOURCE)


FAULTS = {
    "wait-too-short": ("tvmconv::ready", later, mma(32, 32, 2, 1, 4)),
    "wait-too-short-of-two-stages": ("tvmconv::ready", later, MMA),
    "wait-too-short-for-wgmma": ("tvmconv::ready_for_wgmma", later, wgmma(64, 32, 1, 1, 5)),
    "product-not-complete": ("tvmconv::done", later, WGMMA),
    "barrier-left-out": ("tvmconv::barrier", left_out, MMA),
    "no-barrier-in-the-ring": ("tvmconv::ready", left_out, MMA),
    "no-barrier-of-a-cluster": ("tvmconv::cluster_barrier", left_out, mma(32, 32, 2, 1, 2, split_k=2, in_cluster=True)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_in_the_ring_are_caught(name: str) -> None:
    """The check that the other kernels pass fails where one function is given another number, or left out."""
    function, change, config = FAULTS[name]

    def altered(call: tvm.ir.Call) -> tvm.ir.Call:
        named = str(call.op.name) == "tirx.cuda.func_call" and str(call.args[0].value) == function
        return change(call) if named else call

    func = lowered(LAYER, config)
    wrong = tvm_ffi.structural_map(func, (tvm.ir.Call, altered))
    assert not tvm_ffi.structural_equal(func, wrong)
    with pytest.raises(HazardError):
        emulated(wrong, LAYER)


def test_copies_of_two_tiles_are_caught() -> None:
    """Twice the rows of a tile reach into other stages of the ring, which a serial twin would not show."""

    def doubled(loop: tirx.For) -> tirx.For:
        names = []
        tvm_ffi.structural_walk(loop.body, [(SBlock, lambda block: names.append(str(block.name_hint)))])
        extent = loop.extent * (2 if names == ["weights_o"] and loop.kind == tirx.ForKind.SERIAL else 1)
        return tirx.For(loop.loop_var, loop.min, extent, loop.kind, loop.body, loop.thread_binding, loop.annotations)

    problem, config = CASES["ragged-channels"]
    wrong = tvm_ffi.structural_map(lowered(problem, config), (tirx.For, doubled))
    with pytest.raises(HazardError):
        check_ring(problem, config, wrong)


@pytest.mark.parametrize("rows", [32, 128])
def test_parts_of_a_long_sum(rows: int) -> None:
    """Blocks share sums where few tiles would leave multiprocessors idle, pairs of them in clusters.

    Larger clusters find room for 120 of these 128 blocks on an H100, which is why they took 1.3 to 1.5 times as long as
    two kernels.
    """
    problem = Problem(ConvWorkload.conv2d((rows, 25088, 1, 1), (4096, 25088, 1, 1), dtype="float16"))
    assert tensor.default_config(problem, SM_90).split_k > 1
    tile = Config(128, 128, 2, 1, num_stages=4, split_k=4, wgmma=True)
    together, apart = (tensor.estimate(problem, replace(tile, in_cluster=each), SM_90) for each in (True, False))
    assert together > 1.2 * apart
    pair = Config(128, 64, 2, 1, num_stages=5, split_k=2, wgmma=True)
    together, apart = (tensor.estimate(problem, replace(pair, in_cluster=each), SM_90) for each in (True, False))
    assert together < 1.05 * apart


def algorithms(problem: Problem, arch: str) -> Sequence[str]:
    return algorithms_for(problem, resolve_target({"kind": "cuda", "arch": arch}))


@pytest.mark.parametrize("layouts", [LAST, FIRST, Layouts("NHWC", "KCRS", "NCHW")], ids=str)
@pytest.mark.parametrize(("dtype", "precision"), KINDS.values())
def test_problems_that_it_takes(dtype: str, precision: str, layouts: Layouts) -> None:
    """Any input channels, and output channels that fill stores of four; the GPU has to have the instructions."""

    def takes(arch: str, channels: int, outputs: int, word: str = precision) -> bool:
        return "tensor" in algorithms(layer((1, channels, 8, 8), (outputs, channels, 3, 3), dtype, layouts, word), arch)

    assert all(
        takes(arch, channels, outputs) for arch in ("sm_80", "sm_90") for channels, outputs in ((16, 16), (3, 20))
    )
    assert not any(takes(arch, 16, outputs) for arch, outputs in (("sm_90", 18), ("sm_75", 16)))
    assert dtype != "float32" or not takes("sm_90", 16, 16, "strict")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("multiplier", [2, 4, 6, 8, 16, 20, 24, 40, 48])
def test_groups_of_few_channels(multiplier: int, arch: str) -> None:
    """A problem that the template takes has a legal default: output channels of a group fill stores of four."""
    problem, target = (
        layer((1, 16, 6, 6), (2 * multiplier, 8, 3, 3), groups=2),
        resolve_target({"kind": "cuda", "arch": arch}),
    )
    takes = multiplier % 4 == 0
    assert ("tensor" in algorithms(problem, arch)) == takes
    if takes:
        space = tensor.space(problem, target)
        assert space.violated(space.default) == []


@pytest.mark.parametrize(
    ("layout", "out_layout", "named"),
    [("NCHW8c", "NCHW16c", "layout"), ("NCHW16c", "NCHW8c", "out_layout"), ("NCHW16c", "NCHW16c", None)],
)
def test_blocks_are_groups(layout: str, out_layout: str, named: str | None) -> None:
    problem = layer((1, 32, 6, 6), (32, 16, 1, 1), layouts=Layouts(layout, "KRSC", out_layout), groups=2)
    expected = named and f"takes blocks of the 16 channels of a group, not the {named} NCHW8c"
    assert tensor.obstacle(problem, SM_90) == expected


def test_weights_in_tf32() -> None:
    """Numbers are rounded to 11 bits, the largest are cut off, and each NaN stays one, whatever its bits are."""
    rng = np.random.default_rng(0)
    nans = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], np.uint32).view(np.float32)
    largest, infinity = np.finfo(np.float32).max, np.float32(np.inf)
    numbers = (rng.standard_normal(252) * 10.0 ** rng.integers(-30, 30, 252)).astype(np.float32)
    values = np.concatenate([nans, np.array([largest, -largest, infinity, -infinity], np.float32), numbers])
    x = te.placeholder(values.shape, "float32", name="x")
    func = te.create_prim_func([x, te.compute(values.shape, lambda i: in_tf32(x[i]), name="y")])
    result = tvm.runtime.empty(values.shape, "float32")
    build(tvm.IRModule({"main": func}), resolve_target("llvm"))["main"](tvm.runtime.tensor(values), result)
    got = result.numpy()
    assert np.isnan(got[:4]).all()
    assert got[4] == -got[5] == np.uint32(0x7F7FE000).view(np.float32)
    assert list(got[6:8]) == [np.inf, -np.inf]
    assert not (got[8:].view(np.uint32) & 0x1FFF).any()
    assert (np.abs(got[8:] - numbers) <= 2.0**-11 * np.abs(numbers)).all()


# Integers


def integers_by_twin(problem: Problem, config: Config, operands: dict[str, np.ndarray]) -> np.ndarray:
    """Return what the serial twin makes of operands, into an output filled with ones."""
    *_, (shape, dtype) = problem.workload.operands.values()
    output = tvm.runtime.tensor(np.ones(shape, dtype))
    twin = build_twin(problem, select(problem, SM_90, config, "tensor"), SM_90)
    memory = [tvm.runtime.empty(*parameter) for parameter in twin.workspace.parameters]
    twin.executable[KERNEL_NAME](*map(tvm.runtime.tensor, operands.values()), output, *memory)
    result: np.ndarray = output.numpy()
    return result


@pytest.mark.parametrize(
    ("name", "config"),
    sparing(product(EXACT, (MMA, WGMMA)), in_turns),  # each name once
    ids=lambda value: getattr(value, "wgmma", value),
)
def test_exact_integers(name: str, config: Config) -> None:
    """The largest sums, and numbers in the middle between two integers, are what they have to be."""
    problem, operands, expected = EXACT[name]()
    np.testing.assert_array_equal(integers_by_twin(problem, config, operands), expected)


def test_wrong_integers_are_caught() -> None:
    """One unit more, a zero point that is left out, and padding with zeros fail the check that kernels pass."""
    options = {"out_dtype": "int8", "scale": True, "x_zero_point": 100}
    problem = layer((1, 32, 6, 6), (32, 32, 3, 3), "uint8", **options)
    operands = random_operands(problem.workload)
    inputs = {name: operands[name] for name in ("x", "w", "scale")}
    got = integers_by_twin(problem, MMA, inputs)
    check_result(problem.workload, operands, got)
    assert len(np.unique(got)) > 100
    other = layer((1, 32, 6, 6), (32, 32, 3, 3), "uint8", out_dtype="int8", scale=True)
    wrong = got.copy()
    wrong.flat[77] += 1 if wrong.flat[77] < 127 else -1
    for each in (wrong, integers_by_twin(other, MMA, inputs)):
        with pytest.raises(AssertionError, match="elements are wrong"):
            check_result(problem.workload, operands, each)
    factors = {name: operands[name] for name in ("x", "w")}
    sums = layer((1, 32, 6, 6), (32, 32, 3, 3), "uint8")
    exact = integers_by_twin(sums, MMA, factors)
    check_result(sums.workload, factors, exact)
    with pytest.raises(AssertionError, match="1 of 1152 elements are wrong"):
        check_result(sums.workload, factors, exact + (np.arange(exact.size) == 5).reshape(exact.shape).astype("int32"))


def test_widths_of_instructions() -> None:
    """Past 32 columns `wgmma` of integers has whole sixteens alone."""
    widths = (8, 16, 24, 32, 40, 48, 56, 64, 72, 240, 248, 256)
    for dtype, left_out in (("float16", ()), ("uint8", (40, 56, 72, 248))):
        fits = tensor.space(layer((1, 256, 8, 8), (256, 256, 1, 1), dtype), SM_90).constraints["widths"]
        assert [width for width in widths if not fits(wgmma(64, width, 1, 1))] == [*left_out]
        assert fits(mma(64, 40, 1, 1))


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_integers_that_it_takes(dtype: str) -> None:
    """An older GPU and what is no whole tile are refused with the type, and what would be right."""
    workload = layer((1, 16, 8, 8), (32, 16, 3, 3), dtype).workload
    assert algorithms(Problem(workload), "sm_80") == ("tensor",)
    assert algorithms(Problem(workload, precision="strict"), "sm_90") == ("tensor",)
    with pytest.raises(InvalidArgumentError, match=f"target is .*; expected sm_80 or later, for {dtype}"):
        tvmconv.compile(workload, {"kind": "cuda", "arch": "sm_75"})
    depthwise = ConvWorkload.depthwise((1, 16, 8, 8), (16, 1, 3, 3), dtype=dtype)
    thin = layer((1, 16, 8, 8), (18, 16, 3, 3), dtype).workload
    whys = "takes output channels in multiples of 4, not 18", "is for dense convolutions"
    for refused, why in zip((thin, depthwise), whys, strict=True):
        with pytest.raises(InvalidArgumentError, match=why):
            tvmconv.compile(refused, SM_90)
    with pytest.raises(InvalidArgumentError, match="algorithm is 'direct'; expected auto or tensor"):
        tvmconv.compile(workload, SM_90, algorithm="direct")
