"""Every registered template, on its examples and in configurations of the tests: choices, numbers, and machine code.

A new template is tried here as soon as it is registered and has `examples`; a file of its tests has what is peculiar.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from math import inf, isfinite

import msgspec
import pytest
import tvm

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.configured import CASES, EXAMPLES, Row, by_row, is_on_gpu
from tests.schedules.cpu.emulated_tiles import TILES, Emulator, compiled_emulator, needs_x86
from tests.schedules.spaces import check_space, check_whole_space
from tests.shared.records import record
from tests.shared.sparing import every, sparing
from tvmconv.autotvm.record import decode, encode
from tvmconv.dispatch import select
from tvmconv.dispatch.registry import TEMPLATES, algorithm_of, cached_space
from tvmconv.targets import resolve_target
from tvmconv.testing import conformance
from tvmconv.testing.configs import legal_configs
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import Trial

HERE, SM_80 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_80"})
SAPPHIRE_RAPIDS = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids"})
"""A CPU with the instructions of every template for CPUs."""

NOT_EVERYWHERE = {"vectors", "staging", "tiles of several warps", "copies ahead"}
"""The ablations that are no legal configuration of some problems."""

SLOW = ("cuda/direct", "cuda/im2win", "cuda/tensor", "cuda/linear", "cuda/winograd", "cuda/sparse")
"""The templates whose spaces take seconds to list."""

AT_MOST = ("cuda/direct", "cuda/im2win", "cuda/weight_gradient")
"""The templates that count no less shared memory than a block has, and at times a little more."""

FIRST = [row for row in EXAMPLES if row.id.endswith("-0")]
LAST = [*{row.name: row for row in EXAMPLES}.values()]
"""The first and the last example of each template: the last one leaves sizes open where a template has such."""

ON_GPU = [row for row in EXAMPLES if row.is_emulated]
HAVE_TWINS = [row for row in EXAMPLES if not row.is_fused]
IN_STEP = [row for row in CASES if row.is_emulated]
"""The examples and the cases that an emulator of GPUs runs.

It checks the numbers of each example and of one case in four, not a twin; twins are of the first and the last examples.
"""

OF_ANY_BATCH = [row for row in CASES if row.name == "cuda/sparse" and row.problem.open_sizes]
"""The sparse cases whose kernels take any batch: three twins with the weights in their code, the slowest of all."""

FOR_A_RELEASE = [row for row in ON_GPU if row not in FIRST + LAST] + IN_STEP[::4] + OF_ANY_BATCH[1::2]


def target_of(name: str) -> tvm.target.Target:
    """Return the target that a template's kernel is run for here: of CUDA it is the twin, of AMX in an emulator."""
    return SM_90 if is_on_gpu(name) else TILES if name == "cpu/amx" else HERE


def require_instructions(row: Row) -> None:
    """Skip a test of a template whose instructions this machine neither has nor emulates."""
    if (why := TEMPLATES[row.name].obstacle(row.problem, target_of(row.name))) is not None:
        pytest.skip(f"{row.name} {why}")
    if row.name == "cpu/amx" and needs_x86.args[0]:
        pytest.skip(needs_x86.kwargs["reason"])


def attempt(row: Row, source: int | Trial) -> None:
    """Check the numbers of a trial of a row's template, or of a random one with a number, in guarded memory."""
    require_instructions(row)
    how = How(str(target_of(row.name)), twin=is_on_gpu(row.name), bounds=True, algorithm=algorithm_of(row.name))
    conformance.attempt(how, source, seed=1)


def check(row: Row, operands: int) -> None:
    """Check a kernel's numbers, in arrays that end where memory does, or where operands are odd that begin there."""
    attempt(row, Trial.of(row.problem, algorithm_of(row.name), row.config, operands))


def in_random_configuration(row: Row) -> Row:
    require_instructions(row)
    space = cached_space(TEMPLATES[row.name], row.problem, str(target_of(row.name)))
    return replace(row, config=next(legal_configs(space, row.id)))


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return compiled_emulator(tmp_path_factory.mktemp("tiles"))


@pytest.fixture
def instructions(row: Row, request: pytest.FixtureRequest) -> Iterator[None]:
    """Emulate the instructions of AMX during a test of `cpu/amx`."""
    with request.getfixturevalue("tiles").running() if row.name == "cpu/amx" else nullcontext():
        yield


def test_every_template_has_examples() -> None:
    assert {row.name for row in EXAMPLES} == {*TEMPLATES}


