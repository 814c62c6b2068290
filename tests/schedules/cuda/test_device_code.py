"""Functions of CUDA in `.cuh` files: each file compiles alone, with the constants of its schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

import tvmconv
from tests.schedules.cases import bands, diagonals, planes
from tests.shared.sparing import sparing
from tvmconv.compute.depthwise.bands import sequences_as_rows
from tvmconv.compute.gradients import weight_diagonals
from tvmconv.schedules.cuda import depthwise_bands, depthwise_planes
from tvmconv.schedules.cuda.depthwise_bands.tiles import products
from tvmconv.schedules.cuda.depthwise_planes.tiles import in_registers, lines_of, matrices, pairs, sums_of
from tvmconv.schedules.cuda.gradients import diagonals as weight_template
from tvmconv.targets import cuda
from tvmconv.targets.device_code import INCLUDE, PACKAGE, expanded, included

WIDTHS = "".join(
    f"Wgmma<{width}>::multiply<F16>(sums, map, map, 1); Wgmma<{width}>::multiply_registers(sums, words, map, 1);"
    for width in (8, 16, 24, 96, 248, 256)
)

ALL, WITH_CLUSTERS, WITH_WGMMA = ("sm_80", "sm_90", "sm_120"), ("sm_90", "sm_120"), ("sm_90",)

FILES = {
    "compute/approximations.cuh": (ALL, "sums[0] = exp2(reciprocal(make_float4(1, 2, 3, sums[1]))).w;"),
    "lowering/folding/copying.cuh": (ALL, "copy_word<4, -8>(a, b, true); commit_words(); wait_for_words<1>();"),
    "lowering/gpu/clusters.cuh": (
        WITH_CLUSTERS,
        "fetch<1>(w, a, 0); fetch<2>(w, a, 0); fetch<4>(w, a, 1); cluster_barrier();",
    ),
    "schedules/cuda/device/copies.cuh": (
        ALL,
        "copy<16>(a, b, 1); copy<8>(a, b, 1); copy<4>(a, b, n); commit(); ready(n); barrier();",
    ),
    "lowering/gpu/dependent_launches.cuh": (ALL, "after_others(132);"),
    "lowering/gpu/roles.cuh": (
        WITH_WGMMA,
        "begin(a, 4, 2, 128); copies<40>(); multiplies<232>(); acquire(a, n, 1, 64); arrived(a, n, 1); keep(b);"
        "bulk_copy(b, a, n, map, 0, 1, 2, 3, 4, 5); turn(a, 4, team(128), n); next(a, 4, 1); release(a, n, 0, 1);"
        "team_barrier(128);",
    ),
    "lowering/gpu/wgmma.cuh": (WITH_WGMMA, "ready_for_wgmma(n); done(n);"),
    "schedules/cuda/attention/fragments.cuh": (
        ALL,
        "load_four<false>(words, a); load_four<true>(words, a); load_columns(words, a, b);"
        "in_parts(words, words + 1, n); store_words(w, word(a), pair<F16>(sums[0], sums[1]));"
        "words[2] = rest_of(word_of(sums[2]));",
    ),
    "schedules/cuda/depthwise_bands/device.cuh": (ALL, "{bands}"),
    "schedules/cuda/depthwise_planes/device.cuh": (ALL, "{planes}"),
    "schedules/cuda/device/matrices.cuh": (
        ALL,
        "load_matrices<1>(words, n); load_matrices<2, true>(words + 4, n); load_matrices<4, true>(words, n);",
    ),
    "schedules/cuda/device/mma.cuh": (
        ALL,
        "mma<F16>(sums, words, words); mma<BF16>(sums, words, words); mma<S8>(numbers, words, words);"
        "mma<U8>(numbers, words, words); mma_of_half_a_step<F16>(sums, sums, words, words);"
        "mma_of_half_a_step<BF16>(sums, sums, words, words); mma_of_three(sums, words, words, words, words);",
    ),
    "schedules/cuda/device/numbers.cuh": (
        ALL,
        "if (is_finite(sums[0])) sums[0] = widened<F16>(n) + widened<BF16>(n) + widened<TF32>(sums[1]);",
    ),
    "schedules/cuda/device/tf32.cuh": (
        ALL,
        "convert<rest, 2>(words, words); words[0] = to_tf32(rest_of_nearest(words[1]));",
    ),
    "schedules/cuda/device/types.cuh": (ALL, "static_assert(is_same<F16::Sum, float> && ceil_div(9, 8) == 2);"),
    "schedules/cuda/gradients/diagonals.cuh": (ALL, "{diagonals}"),
    "schedules/cuda/grouped/device.cuh": (
        ALL,
        "grouped_product<F16, 1, 2, 1, 32, 48, 480, 3, 3, 1, 1, 1, 1, 4>(sums, a, b);"
        "grouped_product<BF16, 1, 1, 2, 64, 80, 960, 3, 3, 2, 1, 1, 2, 16>(sums, a, b);",
    ),
    "schedules/cuda/shallow/device.cuh": (ALL, "shallow_product<BF16, 2, 1, 2, 2, 256, 3, 3, 1, 2, 3>(sums, a, b);"),
    "schedules/cuda/tensor/mma.cuh": (
        ALL,
        "mma_product<F16, 0, 2, 2>(sums, a, b); mma_product<TF32, 1, 1, 2>(sums, a, b);"
        "mma_product<TF32, 3, 1, 2>(sums, a, b); mma_product<U8, 0, 1, 2>(numbers, a, b);",
    ),
    "schedules/cuda/tensor/wgmma.cuh": (
        WITH_WGMMA,
        "wgmma_product<BF16, 4, 1, 8, 1, 1>(sums, a, b); wgmma_product<U8, 2, 2, 4, 2, 1>(numbers, a, b);"
        "wgmma_tf32<4, 1, 4, 1, 1>(sums, a, b); wgmma_three_products<true, 4, 1, 4, 1, 1>(sums, a, b, b);"
        "wgmma_three_products<false, 1, 1, 4, 2, 1>(sums, a, b, b); wgmma_rounded<4, 1, 4, 1, 1>(sums, a, b);"
        "settle_sums<16>(sums, a, b); store_matrices<3, 128>(a, words);",
    ),
    "schedules/cuda/tensor/wgmma_instruction.cuh": (WITH_WGMMA, WIDTHS),
}
"""The architectures that each file is for, and statements that instantiate its templates."""

KERNEL = """
using namespace tvmconv;
extern "C" __global__ void kernel(float* all_sums, int* all_numbers, unsigned* all_words, void* a, void* b, void* w,
                                  int n, unsigned long long map) {{
  float sums[128];
  int numbers[128];
  unsigned words[128];
  for (int i = 0; i < 128; ++i) sums[i] = all_sums[i], numbers[i] = all_numbers[i], words[i] = all_words[i];
  {statements}
  for (int i = 0; i < 128; ++i) all_sums[i] = sums[i], all_numbers[i] = numbers[i], all_words[i] = words[i];
}}
"""


def calls(of: str) -> str:
    """Return calls of the products of two cases of a template, and of its store."""
    if of == "planes":
        names = [depthwise_planes.product_function(*planes.CASES[name])[0] for name in ("13x13-narrow", "7x7-nhwc")]
        names.append(depthwise_planes.store_function(*planes.CASES["7x7-nhwc"])[0])
    elif of == "bands":
        names = [depthwise_bands.product_function(*bands.CASES[name])[0] for name in ("7x7-tiles", "31x31-float32")]
    else:
        cases = [diagonals.CASES[name] for name in ("7x7-bands", "13x13-float32-odd")]
        names = [weight_template.product_function(each, config.tiles)[0] for each, config in cases]
    return "".join(f"{name}(all_sums, b, w);" for name in names)


CONDITIONAL = "lowering/gpu/dependent_launches.cuh"
"""The file whose code depends on the architecture; the others differ by inline assembly alone."""

COMPILATIONS = [(path, arch) for path, (archs, _) in FILES.items() for arch in archs]
IN_TURN = [(path, archs[number % len(archs)]) for number, (path, (archs, _)) in enumerate(FILES.items())]
"""One of a file's architectures for each."""


