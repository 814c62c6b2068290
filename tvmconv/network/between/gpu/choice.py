"""The threads of a GPU's kernel for stages."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Range
from tvm.sym import Analyzer

from tvmconv.compute.statements import INDEX
from tvmconv.lowering.signatures import itemsize
from tvmconv.problem.workload import MAX_ELEMENTS
from tvmconv.targets.devices import WARP, Gpu

from ..stages import Stage, is_contiguous_along, loads_in, variables_in
from .domain import run_of, tile_of
from .plan import TILE, VECTOR_BYTES, Domain, Plan, assumed, size_of
from .windows import are_side_by_side, sliding_of

TILE_BYTES = 8
"""The bytes that a thread moves at once between memory and a tile at most."""

BLOCK = 256
"""The threads of a block of many rows."""

MAX_THREADS = 1024
"""The most threads of a block."""

NARROW = 4
"""The fewest elements of vectors of rows, to which they are narrowed to keep all multiprocessors busy."""

KEPT_BYTES = 256
"""The bytes of a row that a thread keeps in registers, at most."""

FEW = 8
"""An operand of a map that is more than this number of times smaller than the largest one does not limit vectors."""

WINDOW = 64
"""The largest number of elements of a window that a single thread reduces."""


def plan_of(stages: list[Stage], domain: Domain, gpu: Gpu) -> Plan:
    """Return the threads for a kernel."""
    busy = gpu.multiprocessors * gpu.warps * WARP // 2  # threads that half fill the GPU hide the time of loads
    count = size_of(domain.rows)
    every = zip(stages, domain.columns, strict=True)
    sizes = [size_of(columns) for stage, columns in every if columns or stage.is_reduction]
    inner = {target for stage in stages[:-1] for target in stage.targets}  # these are in registers
    loads = (load.source for stage in stages for value in stage.values for load, _ in loads_in(value))
    in_memory = [*(source for source in loads if source not in inner), *stages[-1].targets]
    widest = max(itemsize(each.ty.dtype) for each in (in_memory if inner or sizes else _larger(in_memory)))
    is_contiguous = any(_is_contiguous_reduction(stage) for stage in stages if stage.is_reduction)
    has_column_vectors = (is_contiguous and not _slides(stages)) or (bool(domain.tests) and len(stages) > 1)
    through_tiles = [] if has_column_vectors else _through_tiles(stages[-1], domain)
    straight = through_tiles if len(stages) == 1 else []
    runs = [size_of(run_of(load, domain.rows)) for part in straight for load, _ in loads_in(part)]
    divided = [*sizes, *_chunked(domain)] if has_column_vectors else [count, *runs]
    max_bytes = VECTOR_BYTES if not through_tiles else TILE_BYTES if len(stages) == 1 else 1
    vector = max(1, max_bytes // widest)
    analyzer = Analyzer()
    for var in variables_in([count, *sizes]):
        analyzer.bind(var, Range(1, MAX_ELEMENTS + 1))
    while not all(analyzer.can_prove_equal(tirx.floormod(size, vector), 0) for size in divided):
        vector //= 2
    max_kept_vectors = max(1, KEPT_BYTES // (widest * vector))
    rows, columns = assumed(count), max([assumed(size) for size in sizes], default=1)
    if has_column_vectors:
        threads = 1
        while threads < MAX_THREADS and (
            threads * vector * 8 < columns or (rows * threads < busy and threads * vector * 2 <= columns)
        ):
            threads *= 2
        together = max(1, WARP // threads)
        while together * threads * 2 <= BLOCK // 2 and together < rows:
            together *= 2
        return Plan(True, vector, together, threads, max_kept_vectors)
    groups = rows // vector
    if through_tiles:
        if straight:
            tile = tile_of(stages)
            return Plan(False, vector, tile // vector, BLOCK * vector // tile, max_kept_vectors, through_tiles, tile)
        threads = 8
        while threads < TILE and (groups * threads < busy or columns // threads > max_kept_vectors):
            threads *= 2
        return Plan(False, vector, TILE, threads, max_kept_vectors, through_tiles)
    if not sizes or _slides(stages):
        sliding = sliding_of(stages, domain, busy, vector) if sizes else None
        if sliding is not None:
            vector = sliding.outputs * sliding.lanes
        elif sizes and not are_side_by_side(stages):
            vector = 1
        block = BLOCK if sliding is None else BLOCK // 2  # its threads use many registers
        while block > WARP and rows // vector // block < 2 * gpu.multiprocessors:
            block //= 2
        return Plan(False, vector, block, 1, max(max_kept_vectors, 1), sliding=sliding)
    while vector > NARROW and rows // vector < 2 * gpu.multiprocessors:
        vector //= 2
        groups *= 2
    threads, again = 1, len(sizes) > 1
    while (
        threads * 2 <= columns
        and threads < BLOCK // 2
        and (groups * threads < busy or (again and columns // threads > max_kept_vectors))
    ):
        threads *= 2
    return Plan(False, vector, max(2, min(64, BLOCK // threads)), threads, max_kept_vectors)


def _larger(operands: list[Any]) -> list[Any]:
    """Return the operands with many elements, without small ones such as vectors of channels."""
    counts = [assumed(prod(each.ty.shape, start=tirx.const(1, INDEX))) for each in operands]
    return [each for each, count in zip(operands, counts, strict=True) if count * FEW > max(counts)]


def _chunked(domain: Domain) -> list[Expr]:
    return [test.b for test in domain.tests]


def _slides(stages: list[Stage]) -> bool:
    """Return whether all reductions are of small windows, each of which a single thread reduces."""
    return all(is_window(stage) for stage in stages if stage.is_reduction)


def is_window(stage: Stage) -> bool:
    """Return whether a stage reduces small windows that slide, so that a single thread reduces each."""
    if assumed(size_of(stage.reduced)) > WINDOW or not stage.reduced:
        return False
    inner = list(stage.reduced)[-1]
    for value in stage.values:
        for load, _ in loads_in(value):
            for index in load.indices:
                found = variables_in([index])
                if inner in found and found & set(stage.outer):
                    return True
    return False


def _is_contiguous_reduction(stage: Stage) -> bool:
    """Return whether the elements that a reduction joins are contiguous in memory."""
    if not stage.reduced:
        return False
    inner = list(stage.reduced)[-1]
    loads = (load for value in stage.values for load, _ in loads_in(value))
    load = next((load for load in loads if inner in variables_in(load.indices)), None)
    return load is not None and is_contiguous_along(load, inner)


def _through_tiles(stage: Stage, domain: Domain) -> list[Expr]:
    """Return the parts of a map that threads of rows compute and threads of columns store.

    They are the map's values if those are made of a row's results, or of a load on a condition, and else the loads that
    are contiguous along the last axis of rows.
    """
    if stage.is_reduction or not domain.columns[-1] or not stage.outer:
        return []
    if len(domain.columns) > 1:
        axis = list(stage.outer)[-1]
        return stage.values if axis in domain.columns[-1] else []
    row, column = list(domain.rows)[-1], list(stage.outer)[-1]
    found = [(value, *each) for value in stage.values for each in loads_in(value) if is_contiguous_along(each[0], row)]
    read = [(value, load, tests) for value, load, tests in found if column in variables_in(load.indices)]
    if len(read) == 1 and read[0][2]:
        return [read[0][0]]
    return [load for _, load, tests in read if not tests]
