"""Kernels for ranges of an open batch: their choice, and the function that runs the one for the batch of its call."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import tvm
from tvm import te, topi

from tvmconv import ConvWorkload
from tvmconv.compute.open_sizes import VARIABLES
from tvmconv.dispatch import Selection, ranges, select, select_ranges
from tvmconv.dispatch.ranges import ASSUMED_BATCHES
from tvmconv.lowering import KERNEL_NAME, RangeFunction, as_scheduled, build, join, limited, lower
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import Workspace, take_out
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

CPU, SM_90 = resolve_target(TWIN_TARGET), resolve_target({"kind": "cuda", "arch": "sm_90"})

DENSE = ConvWorkload.conv2d((1, 64, 28, 28), (128, 64, 3, 3), padding=1)
DEPTHWISE = ConvWorkload.depthwise((1, 6, 13, 11), (6, 1, 3, 3), activation="relu")


def with_open_batch(workload: ConvWorkload) -> Problem:
    return Problem(workload, open_sizes=("batch",))


def at(workload: ConvWorkload, batch: int) -> ConvWorkload:
    return msgspec.structs.replace(workload, batch=batch)


def test_a_known_batch_and_a_cpu_have_one_range() -> None:
    for problem, target in ((Problem(DENSE), SM_90), (with_open_batch(DENSE), resolve_target("llvm"))):
        assert select_ranges(problem, target) == ((1, problem, select(problem, target)),)


def test_ranges_begin_where_their_kernels_become_faster() -> None:
    """Each has the kernel that is chosen for its batch, and the one before is no slower up to its beginning."""
    chosen = select_ranges(with_open_batch(DENSE), SM_90)
    assert [each.least for each in chosen] == sorted({each.least for each in chosen})
    assert chosen[0].least == 1
    assert len(chosen) > 1
    for least, problem, selection in chosen:
        assert least <= problem.workload.batch
        assert problem.workload.batch in ASSUMED_BATCHES
        assert selection == select(problem, SM_90)
    for before, after in pairwise(chosen):
        for batch, is_faster in ((after.least - 1, False), (after.least, True)):
            problem = with_open_batch(at(DENSE, batch))
            cycles = [
                each.selection.template.estimate(problem, each.selection.config, SM_90) for each in (before, after)
            ]
            assert (cycles[1] < cycles[0]) == is_faster


def test_what_was_measured_has_a_range_whatever_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of a log for many images is kept, and one that is the same for a few is no range of its own."""
    many = replace(select(with_open_batch(DENSE), SM_90, algorithm="direct").config, vthreads_n=1, thread_n=1, store=1)

    def chosen(problem: Problem, target: tvm.target.Target) -> Selection:
        config = many if problem.workload.batch == 64 else None
        return select(with_open_batch(DENSE), target, config, "direct")

    monkeypatch.setattr(ranges, "select", chosen)
    first, second = select_ranges(with_open_batch(DENSE), SM_90)
    assert (first.least, second.selection.config) == (1, many)


def test_a_batch_that_no_workload_has_is_not_assumed() -> None:
    """64 of these images are more elements than a workload may have."""
    large = with_open_batch(ConvWorkload.conv2d((1, 64, 1024, 1024), (64, 64, 3, 3)))
    assert all(each.problem.workload.batch < 64 for each in select_ranges(large, SM_90))


def parts() -> list[RangeFunction]:
    """Return kernels for batches from 1, 3 and 5 on, each with another activation."""
    found = []
    for least, high in ((1, None), (3, 6.0), (5, 1.0)):
        workload = msgspec.structs.replace(DEPTHWISE, epilogue=msgspec.structs.replace(DEPTHWISE.epilogue, high=high))
        problem = with_open_batch(workload)
        found.append(RangeFunction(least, *take_out(lower(problem, select(problem, SM_90), SM_90, KERNEL_NAME), SM_90)))
    return found


