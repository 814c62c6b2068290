"""Linear layers of several rows on the tensor cores of NVIDIA GPUs: the weight is the first factor of `wgmma`.

The kernel is that of `cuda/tensor` for the transposed product, whose pixels are the output channels and whose output
channels are the rows. So the weight, most of what such a layer reads, is read once and in its layout: in float32 it is
rounded, or split, in registers. In `cuda/tensor` a kernel before does so with the weight; here it does with the rows.

On an H100 128 rows of 25088 channels to 4096 take 299 µs in float32, where cuBLAS in strict float32 takes 517, and 169
in TF32, as long as cuBLAS there (benchmarks/linear-h100-float32.json and linear-h100-tf32.json).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec
import tvm
from tvm.s_tir import Schedule

from tvmconv.problem import Problem
from tvmconv.problem.dtypes import FLOATS
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import arch_of, tensor_instructions

from ...space import named
from ...template import Layouts
from ..gemm.tiles import VECTOR
from ..template import Tests
from . import Tensor, tiles
from .schedule import schedule_convolution

MAX_ROWS = 1024
"""The most rows. On an H100 1024 took 0.82 to 0.95 of the time of `cuda/tensor`, and 4096 up to 1.6 times as long."""

MAX_ROWS_BY_MMA = 32
"""The number of rows in float32 up to which `cuda/tensor` reads the weight as fast by `mma`, which splits both factors:
on an H100 32 of 4096 channels to 4096 took 31 µs so, and here 35, 64 of them 59 and 36."""


@dataclass(frozen=True)
class Config(tiles.Config):
    """The knobs of `cuda/tensor`: a block computes `block_m` output channels times `block_n` rows."""


class Linear(Tensor):
    """Linear layers of several rows on tensor cores, by `wgmma`."""

    LAYOUTS = Layouts(x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=FLOATS)
    OPEN_SIZES: tuple[str, ...] = ()
    LEAST = Config(**vars(Tensor.LEAST))
    examples = (
        Problem(ConvWorkload.conv2d((52, 128, 1, 1), (72, 128, 1, 1), scale=True, residual=True, activation="relu")),
        Problem(ConvWorkload.conv2d((36, 1, 1, 100), (136, 1, 1, 100), layout="NHWC"), precision="tf32"),
        Problem(ConvWorkload.conv2d((12, 80, 1, 1), (50, 80, 1, 1), dtype="bfloat16", out_dtype="float32", shift=True)),
    )
    EXCHANGED = True

    def product_of(self, problem: Problem) -> Problem:
        return _kept(problem)

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take linear layers whose rows are in fours, on GPUs with `wgmma`: for `mma` both factors are alike."""
        workload = problem.workload
        if not problem.is_dense or workload.groups > 1:
            return "is for dense convolutions in one group"
        if not workload.is_linear:
            return "takes 1x1 kernels on images of one pixel, without padding"
        if workload.batch % VECTOR:
            return f"takes rows in multiples of {VECTOR}, not {workload.batch}"
        if workload.batch > MAX_ROWS:
            return f"takes up to {MAX_ROWS} rows, not {workload.batch}"
        if workload.dtype == "float32" and workload.batch <= MAX_ROWS_BY_MMA:
            return f"takes more than {MAX_ROWS_BY_MMA} rows in float32, not {workload.batch}"
        if "wgmma" not in tensor_instructions(target):
            return f"needs a GPU with wgmma, sm_90, not {arch_of(target)}"
        return super().obstacle(problem, target)

    def rules(self, problem: Problem) -> Tests[tiles.Config]:
        def wgmma(config: tiles.Config) -> bool:
            return config.wgmma

        return {**named(wgmma), **super().rules(problem)}

    def ablations(self, config: tiles.Config) -> dict[str, tiles.Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        return {name: each for name, each in super().ablations(config).items() if each.wgmma}

    def schedule(self, problem: Problem, config: tiles.Config, target: tvm.target.Target) -> Schedule:
        """Schedule the computation of this very problem: in an equal one a bound may be a zero of another sign."""
        return schedule_convolution(transposed(problem), config, target, self.EXCHANGED)


def transposed(problem: Problem) -> Problem:
    """Return the problem with the transposed output: the weight's rows are the pixels of an image, rows are filters.

    Its factors are exchanged: the weight, which may be a constant, is the first one.
    """
    workload = problem.workload
    workload = msgspec.structs.replace(
        workload,
        batch=1,
        height=workload.out_channels,
        out_channels=workload.batch,
        stride=(1, 1),  # images of one pixel may have any stride
        layout="NHWC",
        w_layout="KRSC",
        out_layout="NCHW",
    )
    return msgspec.structs.replace(problem, workload=workload)


_kept = lru_cache(maxsize=64)(transposed)  # constraints and estimates ask for each of thousands of configurations


template = Linear()
