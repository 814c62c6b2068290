"""Attention on the tensor cores of a GPU: scores and their softmax stay in registers.

A block has a tile of queries of one matrix, and loops over tiles of keys, while the tiles of the next turns are copied
to shared memory. It keeps the largest score so far of each query; where that grows, earlier sums are scaled down:

    for block in matrices x tiles of queries:
        for tile of keys: wait; copy the tile after the next ones
            s = q k^T;  m, before = max(m, s), m;  p = 2^(s - m)
            sum = sum * 2^(before - m) + p;  y = y * 2^(before - m) + p v
        y / sum

`block` has the memory of a block, `products` both products, in half precision (`half`) and in TF32 numbers (`tf32`),
and `kernel` the loop around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm.s_tir import Schedule

from tvmconv.problem import FusedProblem, Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.fused.attention import Attention
from tvmconv.problem.layout import StridedRows
from tvmconv.problem.precision import DEFAULT
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import gpu_of

from ...space import named
from ...template import Fused
from ..machine import BLOCK_BYTES, LINE, MAX_REGISTERS, PRODUCTS
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests, several_warps, tensor_core_obstacle
from ..tensor.tiles import tf32_products
from .fragments import FRAGMENT
from .kernel import attention_kernel
from .reference import attention_reference
from .tiles import (
    KEYS,
    Config,
    attention_of,
    least_resident,
    padded,
    registers_of,
    shared_bytes,
    turns_of,
    vector,
)

MAX_DEPTH = 128
"""The most terms of a score, and the most columns of values: a thread has a row's in registers."""

STAGES = 2
"""The number of turns whose keys and values are in shared memory: one is copied while the other is computed with.

With three, attention of ViT-S took 15.3 µs at batch 32 on an H100 where it takes 14.8, and 53.1 at batch 128 for 53.7.
"""

SHAPES = ((1, 4, 1), (1, 2, 2), (1, 1, 4))
"""The fragments, the warps and the splits of a default. Where there are few blocks warps share queries."""

