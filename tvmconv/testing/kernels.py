"""The kernels of trials: for any weight or with one compiled in, on their target or, as serial twins, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import tvm
from tvm.runtime import Executable

from ..dispatch import select, template_for
from ..folding.constants import Constants
from ..lowering import build_kernel, build_twin
from ..serial import TWIN_TARGET
from ..targets import resolve_target
from ..workspace import Workspace
from .configs import legal_configs
from .trials import Trial


@dataclass(frozen=True)
class TrialKernel:
    """The kernel of a trial, and the target that it was built for."""

    executable: Executable
    target: tvm.target.Target
    workspace: Workspace


def configs(trial: Trial, target: tvm.target.Target) -> Iterator[Any]:
    """Yield legal configurations for a trial, the same for the same workload."""
    space = template_for(trial.problem, target, trial.algorithm).space(trial.problem, target)
    return legal_configs(space, str(trial.workload))


def kernel_of(trial: Trial, target: tvm.target.Target, twin: bool, constants: Constants) -> TrialKernel:
    """Build the kernel of a trial; the constants are compiled in where the trial says so."""
    template = template_for(trial.problem, target, trial.algorithm)
    config = None if trial.knobs is None else msgspec.convert(trial.knobs, template.Config)
    selection = select(trial.problem, target, config, trial.algorithm)
    make = build_twin if twin else build_kernel
    kernel = make(trial.problem, selection, target, None if trial.sparsity is None else constants)
    return TrialKernel(kernel.executable, resolve_target(TWIN_TARGET) if twin else target, kernel.workspace)
