"""The kernels of trials: for any weight or with one compiled in, on their target or, as serial twins, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import tvm
from tvm.runtime import Device, Executable

from ..dispatch import select, sparse_template, template_for
from ..lowering import KERNEL_NAME, build, build_kernel, lower, with_alignment
from ..problem import Problem
from ..serial import TWIN_TARGET, serial_twin
from ..sparse import building
from ..sparse.blocks import output_blocks
from ..sparse.compiling import compile_sparse, sparsity_of
from ..sparse.folding import bind, expanded
from ..sparse.template import make_template
from ..sparse.weights import Constants
from ..targets import device_of, resolve_target
from ..workspace import NO_WORKSPACE, Workspace
from .configs import legal_configs
from .trials import Trial


@dataclass(frozen=True)
class TrialKernel:
    """The kernel of a trial, and where it runs."""

    executable: Executable
    device: Device
    workspace: Workspace


def configs(trial: Trial, target: tvm.target.Target) -> Iterator[Any]:
    """Legal configurations for a trial, the same for the same workload."""
    space = template_for(trial.problem, target, trial.algorithm).space(trial.problem, target)
    return legal_configs(space, str(trial.workload))


def kernel_of(trial: Trial, target: tvm.target.Target, twin: bool, constants: Constants) -> TrialKernel:
    """The kernel of a trial; the constants are compiled in where the trial says so."""
    template, device = (
        template_for(trial.problem, target, trial.algorithm),
        device_of(resolve_target(TWIN_TARGET) if twin else target),
    )
    config = None if trial.knobs is None else msgspec.convert(trial.knobs, template.Config)
    if trial.sparsity is not None:
        if twin:
            executable = _sparse_twin(trial, constants, config, target)
        else:
            executable = compile_sparse(trial.workload, constants, target, config).executable
        return TrialKernel(executable, device, NO_WORKSPACE)
    selection = select(trial.problem, target, config, trial.algorithm)
    if twin:
        func = serial_twin(lower(trial.workload, selection, target, KERNEL_NAME))
        return TrialKernel(build(tvm.IRModule({KERNEL_NAME: func}), resolve_target(TWIN_TARGET)), device, NO_WORKSPACE)
    executable, workspace = build_kernel(trial.workload, selection, target)
    return TrialKernel(executable, device, workspace)


def _sparse_twin(trial: Trial, constants: Constants, config: Any, target: tvm.target.Target) -> Executable:
    schedules, workload, cpu = sparse_template(target), trial.workload, resolve_target(TWIN_TARGET)
    problem = Problem(workload, sparsity_of(constants["w"]))
    config = config or schedules.default_config(problem, target)
    func = with_alignment(schedules.schedule(problem, config, target).mod["main"], target)
    template, dense = make_template(serial_twin(func), cpu), expanded(workload, constants)
    return building.build(bind(template, dense, output_blocks(dense["w"], config.channels)), cpu)