KNOBS: Mapping[str, tuple[int, ...]] = {
    "fragments": (1, 2),
    "stages": (1, 2, 3),
    "keys": (KEYS // 2, KEYS),
    "warps": (1, 2, 4, 8),
    "splits": (1, 2, 4),
}
"""The values of the knobs that are worth a trial."""


MULTIPLYING, SCORING, SCORING_FLOAT32, CONVERTING = 128.0, 450.0, 585.0, 300.0
"""The instructions of a warp for a fragment and `KEYS` keys of 64 elements: for products in half precision (of TF32
numbers twice that); for the softmax of scores and for loads, in half precision and in float32; and for converting the
factors of each product of TF32 numbers."""

TURNING, MERGING, BEGINNING = 60.0, 500.0, 150.0
"""The instructions of a warp for a turn, for adding its sums to those of another warp with the same queries, and for
its beginning."""

UNHIDDEN = 0.2
"""The share of turns whose keys a thread waits for, though they are copied while it computes with those before."""


class FusedAttention(GpuTemplate[Config]):
    """Attention in one kernel: two products on tensor cores, and the softmax between them."""

    LAYOUTS = Fused(Attention, attention_reference)
    LEAST = Config(fragments=1, stages=1, keys=FRAGMENT, warps=1, splits=1)
    examples = tuple(
        FusedProblem(
            Attention(
                *(2, depth, width, dtype, dtype, 0.25),
                *(StridedRows.whole_tensor(2, queries, depth), StridedRows.whole_tensor(2, keys, depth)),
                *(StridedRows.whole_tensor(2, keys, width), StridedRows.whole_tensor(2, queries, width)),
            ),
            precision=precision,
        )
        for queries, keys, depth, width, dtype, precision in (
            (37, 75, 32, 48, "float16", DEFAULT),
            (16, 64, 64, 64, "bfloat16", DEFAULT),
            (33, 40, 16, 24, "float32", DEFAULT),
            (33, 40, 16, 24, "float32", "tf32"),
        )
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take attention of rows that are whole vectors and fit registers, where tensor cores keep the precision."""
        attention = attention_of(problem)
        for size in (attention.depth, attention.width):
            if size % vector(attention) or size > MAX_DEPTH:
                return f"takes rows of up to {MAX_DEPTH} elements in multiples of {vector(attention)}, not {size}"
        return tensor_core_obstacle(problem, target)

    def registers(self, problem: Problem, config: Config) -> int:
        return min(registers_of(problem, config), MAX_REGISTERS)  # beyond that some are spilled

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(attention_of(problem), config)

    def blocks(self, problem: Problem, config: Config) -> int:
        attention = attention_of(problem)
        return attention.matrices * -(-attention.queries // config.queries)

    def rules(self, problem: Problem) -> Tests[Config]:
        attention = attention_of(problem)

        def whole_fragments(config: Config) -> bool:
            return config.keys % FRAGMENT == 0

        def stages(config: Config) -> bool:
            """Return whether there is room for a copy while a turn is computed, if there is more than one turn."""
            return config.stages > 1 or turns_of(attention, config) == 1

        return named(whole_fragments, stages)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield tiles of few shapes; where many blocks have small rows in half precision, warps have two fragments.

        With long rows in float32 tiles have fewer keys, for which there are registers.
        """
        attention, shapes, keys = attention_of(problem), [*SHAPES], KEYS
        is_wide = max(attention.depth, attention.width) > MAX_DEPTH // 2
        if attention.dtype not in NARROW:
            keys = KEYS // 2 if is_wide else KEYS
        elif not is_wide:
            shapes.append((2, 4, 1))
        for fragments, warps, splits in shapes:
            tile = Config(fragments, STAGES, keys, warps, splits)
            yield replace(tile, stages=min(STAGES, turns_of(attention, tile)))

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        return KNOBS

    def heuristics(self, problem: Problem) -> Tests[Config]:
        attention = attention_of(problem)

        def used_stages(config: Config) -> bool:
            return config.stages <= turns_of(attention, config)

        def no_spills(config: Config) -> bool:
            return registers_of(problem, config) <= MAX_REGISTERS

        return named(several_warps, used_stages, no_spills)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        attention, gpu = attention_of(problem), gpu_of(target)
        whole, rest = divmod(attention.keys, config.turn)
        keys, turns = whole * config.keys + min(padded(rest), config.keys), turns_of(attention, config)
        columns, warps = padded(attention.depth) + padded(attention.width), config.warps * config.splits
        size, products = config.fragments * keys / KEYS * columns / 128, max(1, tf32_products(problem))
        narrow = attention.dtype in NARROW
        multiplied = size * MULTIPLYING * (1 if narrow else 2 * products)
        issued = multiplied + size * (SCORING if narrow else SCORING_FLOAT32 + CONVERTING * products)
        issued += turns * TURNING + (config.splits - 1) * MERGING + BEGINNING
        by_shared = gpu.shared_bytes // (shared_bytes(attention, config) + BLOCK_BYTES)
        return Counts(
            blocks=self.blocks(problem, config),
            resident=max(1, min(least_resident(problem, config), by_shared)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(attention, target),
            fetched=attention.keys * attention.itemsize * (attention.depth + attention.width),
            accessed=warps * keys * columns * attention.itemsize / LINE,
            multiplied=warps * multiplied * PRODUCTS / tensor_instructions(target)["mma"].products,
            arrivals=1 + turns * (UNHIDDEN if config.stages > 1 else 1),
            serial=issued,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        attention = attention_of(problem)
        return {
            "turns": turns_of(attention, config),
            "shared_bytes": shared_bytes(attention, config),
            "waste_queries": -(-attention.queries // config.queries) * config.queries / attention.queries,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "two fragments": replace(config, fragments=1),
            "warps that share queries": replace(config, splits=1, stages=STAGES),
            "many keys in a turn": replace(config, keys=FRAGMENT, stages=STAGES),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        return Schedule(attention_kernel(problem, config))


template = FusedAttention()
