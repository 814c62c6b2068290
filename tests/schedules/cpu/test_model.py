"""The model of a CPU: what its clocks depend on, the counts of templates that it is given, and its fitted rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tvmconv.dispatch import template_named
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.cpu import MODULES
from tvmconv.schedules.cpu.model import Counts, Read, by_cache, clocks, spilled
from tvmconv.schedules.cpu.model.rates import Rates, factors_of, rates_of, table
from tvmconv.schedules.cpu.template import CpuTemplate
from tvmconv.schedules.fitted import UNFITTED, Factors
from tvmconv.targets import cpu_of, resolve_target
from tvmconv.targets.devices import AMX, AVX2, AVX512, CPUS, NEON, SSE

RATES = Rates(
    call=100,
    loop=1000,
    multiply=1,
    load=0.5,
    broadcast=0.5,
    split=0.5,
    spill=2,
    allocate=100,
    issue=1,
    store=2,
    transpose=4,
    pair=0.1,
    copy=1,
    move=0.5,
    pack=1,
    second=1 / 32,
    last=1 / 16,
    memory=1 / 4,
    power=8,
)
COUNTS = Counts(tasks=32, threads=2, loops=1, multiplied=1e6, loaded=1e5, chained=1e4)
TARGET = resolve_target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
COUNTING = [name for name in MODULES if type(template_named(f"cpu/{name}")).counts is not CpuTemplate.counts]


def clocks_of(rates: Rates = RATES, factors: Factors = UNFITTED, **counts: float) -> float:
    return clocks(replace(COUNTS, **counts), CPUS["znver4"], rates, factors)


def test_two_threads_share_the_multiply_adds() -> None:
    """A core has two units for them."""
    assert clocks_of() == pytest.approx(100 + 1000 + 1e6 / 2 / 2, rel=1e-3)
    assert clocks_of(tasks=1, threads=1, loops=0) == pytest.approx(100 + 1e6 / 2, rel=1e-3)


def test_threads_with_a_task_more_than_others_take_longest() -> None:
    assert clocks_of(tasks=3) == pytest.approx(100 + 1000 + 1e6 / 2 * 2 / 3, rel=1e-3)


def test_sums_that_wait_for_one_another() -> None:
    """Each of a million steps waits for four clocks, whatever it multiplies."""
    assert clocks_of(chained=1e6) == pytest.approx(100 + 1000 + 4e6 / 2, rel=1e-3)


@pytest.mark.parametrize(
    "more",
    [
        {"loops": 2},
        {"multiplied": 1.1e6},
        {"loaded": 2e6},
        {"broadcast": 2e6},
        {"split": 2e6},
        {"spilled": 1e6},
        {"allocated": 1e3},
        {"issued": 1e4},
        {"stored": 1e4},
        {"transposed": 1e4},
        {"paired": 1e5},
        {"copied": 1e4},
        {"moved": 1e4},
        {"packed": 1e4},
        {"second": 1e8},
        {"last": 1e8},
        {"memory": 1e8},
    ],
    ids=str,
)
def test_more_work_takes_longer(more: dict[str, float]) -> None:
    assert clocks_of(**more) > clocks_of()


def test_factors_are_of_sums_and_of_what_is_beside() -> None:
    factors = Factors(issued=2.0, waiting=3.0)
    assert clocks_of(factors=factors, stored=1e4) == pytest.approx(clocks_of(multiplied=2e6, loaded=2e5, stored=3e4))


def test_arrays_are_counted_one_by_one() -> None:
    tasks, threads = np.array([1.0, 33.0, 7.0]), np.array([1.0, 2.0, 4.0])
    arrays: Any = clocks_of(tasks=tasks, threads=threads)  # type: ignore[arg-type]
    expected = [clocks_of(tasks=int(one), threads=int(other)) for one, other in zip(tasks, threads, strict=True)]
    assert arrays == pytest.approx(expected)


def test_data_come_from_the_smallest_cache_that_holds_them() -> None:
    reads = Read(1.0, 1e3), Read(20.0, 1e5), Read(300.0, 1e7), Read(4000.0, 1e9)
    assert by_cache(CPUS["znver4"], *reads) == {"second": 20.0, "last": 300.0, "memory": 4000.0}


def test_sums_beyond_the_registers_are_spilled() -> None:
    assert spilled(10.0, 32, AVX512) == 0
    assert spilled(10.0, 35, AVX512) == 30
    assert spilled(10.0, 17, AVX2) == 10


@pytest.mark.parametrize("name", COUNTING)
def test_what_a_template_counts(name: str) -> None:
    """An image more is no less work and takes longer, and code of one thread has no parallel loops."""
    template = template_named(f"cpu/{name}")
    assert isinstance(template, CpuTemplate)
    for problem in template.examples:
        if template.obstacle(problem, TARGET) is not None:
            continue
        assert isinstance(problem.workload, ConvWorkload)
        config = template.default_config(problem, TARGET)
        counts = template.counts(problem, config, TARGET)
        assert counts.tasks >= 1
        assert counts.multiplied >= problem.workload.flops / 2 / 16 / 4  # of vectors, of up to four products a lane
        assert counts.chained <= counts.multiplied
        assert min(vars(counts).values()) >= 0
        alone = template.counts(problem, replace(config, parallel=False), TARGET)
        assert (alone.tasks, alone.threads) == (1, 1)
        twice = msgspec.structs.replace(problem.workload, batch=2 * problem.workload.batch)
        larger = msgspec.structs.replace(problem, workload=twice)
        assert template.estimate(larger, config, TARGET) > template.estimate(problem, config, TARGET)


@pytest.mark.parametrize(
    "cpu", [*dict.fromkeys((AVX512, AMX, AVX2, SSE, NEON, *CPUS.values()))], ids=lambda cpu: cpu.model
)
def test_every_cpu_has_rates(cpu: Any) -> None:
    assert rates_of(cpu) is table().machines[cpu.row]


def test_every_row_is_of_something_known() -> None:
    assert {*table().templates, *table().errors} <= {*MODULES.values()}
    assert factors_of("tvmconv.schedules.cpu.direct.im2win") == table().templates["direct"]
    assert factors_of("somebody.schedules.cpu.elsewhere") == UNFITTED


@pytest.mark.parametrize("change", [{"load": -1.0}, {"load": 0}, {"loads": 1.0}], ids=str)
def test_a_row_with_a_wrong_number_is_refused(change: dict[str, float]) -> None:
    row = msgspec.to_builtins(RATES) | change
    with pytest.raises(msgspec.ValidationError, match="load"):
        msgspec.convert(row, Rates)


def test_znver4_has_a_row_of_its_own() -> None:
    assert cpu_of(TARGET) is CPUS["znver4"]
