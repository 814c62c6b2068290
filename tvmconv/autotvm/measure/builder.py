"""Building of trials in worker processes."""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from tvmconv.dispatch.trial import MeasureInput
from tvmconv.problem.parameters import require_positive
from tvmconv.runtime import storage
from tvmconv.targets.threads import usable_cpus

from ..gone import refuse_arguments
from . import worker
from .packages import require_packages
from .processes import WorkerPool
from .protocol import BuildResult, require_seconds


class LocalBuilder:
    """Builds kernels on this machine, several at a time.

    MetaSchedule's builder of this name pickles modules for its workers, and starts new ones for each batch; here a
    worker is told the problem and the configuration, and stays. A build that takes more than `timeout` seconds is
    killed. `n_parallel` is the number of simultaneous builds, by default one for each core. Both are in AutoTVM's
    order; `InvalidArgumentError` tells of arguments that AutoTVM had besides them.
    """

    def __init__(self, timeout: float = 30.0, n_parallel: int | None = None, **others: object) -> None:
        refuse_arguments("LocalBuilder", others)
        require_seconds("timeout", timeout)
        if n_parallel is not None:
            require_positive("n_parallel", n_parallel)
        require_packages()
        storage.require_compiler()  # without one every trial would fail
        self.timeout = timeout
        self.n_parallel = n_parallel or usable_cpus()
        self._pool = WorkerPool(self.n_parallel, timeout, worker.initialize)
        self._folder = tempfile.TemporaryDirectory(prefix="tvmconv-")
        self._numbers = count()

    def build(self, trial: MeasureInput) -> Future[BuildResult]:
        """Begin to build a trial's kernel; the future fails with the build's error, `TimeoutError` among them.

        A full disk raises `OSError`, a missing cross compiler `CompileError`: they say nothing about a trial.
        """
        storage.require_space(self._folder.name)
        storage.require_compiler_for(str(trial.task.target))
        task, library = trial.task, Path(self._folder.name, f"{next(self._numbers)}.so")
        future: Future[BuildResult] = self._pool.submit(
            worker.build,
            task.problem.to_json(),
            task.message,
            task.knobs(trial.config),
            str(task.target),
            str(library),
        )
        return future

    def close(self) -> None:
        """End the workers and remove the libraries they built; builds under way have to be cancelled before."""
        self._pool.shutdown()
        self._folder.cleanup()
