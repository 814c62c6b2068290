"""The CPU schedules of convolutions whose channels meet, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import msgspec
import pytest

from tests.schedules.kernels_here import HERE as CPU
from tests.schedules.kernels_here import run
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch import algorithms_for, select, template_for
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cpu.direct import im2win
from tvmconv.schedules.cpu.direct import template as direct
from tvmconv.schedules.cpu.direct.tiles import TileConfig
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, Case, random_configs


@pytest.mark.parametrize(
    ("case", "algorithm"),
    sparing(
        product(CONV2D, ("direct", "im2win")),
        lambda index: index % 16 in (0, 7) or (index % 4 == 0 and CONV2D[index // 2].workload.dtype in NARROW),
    ),
    ids=lambda value: getattr(value, "id", value),
)
def test_default_configuration(case: Case, algorithm: str) -> None:
    run(algorithm, case.workload)


WORKLOAD = ConvWorkload.conv2d((2, 8, 10, 13), (32, 8, 3, 3), shift=True, residual=True)
SMALL = TileConfig(vectors=1, vector=8, rows=1, columns=4, channels=4, tiles=1, staged=0, parallel=False)
CONFIGURED = {
    "ragged-everywhere": replace(SMALL, rows=3, columns=5, tiles=2, staged=1),
    "columns-past-lanes": replace(SMALL, columns=13, staged=2),
    "columns-of-four-lanes-and-one": replace(SMALL, vector=4, columns=13),
    "columns-of-four-lanes-and-three": replace(SMALL, vector=4, columns=7, vectors=2),
    "channels-past-the-last": replace(SMALL, vectors=3, staged=1),
    "lanes-of-no-power-of-two": replace(SMALL, vector=6, parallel=True),
    "one-column": replace(SMALL, columns=1, rows=2, channels=1),
}


@pytest.mark.parametrize("config", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_configuration(config: TileConfig) -> None:
    run("direct", WORKLOAD, direct.Config(**vars(config)))
    run("im2win", WORKLOAD, im2win.Config(**vars(replace(config, staged=max(1, config.staged)))))


BLOCKED = {
    "3x3": ConvWorkload.conv2d((2, 16, 9, 11), (48, 16, 3, 3), shift=True, residual=True, activation="relu"),
    "1x1": ConvWorkload.conv2d((1, 48, 13, 13), (80, 48, 1, 1), scale=True),
    "stride-2-half": ConvWorkload.conv2d((1, 16, 15, 14), (16, 16, 5, 3), stride=2, dtype="float16"),
    "dilation": ConvWorkload.conv2d((1, 16, 12, 17), (48, 16, 3, 3), dilation=(1, 2), residual=True),
}


LAYOUTS = (("NCHW8c", "NCHW8c"), ("NCHW", "NCHW8c"), ("NCHW8c", "NCHW"), ("NCHW4c", "NCHW16c"))


@pytest.mark.parametrize(
    ("name", "layout", "out_layout"),
    sparing(
        ((name, *layouts) for name, layouts in product(BLOCKED, LAYOUTS)),
        lambda index: index % 5 == 0,  # one of each
    ),
)
def test_blocks_of_channels(name: str, layout: str, out_layout: str) -> None:
    workload = msgspec.structs.replace(BLOCKED[name], layout=layout, out_layout=out_layout)
    for config in (None, *random_configs(workload, CPU, 1)):
        run("auto", workload, config)


LINEAR = {
    "ragged-rows-and-channels": ConvWorkload.conv2d((29, 24, 1, 1), (20, 24, 1, 1), shift=True, residual=True),
    "stride-of-one-pixel": ConvWorkload.conv2d((13, 16, 1, 1), (16, 16, 1, 1), stride=2, activation="gelu"),
    "two-rows-one-output": ConvWorkload.conv2d((2, 3, 1, 1), (1, 3, 1, 1), dtype="bfloat16", out_dtype="float32"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_layers(name: str) -> None:
    for config in (None, *random_configs(LINEAR[name], CPU, 2, "direct")):
        run("direct", LINEAR[name], config)


def test_linear_layers_of_any_number_of_rows() -> None:
    """Threads are for the many rows that there may be; no legal configuration stages a band of them."""
    problem = Problem(ConvWorkload.conv2d((8, 128, 1, 1), (128, 128, 1, 1)), open_sizes=("batch",))
    space = direct.space(problem, CPU)
    assert space.default.parallel
    assert not direct.default_config(Problem(problem.workload), CPU).parallel
    assert not space.violated(space.default)
    assert space.violated(replace(space.default, staged=1)) == ["staged_rows_are_known"]


def test_rows_of_a_linear_layer_share_what_they_read() -> None:
    """A weight of one row each takes more loads than multiply-adds: 90 GFLOP/s of 193."""
    layers = (ConvWorkload.conv2d((count, 384, 1, 1), (1152, 384, 1, 1)) for count in (197, 1))
    rows, row = (Problem(layer, constant_weight=True) for layer in layers)
    chosen = [(select(problem, CPU), problem) for problem in (rows, row)]
    cycles = [direct.estimate(problem, selection.config, CPU) for selection, problem in chosen]
    assert [selection.name for selection, _ in chosen] == ["cpu/direct"] * 2
    assert chosen[0][0].config.rows > 1
    assert cycles[0] < 0.7 * 197 * cycles[1]


@pytest.mark.parametrize(("kind", "groups"), [("cuda", 1), ("llvm", 2)])
def test_blocks_are_for_templates_that_take_them(kind: str, groups: int) -> None:
    target = resolve_target({"kind": "cuda", "arch": "sm_90"} if kind == "cuda" else kind)
    workload = ConvWorkload.conv2d((1, 16, 9, 9), (16, 16 // groups, 1, 1), groups=groups)
    blocked = msgspec.structs.replace(workload, layout="NCHW8c", out_layout="NCHW8c")
    assert algorithms_for(Problem(blocked), target) == ()
    with pytest.raises(
        InvalidArgumentError, match=f"layout is 'NCHW8c to NCHW8c'; expected NCHW to NCHW, as .* on {kind}"
    ):
        select(Problem(blocked), target)
    with pytest.raises(InvalidArgumentError, match="expected NCHW to NCHW, as .* 90% zeros"):
        select(Problem(blocked, 0.9), target)


@pytest.mark.parametrize("mcpu", ["haswell", "x86-64", "znver5"])
@pytest.mark.parametrize("name", load_suite("im2win-thesis", "llvm"))
def test_registers_hold_the_default_tile(name: str, mcpu: str) -> None:
    """A tile's sums, a weight for each of its vectors and an input fit; the sums are enough to keep the units busy."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu})
    registers, lanes = {"haswell": (16, 8), "x86-64": (16, 4), "znver5": (32, 16)}[mcpu]
    workload = load_suite("im2win-thesis", "llvm")[name]
    problem = Problem(workload, precision="strict")
    space = template_for(problem, target).space(problem, target)
    config = space.default
    assert space.violated(config) == []
    assert config.vector == lanes
    assert config.vectors * config.outputs >= 8
    assert config.vectors * (config.outputs + 1) + 1 <= registers