@pytest.mark.parametrize(
    ("path", "arch"),
    sparing(COMPILATIONS, lambda number: COMPILATIONS[number] in IN_TURN or COMPILATIONS[number][0] == CONDITIONAL),
)
def test_each_file_compiles_alone(path: str, arch: str) -> None:
    _, statements = FILES[path]
    if statements.startswith("{"):
        statements = calls(statements.strip("{}"))
    cuda.compile_source(expanded([included(path)]) + KERNEL.format(statements=statements), arch)


def test_each_file_is_tried() -> None:
    folder = Path(tvmconv.__file__).parent
    paths = {path for room in (folder, folder / "schedules") for path in room.rglob("*.cuh")}
    assert {path.relative_to(folder).as_posix() for path in paths} == set(FILES)


def test_a_file_comes_once_and_behind_those_that_it_includes() -> None:
    paths = ("schedules/cuda/tensor/wgmma.cuh", "schedules/cuda/tensor/mma.cuh", "schedules/cuda/device/mma.cuh")
    text = expanded([included(path) for path in paths])
    assert INCLUDE.search(text) is None
    assert "#pragma once" not in text
    order = [text.index(part) for part in ("struct F16", "struct Wgmma", "void wgmma_product", "void mma_product")]
    assert order == sorted(order)
    assert text.count("struct F16") == text.count("void load_matrices(") == 1
    assert INCLUDE.findall((PACKAGE / paths[2]).read_text()) == ["schedules/cuda/device/types.cuh"]


