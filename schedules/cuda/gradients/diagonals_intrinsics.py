"""The CUDA function that multiplies rows of x by rows of dy on tensor cores: see `diagonals.cuh`."""

from __future__ import annotations

from tvmconv.compute.gradients.weight_diagonals import DiagonalTiles, diagonals
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.device_code import function, included

from ..tensor.intrinsics import TYPES
from .diagonals_tiles import line_bytes, of_three_products


def product_function(workload: ConvWorkload, tiles: DiagonalTiles) -> tuple[str, str]:
    """Return the name and the source of the function that adds a warp's products to its threads' sums."""
    lines, reached, is_whole = tiles.lines(workload), diagonals(workload), tiles.bands(workload) == 1
    x_line, dy_line = (line_bytes(width, workload.itemsize) for width in (workload.width, workload.output_size[1]))
    tile = tiles.block_r(workload), tiles.groups, tiles.pairs, tiles.rows
    sizes = x_line, lines * x_line, dy_line, tiles.rows * dy_line
    rows = workload.kernel[0], workload.padding[0] if is_whole else 0, lines
    columns = workload.width, workload.output_size[1], workload.kernel[1], workload.padding[1]
    numbers = *tile, *sizes, *rows, -reached[0], len(reached), *columns, is_whole
    kind = "diagonals_product_in_float32" if of_three_products(workload) else "diagonals_product"
    return function(kind, TYPES[workload.dtype], *numbers), included("schedules/cuda/gradients/diagonals.cuh")
