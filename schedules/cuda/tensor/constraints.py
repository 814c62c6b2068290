"""The constraints that configurations of convolutions on tensor cores have to meet."""

from __future__ import annotations

from math import prod

import tvm

from tvmconv.compute.annotations import COPYING_THREADS
from tvmconv.compute.tensor.chunks import ROW_BYTES, STEPS, VECTORS, chunks, chunks_of_tap, last_chunk_steps
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.targets import has_clusters, tensor_instructions
from tvmconv.targets.devices import WARP

from ...space import named
from ..gemm.tiles import VECTOR
from ..machine import MAX_REGISTERS, REGISTERS
from ..template import Tests
from .bulk import MAX_PIXELS, is_bulk
from .tiles import (
    MAX_STAGES,
    ROLE_REGISTERS,
    Config,
    ahead,
    block_chunks,
    converted_products,
    fragments,
    may_have_channel_rows,
    role_registers,
    tf32_products,
    tile_bytes,
)

COPIED_ROWS = WARP // VECTORS
"""The number of rows of a chunk that a warp copies at once."""

MAX_COLUMNS = 256
"""The number of columns of the widest `wgmma` (PTX ISA, wgmma.mma_async)."""

MAX_CLUSTER_BLOCKS = 8
"""The most blocks of a cluster on every GPU that has them (CUDA C++ Programming Guide, section on clusters)."""

ROLE_SPARE_REGISTERS = 36
"""The registers that a multiplying thread needs besides its sums, where warps have roles; read off cubins of sm_90."""

INSTRUCTION_REGISTERS = 26
"""The registers that `ptxas` 13.0 asks for besides the sums of one instruction, of those that threads have at first: of
512 threads with 116 sums it says that 142 would do."""

RESIDUAL_REGISTERS = 32
"""The registers of a multiplying thread for vectors of the residual that it reads before it waits for the first one."""

SPARE_REGISTERS, INTEGER_REGISTERS = 40, 4
"""The registers that a thread needs besides its sums and fragments, for addresses of copies, and further ones that
integers need, for zero points; read off cubins of sm_90."""

SPLIT_REGISTERS = 40
"""The further registers of a thread of `mma` where float32 numbers have three products, for factors of the next step
that are split ahead; read off cubins of sm_80 and sm_90, of which those of tiles with 64 sums spill."""

PERMUTED_BYTES = 8 * ROW_BYTES
"""The bytes of eight rows of a chunk, after which the swizzle of vectors repeats. Chunks begin at multiples of it: the
copy engine swizzles by addresses, and `ldmatrix` is given the addresses of rows."""


def rules_of(target: tvm.target.Target) -> Tests[Config]:
    """Return the tests that a target has the features that a configuration uses, by name."""
    known = tensor_instructions(target)

    def instruction(config: Config) -> bool:
        return ("wgmma" if config.wgmma else "mma") in known

    def clusters(config: Config) -> bool:
        """Return whether the blocks of a cluster have equal shares of the sums to store, in vectors."""
        shares = 1 < config.split_k <= MAX_CLUSTER_BLOCKS and config.sums % (VECTOR * config.split_k) == 0
        return not config.in_cluster or (has_clusters(target) and shares)

    return named(instruction, clusters)