def holds(name: str, of: str, path: str, assertions: list[str]) -> None:
    """Check that assertions of a `struct` hold in C++, given the name of a product with the same parameters."""
    parameters = name[name.index("<") :]
    asserted = "".join(f"static_assert({each});\n" for each in assertions)
    cuda.to_ptx(f"{expanded([included(path)])}using T = tvmconv::{of}{parameters};\n{asserted}", "sm_80")


@pytest.mark.parametrize("name", bands.CASES)
def test_bands_are_those_of_the_schedule(name: str) -> None:
    problem, config = bands.CASES[name]
    triples = set(products(sequences_as_rows(problem.workload), config))
    function, path = depthwise_bands.product_function(problem, config)
    steps, blocks = (1 + max(each[axis] for each in triples) for axis in (1, 2))
    found = [f"T::BLOCKS == {blocks} && T::STEPS >= {steps} && T::SUMS == {config.sums}"]
    for band in range(config.block_x // 16):
        for block in range(blocks):
            of_block = [step for other, step, which in triples if (other, which) == (band, block)]
            found.append(f"T::reads({band}, {block}) == {len(of_block)}")
            found += [f"T::step_of({band}, {block}) == {step}" for step in of_block]
    used = {step for _, step, _ in triples}
    found += [f"T::is_read({step}) == {int(step in used)}" for step in range(steps)]
    holds(function, "Bands", INCLUDE.findall(path)[0], found)


@pytest.mark.parametrize("name", planes.CASES)
def test_planes_are_those_of_the_schedule(name: str) -> None:
    problem, config = planes.CASES[name]
    workload = problem.workload
    function, path = depthwise_planes.product_function(problem, config)
    behind = matrices(workload)
    lines, sums = lines_of(workload), sums_of(workload, config)
    found = [f"T::FIRST == {lines.start} && T::END == {lines.stop} && T::SUMS == {sums}"]
    found += [f"T::matrices() == {len(behind)} && T::first_behind() == {behind[0]}"]
    found += [f"T::reads({step} - {band})" for band, step in pairs(workload)]
    found += [f"T::IN_REGISTERS == {int(in_registers(workload))}"]
    holds(function, "Planes", INCLUDE.findall(path)[0], found)


@pytest.mark.parametrize("name", diagonals.CASES)
def test_diagonals_are_those_of_the_schedule(name: str) -> None:
    workload, config = diagonals.CASES[name]
    tiles = config.tiles
    function, path = weight_template.product_function(workload, tiles)
    both = weight_diagonals.products(workload)
    found = [f"T::products() == {len(both)}", *(f"T::meet({m}, {n})" for m, n in both)]
    holds(function, "Diagonals", INCLUDE.findall(path)[0], found)