def test_the_kernel_for_the_batch_runs() -> None:
    func, workspace = join(parts())
    twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(limited(func, workspace, SM_90))}), CPU)
    for batch, high in ((1, None), (2, None), (3, 6.0), (4, 6.0), (5, 1.0), (9, 1.0)):
        epilogue = msgspec.structs.replace(DEPTHWISE.epilogue, high=high)
        workload = msgspec.structs.replace(at(DEPTHWISE, batch), epilogue=epilogue)
        operands = random_operands(workload)
        assert operands["output"].size == np.prod(workload.output_shape)
        tensors = [tvm.runtime.tensor(array) for array in operands.values()]
        twin[KERNEL_NAME](*tensors)
        check_result(workload, operands, tensors[-1].numpy())


def test_a_batch_past_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has 6 * 13 * 11 numbers of four bytes: two of them are not past the limit that is set, three are."""
    monkeypatch.setattr("tvmconv.lowering.open_sizes.ranges.MAX_BYTES", 2 * 4 * 6 * 13 * 11)
    twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(limited(*join(parts()), SM_90))}), CPU)
    for batch in (2, 3):
        tensors = [tvm.runtime.tensor(array) for array in random_operands(at(DEPTHWISE, batch)).values()]
        if batch == 2:
            twin[KERNEL_NAME](*tensors)
        else:
            with pytest.raises(ValueError, match="batch: too large, an array of this call has over 6864 bytes"):
                twin[KERNEL_NAME](*tensors)


def test_arrays_are_shared_and_no_larger_than_they_are_used() -> None:
    """The weight laid out is one for both; sums of parts are for batches below 8 alone."""
    found = []
    for least, split_k in ((1, 4), (8, 1)):
        config = replace(select(with_open_batch(DENSE), SM_90, algorithm="direct").config, packed=True, split_k=split_k)
        selection = select(with_open_batch(DENSE), SM_90, config)
        func = lower(with_open_batch(DENSE), selection, SM_90, KERNEL_NAME)
        found.append(RangeFunction(least, *take_out(func, SM_90)))
    packed, sums = found[0].workspace.parameters
    _, workspace = join(found)
    assert sums == ((4, 1, 128, "batch * 784"), "float32")
    assert workspace == Workspace(
        found[0].workspace.nbytes, (packed, ((4, 1, 128, "T.min(batch, 7) * 784"), "float32"))
    )
    assert [shape for shape, _ in workspace.sized(at(DENSE, 3))] == [packed[0], (4, 1, 128, 3 * 28 * 28)]
    assert [shape for shape, _ in workspace.sized(at(DENSE, 100))] == [packed[0], (4, 1, 128, 7 * 28 * 28)]
    saved = msgspec.convert(msgspec.to_builtins(workspace), Workspace)
    assert saved == workspace


def test_arrays_that_are_alike_stay_apart_in_one_part() -> None:
    """The first part has two such arrays, and shares one with the second."""

    def part(least: int, *factors: int) -> RangeFunction:
        x = te.placeholder((VARIABLES["batch"], 4), name="x")
        stages = [topi.multiply(x, float(factor)) for factor in factors]
        output = te.compute(x.shape, lambda *index: sum(stage[index] for stage in stages), name="output")
        func = as_scheduled(te.create_prim_func([x, output]), KERNEL_NAME)
        return RangeFunction(least, *take_out(func, SM_90))

    func, workspace = join([part(1, 2, 10), part(3, 5)])
    assert [shape for shape, _ in workspace.parameters] == [("batch", 4), ("T.min(batch, 2)", 4)]
    kernel = build(tvm.IRModule({KERNEL_NAME: func}), CPU)
    for batch, factor in ((2, 12), (3, 5)):
        x = np.random.default_rng(batch).random((batch, 4), np.float32)
        output = tvm.runtime.empty(x.shape, "float32")
        memory = (tvm.runtime.empty(*spec) for spec in workspace.with_sizes({"batch": batch}))
        kernel[KERNEL_NAME](tvm.runtime.tensor(x), output, *memory)
        np.testing.assert_allclose(output.numpy(), x * factor, rtol=1e-6)
