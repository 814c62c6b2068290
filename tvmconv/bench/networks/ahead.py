"""Building of networks in other processes, side by side before they are measured.

Slow results are kept on disk, where the process that measures finds them: our networks are files, and `torch.compile`
keeps its kernels in a folder.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmconv.autotvm.measure.processes import WorkerPool
from tvmconv.support import system
from tvmconv.targets import backend_of, resolve_target

from ..timing import use_threads_of_tvm
from .contenders import Contender, Prepared

if TYPE_CHECKING:
    import tvm

PATIENCE = 600.0
"""The seconds after which a build is given up."""


class Case(NamedTuple):
    """A network with random weights, and the shape of its images, which every process makes alike."""

    name: str
    make: Callable[[], Any]
    batch: int
    size: int
    """The height and width of the images, in pixels."""
    sparsity: float | None

    def __str__(self) -> str:
        return f"{self.name}, batch {self.batch}"

    def module(self) -> Any:
        """Return the module of torch, on the CPU."""
        from .weights import prune, randomized

        module = randomized(self.make)
        if self.sparsity is not None:
            prune(module, self.sparsity)
        return module

    def images(self, count: int) -> Any:
        """Return random images (count, 3, size, size), on the CPU."""
        import torch

        return torch.randn(count, 3, self.size, self.size, generator=torch.Generator().manual_seed(3))


class Task(NamedTuple):
    """A network that is to be built for a contender."""

    case: Case
    contender: Contender
    target: str
    """The target as JSON."""
    library: Path
    """The file that the network is written to."""

    def __str__(self) -> str:
        return f"{self.case} for {self.contender.name}"


def build_side_by_side(tasks: Sequence[Task], jobs: int, tell: Callable[[str], None]) -> None:
    """Build in `jobs` processes at once, and tell the results; a build that fails fails again in its measurement.

    A kernel that `torch.compile` would choose by its time is chosen when it is measured: here others use the GPU. Each
    process runs on a share of the processors, and runs no more compilers than it has processors.
    """
    start, processors = time.perf_counter(), system.processors()
    shares = [set(processors[first::jobs]) or set(processors) for first in range(jobs)]
    pools = [WorkerPool(1, PATIENCE, partial(system.run_on, share)) for share in shares]
    free: SimpleQueue[WorkerPool] = SimpleQueue()
    for pool in pools:
        free.put(pool)

    def build(task: Task) -> float:
        pool = free.get()
        try:
            return float(pool.submit(_build, task).result())
        finally:
            free.put(pool)

    threads = ThreadPoolExecutor(jobs)
    try:
        running = {threads.submit(build, task): task for task in tasks}
        for done, future in enumerate(as_completed(running), 1):
            error = future.exception()
            reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
            ended = f"built in {future.result():.1f} s" if error is None else f"failed: {reason}"
            tell(f"{time.perf_counter() - start:.0f} s, {done} of {len(tasks)}: {running[future]} {ended}")
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            pool.shutdown(wait=False)


def built(
    contender: Contender, module: Any, x: Any, target: tvm.target.Target, library: Path
) -> tuple[Prepared, float]:
    """Prepare a contender, write its file and call it; return the seconds without those of writing."""
    start = time.perf_counter()
    prepared = contender.prepare(module, x, target)
    before = time.perf_counter()
    prepared.save(library)
    saved = time.perf_counter()
    prepared.call()
    if x.is_cuda:
        import torch

        torch.cuda.synchronize()
    return prepared, time.perf_counter() - saved + before - start


def release() -> None:
    """Give back memory of the GPU that torch and TVM keep for later."""
    import torch
    import tvm

    gc.collect()
    torch.cuda.empty_cache()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()


def _build(task: Task) -> float:
    """Build in this process, and return the seconds."""
    import torch._inductor.config as inductor

    inductor.autotune_local_cache = False
    target = resolve_target(task.target)
    use_threads_of_tvm(target)
    x = task.case.images(task.case.batch).to(backend_of(target).device_type)
    seconds = built(task.contender, task.case.module(), x, target, task.library)[1]
    if x.is_cuda:
        release()
    return seconds
