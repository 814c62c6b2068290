"""The CUDA functions that multiply two chunks in shared memory on tensor cores, and store results.

They are in `mma.cuh`, those of a warp, and `wgmma.cuh`, those of groups of four warps. Each is called by all threads of
a block, each with the addresses of its sums and of its first row of both factors.
"""

from __future__ import annotations

from tvmconv.compute.tensor.chunks import STEPS
from tvmconv.problem import Problem
from tvmconv.targets.device_code import function, included

from .tiles import Config, converted_products, is_asynchronous, tile_row_bytes

TYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "TF32", "int8": "S8", "uint8": "U8"}
"""The C++ types of factors, by the type of the input."""

MMA, WGMMA = (included(f"schedules/cuda/tensor/{name}.cuh") for name in ("mma", "wgmma"))


def product_function(problem: Problem, config: Config, steps: int = STEPS, nearest: bool = False) -> tuple[str, str]:
    """Return the name and the source of the function that adds the product of two chunks to a thread's sums.

    With `wgmma` it multiplies the first `steps` steps of the chunks. For three products `nearest` rounds each number of
    the first factor to the nearest TF32 number, where the tensor core would truncate it: the rest is half as large
    then, and may be negative. On an H100 that takes 1.06 to 1.1 times as long.
    """
    products, kind, tile = converted_products(problem, config), TYPES[problem.workload.dtype], config.tile
    if not config.wgmma:
        return function("mma_product", kind, products, tile.tiles_m, tile.tiles_n), MMA
    sizes = steps, tile.tiles_m, tile.tiles_n, tile.warps_m * tile.warps_n, tile.warps_n
    if products == 0:
        return function("wgmma_product", kind, *sizes), WGMMA
    if is_asynchronous(problem, config):
        return function("wgmma_rounded", *sizes), WGMMA
    if products == 1:
        return function("wgmma_tf32", *sizes), WGMMA
    return function("wgmma_three_products", nearest, *sizes), WGMMA


def settled_function(config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that a thread's complete sums of float32 go through."""
    return function("settle_sums", config.sums), WGMMA


def matrices_function(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the name and the source of the function that stores the results of an instruction in a tile's rows."""
    return function("store_matrices", config.tile.tiles_n, tile_row_bytes(problem, config)), WGMMA