@pytest.mark.parametrize("mcpu", ["haswell", "x86-64", "znver5"])
def test_default_configurations_are_legal(mcpu: str) -> None:
    """The workloads include linear layers, which have one column."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu})
    linear = (1, 1000, 1, "NCHW"), (100, 1000, 1, "NCHW")
    blocked = (1, 512, 7, "NCHW4c"), (1, 512, 7, "NCHW16c"), (1, 24, 28, "NCHW8c")
    for batch, outputs, size, layout in (*linear, *blocked):
        workload = ConvWorkload.conv2d((batch, 2048, size, size), (outputs, 2048, 1, 1))
        workload = msgspec.structs.replace(workload, layout=layout, out_layout=layout)
        space = direct.space(Problem(workload), target)
        assert (workload, space.violated(space.default)) == (workload, [])


@pytest.mark.parametrize("staged", [1, 2], ids=["band", "whole"])
def test_channels_of_a_padded_input_begin_in_different_sets_of_a_cache(staged: int) -> None:
    """Planes of 32x32 would all begin in the same set, with AVX2 at half the speed."""
    workload = ConvWorkload.conv2d((1, 16, 30, 30), (16, 16, 3, 3), padding=1)
    config = replace(direct.default_config(Problem(workload), CPU), rows=1, columns=5, staged=staged)
    text = str(direct.schedule(Problem(workload), config, CPU).mod["main"])
    assert text.count('"buffer_dim_align": [[0, 1, 32, 16]]') == 1
    run("direct", workload, config)
