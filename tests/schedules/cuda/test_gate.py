"""The kernel of gates: numbers in the emulator in every configuration, machine code, and what it takes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.schedules.cases.gate import GATES, gate
from tests.shared.sparing import every
from tvmconv import dispatch, lowering
from tvmconv.checking.fused import FusedSample
from tvmconv.checking.operands import random_operands
from tvmconv.problem import FusedProblem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.gate import THREADS, Config, template
from tvmconv.targets import cuda, resolve_target

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
CASES = [(name, threads) for name in GATES for threads in THREADS]


@pytest.mark.parametrize(("name", "threads"), every(3, CASES))
def test_numbers(name: str, threads: int) -> None:
    problem = FusedProblem(GATES[name])
    selection = dispatch.select(problem, SM_90, Config(threads))
    (kernel,) = device_functions(lowering.lower(problem, selection, SM_90, "gate"), SM_90)
    arrays = random_operands(problem.workload)
    Emulator(kernel, arrays)
    FusedSample(problem, arrays, np.random.default_rng(0), 2**16).check(arrays["output"])


@pytest.mark.parametrize(("name", "threads"), every(5, CASES))
def test_machine_code(name: str, threads: int) -> None:
    """Nothing is spilled, and a block of the most threads has room."""
    problem = FusedProblem(GATES[name])
    func = lowering.lower(problem, dispatch.select(problem, SM_90, Config(threads)), SM_90, "gate")
    source = str(lowering.build(tvm.IRModule({"gate": func}), SM_90).mod.imports[0].inspect_source())
    (kernel,) = cuda.kernel_resources(source, "sm_90")
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    assert kernel.shared_bytes >= template.shared_bytes(problem, Config(threads))


def test_default_has_the_least_clocks_of_all_numbers_of_threads() -> None:
    for name in ("efficientnet", "large"):
        problem = FusedProblem(GATES[name])
        found = dispatch.select(problem, SM_90)
        assert found.name == "cuda/gate"
        clocks = {threads: template.estimate(problem, Config(threads), SM_90) for threads in THREADS}
        assert clocks[found.config.threads] == min(clocks.values())


def test_more_channels_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="takes up to 8192 and 1024 channels, not 9000 and 4"):
        dispatch.select(FusedProblem(gate(1, 9000, 4)), SM_90)


def test_a_cpu_has_none() -> None:
    with pytest.raises(InvalidArgumentError, match="is for convolutions"):
        dispatch.select(FusedProblem(GATES["odd"]), resolve_target("llvm"))
