"""Sparse kernels on a CPU: where there is no template for it, the serial twin of the one for CUDA."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from tvmconv.schedules.cuda import sparse as cuda_sparse

from tvmconv import ConvWorkload
from tvmconv.serial import serial_twin
from tvmconv.targets import resolve_target

NAME = "tvmconv.schedules.cpu.sparse"


def use_sparse_on_cpu() -> None:
    """Makes `tvmconv.schedules.cpu.sparse` importable."""
    if NAME in sys.modules or find_spec(NAME) is not None:
        return
    sm_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
    stand_in = ModuleType(NAME)

    def schedule(workload: ConvWorkload, config: cuda_sparse.Config, target: Any) -> Any:
        return SimpleNamespace(mod={"main": serial_twin(cuda_sparse.schedule(workload, config, sm_90).mod["main"])})

    def default_config(workload: ConvWorkload, target: Any, density: float) -> cuda_sparse.Config:
        chunk = 2 if workload.in_channels % 2 == 0 else 1
        return cuda_sparse.Config(8, images=1, threads_y=2, threads_x=4, rows=1, columns=1, chunk=chunk, ahead=False)

    for name, value in {"schedule": schedule, "default_config": default_config, "Config": cuda_sparse.Config}.items():
        setattr(stand_in, name, value)
    sys.modules[NAME] = stand_in