def rules(problem: Problem) -> Tests[Config]:
    """Return the tests of a configuration that do not depend on the target or its resources, by name."""
    workload = problem.workload

    def whole_fragments(config: Config) -> bool:
        """Return whether warps have whole instructions; `mma` takes its columns from loads of two matrices."""
        tile, columns = config.tile, 8 if config.wgmma else 16
        whole = tile.block_m == config.block_m and tile.block_n == config.block_n
        return whole and prod(tile.columns) % (tile.warps_n * columns) == 0

    def widths(config: Config) -> bool:
        """Return whether there is a `wgmma` of this width; of integers past 32 columns only multiples of sixteen."""
        columns = 8 * config.tile.tiles_n
        whole = workload.dtype not in QUANTIZED or columns <= 32 or columns % 16 == 0
        return not config.wgmma or (columns <= MAX_COLUMNS and whole)

    def whole_warps(config: Config) -> bool:
        """Return whether the threads of a warp have equal numbers of vectors to copy, and all threads to store."""
        copied = config.block_m % COPIED_ROWS == 0 and config.block_n % COPIED_ROWS == 0
        return copied and config.block_m * config.block_n % (config.threads * VECTOR) == 0

    def stages(config: Config) -> bool:
        limit = MAX_STAGES if config.teams else block_chunks(workload, config)
        return config.num_stages <= MAX_STAGES and 1 <= ahead(problem, config) <= limit

    def specialized(config: Config) -> bool:
        """Return whether warps have roles only where the copy engine can bring the factors of `wgmma`."""
        alone = config.min_blocks_per_sm == 1 and not config.in_cluster
        copied = is_bulk(problem) and max(config.block_m, config.block_n) <= MAX_PIXELS
        return not config.teams or (config.wgmma and copied and alone)

    def whole_splits(config: Config) -> bool:
        """Return whether parts have equal numbers of chunks, of whole taps where a tap's last chunk is narrower."""
        together = 1 if last_chunk_steps(workload) == STEPS else chunks_of_tap(workload)
        return not config.teams or chunks(workload, by_tap=True) % (config.split_k * together) == 0

    def rounding(config: Config) -> bool:
        return not config.rounds_input or (config.wgmma and tf32_products(problem) == 1)

    def transposed(config: Config) -> bool:
        """Return whether channels are rows only where `wgmma` reads both factors from shared memory."""
        in_memory = config.wgmma and converted_products(problem, config) == 0
        return not config.channel_rows or (in_memory and may_have_channel_rows(problem))

    def aligned(config: Config) -> bool:
        """Return whether chunks begin where the period of their swizzle does, also after the tiles of teams."""
        return not config.teams or config.teams * tile_bytes(problem, config) % PERMUTED_BYTES == 0

    def splits_with_terms(config: Config) -> bool:
        return (config.split_k - 1) * block_chunks(workload, config) < chunks(workload, config.teams > 0)

    def indices(config: Config) -> bool:
        """Return whether TVM can count the sums of parts in 32 bits."""
        return config.kernels == 1 or config.split_k * prod(workload.output_shape) < 2**31

    return named(
        whole_fragments,
        widths,
        whole_warps,
        stages,
        specialized,
        whole_splits,
        rounding,
        transposed,
        aligned,
        splits_with_terms,
        indices,
    )


def needed_registers(problem: Problem, config: Config) -> int:
    """Return the registers that a thread needs; where warps have roles, a thread that multiplies."""
    workload, needed = problem.workload, config.sums + fragments(problem, config)
    if config.teams:
        residual = RESIDUAL_REGISTERS if workload.epilogue.residual and config.split_k == 1 else 0
        return needed + ROLE_SPARE_REGISTERS + residual
    spare = SPARE_REGISTERS + (INTEGER_REGISTERS if workload.dtype in QUANTIZED else 0)
    if tf32_products(problem) == 3 and not config.wgmma:
        spare += SPLIT_REGISTERS
    return needed + spare


def max_registers(config: Config) -> int:
    """Return the most registers that a thread may have; 0 for roles that the registers of a block cannot serve."""
    if not config.teams:
        return min(MAX_REGISTERS, REGISTERS // (config.threads * config.min_blocks_per_sm))
    known = config.teams * config.threads // COPYING_THREADS in ROLE_REGISTERS
    at_first = REGISTERS // (config.teams * config.threads + COPYING_THREADS)
    instruction = 4 * config.tile.tiles_n + INSTRUCTION_REGISTERS
    return role_registers(config)[1] if known and instruction <= at_first else 0
