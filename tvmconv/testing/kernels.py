"""The kernels of trials: for any weight or with one compiled in, on their target or, as serial twins, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import tvm
from tvm.runtime import Executable

from tvmconv.dispatch import select, template_for
from tvmconv.lowering import build_kernel, build_twin
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import Workspace
from tvmconv.problem.constants import Constants
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import resolve_target

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


def kernel_of(
    trial: Trial, target: tvm.target.Target, constants: Constants, twin_of: ConvWorkload | None
) -> TrialKernel:
    """Build the kernel of a trial, or its serial twin for one of its workloads.

    The constants are compiled in where the trial says so.
    """
    template = template_for(trial.problem, target, trial.algorithm)
    config = None if trial.knobs is None else msgspec.convert(trial.knobs, template.Config)
    selection = select(trial.problem, target, config, trial.algorithm)
    compiled_in = None if trial.sparsity is None else constants
    if twin_of is None:
        kernel = build_kernel(trial.problem, selection, target, compiled_in)
        return TrialKernel(kernel.executable, target, kernel.workspace)
    twin = build_twin(trial.problem, selection, target, compiled_in, twin_of if trial.open_sizes else None)
    return TrialKernel(twin.executable, resolve_target(TWIN_TARGET), twin.workspace)