@by_row([*EXAMPLES, *CASES])
def test_every_template(row: Row) -> None:
    """Its default is legal, has an estimate, features and ablations, and comes back from a line of a log."""
    name, problem, template = row.name, row.problem, TEMPLATES[row.name]
    target = SM_90 if is_on_gpu(name) else SAPPHIRE_RAPIDS
    assert {*problem.open_sizes} <= {*template.OPEN_SIZES}
    assert template.LAYOUTS.obstacle(problem.workload) is template.obstacle(problem, target) is None
    default, space = template.default_config(problem, target), template.space(problem, target)
    assert type(default) is type(space.least) is template.Config
    check_space(space, default)
    assert row.config is None or space.violated(row.config) == []
    assert 0 < template.estimate(problem, default, target) < inf
    assert all(isfinite(value) and value >= 0 for value in template.features(problem, default, target).values())
    assert {each for each, other in template.ablations(default).items() if space.violated(other)} <= NOT_EVERYWHERE
    largest = replace(default, **{knob: max(values) for knob, values in space.knobs.items()})
    assert any(other != largest for other in template.ablations(largest).values())
    known, knobs = record(), msgspec.to_builtins(default)
    config = msgspec.structs.replace(known.config, entity=tuple((knob, "ot", knobs[knob]) for knob in knobs))
    entry = msgspec.structs.replace(known, config=config, input=(str(target), name, *known.input[2:]))
    assert msgspec.convert(decode(encode(entry)).knobs, template.Config) == default


@by_row(FIRST)
def test_every_template_names_its_features(row: Row) -> None:
    """They have the same names for all problems."""
    template, target = TEMPLATES[row.name], SM_90 if is_on_gpu(row.name) else SAPPHIRE_RAPIDS
    problems = [each.problem for each in EXAMPLES if each.name == row.name]
    named = [template.features(each, template.default_config(each, target), target).keys() for each in problems]
    assert all(names == named[0] for names in named)


@by_row(sparing(FIRST, lambda number: FIRST[number].name not in SLOW))
def test_every_template_lists_its_space(row: Row) -> None:
    target = SM_90 if is_on_gpu(row.name) else SAPPHIRE_RAPIDS
    check_whole_space(TEMPLATES[row.name].space(row.problem, target))


@pytest.mark.usefixtures("instructions")
@by_row(sparing([*HAVE_TWINS, *CASES], lambda number: [*HAVE_TWINS, *CASES][number] not in FOR_A_RELEASE))
def test_every_template_computes(row: Row) -> None:
    check(row, operands=0)


@pytest.mark.usefixtures("instructions")
@by_row([*sparing(HAVE_TWINS, lambda number: HAVE_TWINS[number] in FIRST + LAST), *every(12, CASES)])
def test_every_template_computes_in_a_random_configuration(row: Row) -> None:
    """In two of each template, and in one of twelve cases; each draws one."""
    check(in_random_configuration(row), operands=1)


@pytest.mark.usefixtures("instructions")
@by_row([row for row in FIRST if not row.is_fused])
def test_every_template_computes_a_random_convolution(row: Row) -> None:
    attempt(row, 0)


@by_row([*ON_GPU, *every(4, IN_STEP)])
def test_every_cuda_template_synchronizes(row: Row) -> None:
    """Copies have arrived where they are read, no access passes another, and a block has the memory that is counted."""
    runs = twins_and_cubins.emulated_runs(algorithm_of(row.name), row.problem, row.config)
    config = select(row.problem, SM_90, row.config, algorithm_of(row.name)).config
    used, counted = max(run.shared_bytes for run in runs), TEMPLATES[row.name].shared_bytes(row.problem, config)
    if row.name in AT_MOST or getattr(config, "flat", False):
        assert used <= counted
    else:
        assert counted == used


@by_row(
    [
        *sparing(ON_GPU, lambda number: ON_GPU[number] in FIRST),
        *every(8, IN_STEP),
        *(row for row in CASES if getattr(row.config, "teams", 0)),
    ]
)
def test_every_cuda_template_compiles(row: Row) -> None:
    """Kernels spill nothing and leave room for their threads, by default also on the first GPUs with tensor cores."""
    for target in (SM_90, SM_80)[: 2 if row.config is None else 1]:
        if TEMPLATES[row.name].obstacle(row.problem, target) is None:
            twins_and_cubins.compiled(algorithm_of(row.name), row.problem, row.config, target)
