"""Linear layers of several rows on the tensor cores of NVIDIA GPUs: the weight is the first factor of `wgmma`.

The kernel is that of `cuda/tensor` for the transposed product, whose pixels are the output channels and whose output
channels are the rows. So the weight, most of what such a layer reads, is read once and as it lies: in float32 it is
rounded, or taken apart, in registers. `cuda/tensor` has a kernel before that does so; here that one is for the rows.

On an H100 128 rows of 25088 channels to 4096 take 299 µs in float32, where cuBLAS in strict float32 takes 517, and 169
in TF32, as long as cuBLAS there (benchmarks/linear-h100-float32.json and linear-h100-tf32.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import tvm
from tvm.s_tir import Schedule

from tvmconv.problem import Problem
from tvmconv.problem.dtypes import FLOATS
from tvmconv.targets import arch_of, tensor_instructions

from ...space import Space, named
from ...template import Layouts
from .. import tensor
from ..gemm.tiles import VECTOR
from . import default, tiles

VERSION = 1

LAYOUTS = Layouts(x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=FLOATS)

OPEN_SIZES: tuple[str, ...] = ()

MOST_ROWS = 1024
"""The most rows. On an H100 1024 took 0.82 to 0.95 of the time of `cuda/tensor`, and 4096 up to 1.6 times as long."""

FEW_ROWS = 32
"""The rows in float32 of which `cuda/tensor` reads the weight as fast by `mma`, which takes both factors apart: on an
H100 32 of 4096 channels to 4096 took 31 µs so, and here 35, 64 of them 59 and 36."""


@dataclass(frozen=True)
class Config(tiles.Config):
    """The knobs of `cuda/tensor`: a block computes `block_m` output channels times `block_n` rows."""


LEAST = Config(**vars(tiles.LEAST))


def transposed(problem: Problem) -> Problem:
    """Return the problem whose output is the transposed one: that of the weight's rows as pixels of an image.

    It is one of exchanged factors: the weight, which may be a constant, is its first one.
    """
    workload = problem.workload
    workload = msgspec.structs.replace(
        workload,
        batch=1,
        height=workload.out_channels,
        out_channels=workload.batch,
        stride=(1, 1),  # that of images of one pixel may be any
        layout="NHWC",
        w_layout="KRSC",
        out_layout="NCHW",
    )
    return msgspec.structs.replace(problem, workload=workload)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take linear layers whose rows are in fours, on GPUs with `wgmma`: for `mma` both factors are alike."""
    workload = problem.workload
    if not problem.is_dense or workload.groups > 1:
        return "is for dense convolutions in one group"
    if not workload.is_linear:
        return "takes 1x1 kernels on images of one pixel, without padding"
    if workload.batch % VECTOR:
        return f"takes rows in multiples of {VECTOR}, not {workload.batch}"
    if workload.batch > MOST_ROWS:
        return f"takes up to {MOST_ROWS} rows, not {workload.batch}"
    if workload.dtype == "float32" and workload.batch <= FEW_ROWS:
        return f"takes more than {FEW_ROWS} rows in float32, not {workload.batch}"
    if "wgmma" not in tensor_instructions(target):
        return f"needs a GPU with wgmma, sm_90, not {arch_of(target)}"
    return tensor.obstacle(transposed(problem), target)


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""

    def wgmma(config: Config) -> bool:
        return config.wgmma

    own = tensor.space(transposed(problem), target, exchanged=True)
    constraints = {**named(wgmma), **own.constraints}
    return Space(default_config(problem, target), LEAST, own.knobs, constraints, own.heuristics, own.promising)


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of a few, that the model finds the fastest."""
    return Config(**vars(default.default_config(transposed(problem), target, exchanged=True)))


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the kernels should take."""
    return tensor.estimate(transposed(problem), config, target, exchanged=True)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> Mapping[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    return tensor.features(transposed(problem), config, target, exchanged=True)


def ablations(config: Config) -> dict[str, tiles.Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    return {name: each for name, each in tensor.ablations(config).items() if each.wgmma}


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the computation; the config must be legal for the problem."""
    return tensor.schedule(transposed(problem), config, target, exchanged=True)
