"""Timing of a whole network beside its peers, all of them checked first."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from tvmconv.checking.verify import compare
from tvmconv.network.graph.faults import IMPORT_ERRORS
from tvmconv.problem.errors import TvmconvError, WrongResultError
from tvmconv.problem.precision import DEFAULT, HALVES
from tvmconv.targets import backend_of

from .. import choose
from ..timing import Call, Timer, Timing, interleave, timer, use_threads_of_tvm
from .ahead import Case, Task, build_side_by_side, built, release
from .contenders import DENSE, FLOAT32, OURS, PEERS, Contender, OpenVino, Prepared, PyTorch, Tvmconv

if TYPE_CHECKING:
    import tvm

SECONDS = 0.2
"""The seconds that a contender is timed for in each round."""

IMAGES = 32
"""The images whose largest outputs are compared, at least."""

NAMES = ("resnet50", "mobilenet_v2", "vgg16", "shufflenet_v2", "squeezenet")


class NetworkRow(msgspec.Struct, frozen=True):
    """The results for a network beside its peers, by contender; times are seconds of one call."""

    name: str
    batch: int
    size: int
    """The height and width of the images, in pixels."""
    sparsity: float | None
    """The share of zeros in the weights; None where they were left as they are."""
    precision: str = DEFAULT
    """The precision of tvmconv."""
    parameters: int = 0
    times: dict[str, Timing] = {}
    errors: dict[str, float] = {}
    """The largest error, as a share of the largest output."""
    build_seconds: dict[str, float] = {}
    """The seconds from the module of torch to the end of the first call, unless it was built ahead."""
    memory: dict[str, int] = {}
    """The bytes of the GPU that are in use after some calls: weights, intermediate tensors, code; empty for a CPU."""
    file_bytes: dict[str, int] = {}
    kernels: dict[str, int] = {}
    """The number of the network's convolutions that run on each of tvmconv's templates, or on TVM's loops."""
    skipped: dict[str, str] = {}
    """The reasons why contenders took no part."""
    failed: dict[str, str] = {}
    """The failures of contenders that took part."""
    ratios: dict[str, float] = {}
    """The ratio of signal to noise in dB."""
    top1: dict[str, float] = {}
    """The share of random images, or pixels, with the same largest output as in float64; empty for float32."""

    def images_per_second(self, contender: str) -> float:
        """Return how many images a contender that has run takes in a second, one batch after the other."""
        return self.batch / self.times[contender].median


def timm_table(rows: Iterable[NetworkRow]) -> str:
    """Return CSV in the columns of timm's benchmarks: milliseconds of a step, millions of parameters."""
    columns = ("model", "infer_samples_per_sec", "infer_step_time", "infer_batch_size", "infer_img_size", "param_count")
    lines = [",".join((*columns, "contender"))]
    for row in rows:
        for name, timing in row.times.items():
            rate, step = f"{row.images_per_second(name):.2f}", f"{1e3 * timing.median:.3f}"
            lines.append(f"{row.name},{rate},{step},{row.batch},{row.size},{row.parameters / 1e6:.2f},{name}")
    return "\n".join(lines) + "\n"


def choose_networks(names: Sequence[str]) -> Sequence[str]:
    """Return the networks of these names, or the default ones if there are none."""
    from .models import NETWORKS

    choose(NETWORKS, names, "network")
    return names or NAMES


def choose_peers(names: Sequence[str] | None, precision: str = DEFAULT) -> list[Contender]:
    """Return the peers of these names; without names all that can take part in a precision."""
    known = {
        name: replace(peer, dtype=precision) if isinstance(peer, PyTorch | OpenVino) else peer
        for name, peer in PEERS.items()
    }
    chosen = choose(known, names or (), "peers").values()
    if names is not None:
        return list(chosen)
    others = [peer for peer in chosen if precision in HALVES or not (isinstance(peer, PyTorch) and peer.half)]
    return [peer for peer in others if precision != DEFAULT or peer != FLOAT32]


def measure_networks(
    names: Iterable[str],
    target: tvm.target.Target,
    peers: Sequence[Contender],
    rounds: int,
    batches: Sequence[int],
    size: int | None,
    sparsity: float | None,
    tell: Callable[[str], None],
    precision: str = DEFAULT,
    jobs: int = 1,
) -> Iterator[NetworkRow]:
    """Measure networks one by one, at each batch, with random weights and images (batch, 3, size, size).

    The size of None is that of the network's paper. `tell` is told what is begun, and how long it took. With a
    sparsity, that share of the weights is zero, and tvmconv's dense kernels are a contender, too. PyTorch and all other
    libraries have as many threads on a CPU as TVM.

    More jobs than one are processes that first build what can be built ahead, for all rows; each row is measured alone
    in any case.
    """
    from .models import NETWORKS, SIZE, SIZES

    use_threads_of_tvm(target)
    ours = replace(OURS, precision=precision)
    contenders = [ours, *([DENSE] if sparsity is not None else []), *peers]
    sizes = {name: size or SIZES.get(name, SIZE) for name in names}
    cases = [Case(name, NETWORKS[name], batch, sizes[name], sparsity) for name in names for batch in batches]
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/{{0.name}}-{{0.batch}}-{{1.name}}.so".format
        rows = [[Task(case, each, str(target), Path(file(case, each))) for each in contenders] for case in cases]
        if jobs > 1:
            able = [task for row in rows for task in row if task.contender.is_built_ahead]
            build_side_by_side([task for task in able if not task.contender.obstacle(target)], jobs, tell)
        for _, of_name in groupby(rows, lambda row: row[0].case.name):
            first, *others = of_name
            case, count = first[0].case, max(-(-IMAGES // batch) * batch for batch in batches)
            module, images = case.module(), case.images(count).to(backend_of(target).device_type)
            exact = Exact(module, images)
            for row in (first, *others):
                tell(str(row[0].case))
                yield measure_network(row, module, exact, target, rounds)


def measure_network(
    tasks: Sequence[Task], module: Any, exact: Exact, target: tvm.target.Target, rounds: int
) -> NetworkRow:
    """Measure one network, a module of torch, for all of its contenders.

    Raises `WrongResultError` where tvmconv is wrong. A peer that is wrong or fails is left out, and the row says why.
    """
    case, ours, on_gpu = tasks[0].case, tasks[0].contender, backend_of(target).on_gpu
    x = exact.images[: case.batch].clone()
    expected = exact(_ends(x)).cpu()
    precision = ours.precision if isinstance(ours, Tvmconv) else DEFAULT
    parameters = sum(weight.numel() for weight in module.parameters())
    row = NetworkRow(case.name, case.batch, case.size, case.sparsity, precision, parameters)
    calls: dict[str, Call] = {}
    timers: dict[str, Timer] = {}
    for task in tasks:
        contender = task.contender
        if reason := contender.obstacle(target):
            row.skipped[contender.name] = reason
            continue
        with _unless_it_fails(contender, row):
            prepared = _prepared(task, module, x, target, row)
            _check(contender, prepared, expected, row)
            if precision != DEFAULT:
                row.top1[contender.name] = _agreement(prepared, exact, case.batch)
            calls[contender.name] = prepared.call
    # Not before: a graph that was captured of plain TVM needs memory that TVM's pool would give back above.
    for task in tasks:
        if task.contender.name in calls:
            with _unless_it_fails(task.contender, row):
                timers[task.contender.name] = timer([calls[task.contender.name]], on_gpu, SECONDS)
    row.times.update(interleave(timers, rounds))
    return row


class Exact:
    """A network in float64, which all contenders are compared with, and the images to compare."""

    AT_ONCE = 16
    """The number of images in a call: more would need much memory."""

    def __init__(self, module: Any, images: Any) -> None:
        """Take a module of torch on the CPU, and images of which each batch takes the first ones."""
        import torch

        self.images = images
        self._module = deepcopy(module).to(images.device, torch.float64)

    def __call__(self, images: Any) -> Any:
        """Return the outputs in float64, on the device of the images."""
        import torch

        with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=False):
            return self._module(images.double())

    @cached_property
    def largest(self) -> Any:
        """The indices of the largest outputs, (N), or (N, H, W) where each pixel has outputs."""
        import torch

        return torch.cat([self(images).argmax(1) for images in self.images.split(self.AT_ONCE)])


def _agreement(prepared: Prepared, exact: Exact, batch: int) -> float:
    """Return the share of random images, at least `IMAGES`, of which a network has the same largest output as exactly.

    Where each pixel has outputs it is the share of pixels.
    """
    import torch

    shares = []
    for start in range(0, -(-IMAGES // batch) * batch, batch):
        prepared.images.copy_(exact.images[start : start + batch])
        largest = torch.from_dlpack(prepared.call()).argmax(1)
        shares.append(float((largest == exact.largest[start : start + batch]).float().mean()))
    prepared.images.copy_(exact.images[:batch])
    return fmean(shares)


@contextmanager
def _unless_it_fails(contender: Contender, row: NetworkRow) -> Iterator[None]:
    """Note the failure of a peer in the row; raise that of tvmconv, which may not fail."""
    try:
        yield
    except (*IMPORT_ERRORS, TvmconvError) as error:
        if isinstance(contender, Tvmconv):
            raise
        row.failed[contender.name] = str(error).strip().partition("\n")[0]


def _ends(images: Any) -> Any:
    return images[:: max(len(images) - 1, 1)]


def _prepared(task: Task, module: Any, x: Any, target: tvm.target.Target, row: NetworkRow) -> Prepared:
    """Prepare the contender and make its first calls; the row gets their seconds and memory.

    A contender that was built ahead is not built again, and has no seconds.
    """
    contender, was_built = task.contender, task.library.exists()
    name = contender.name
    if was_built and isinstance(contender, Tvmconv):
        contender = replace(contender, library=task.library)
    before = _taken() if x.is_cuda else 0
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "network.so")
        prepared, seconds = built(contender, module, x, target, library)
        row.file_bytes[name] = library.stat().st_size
    if not was_built:
        row.build_seconds[name] = seconds
    if x.is_cuda:
        _taken()  # without memory that only the first call has taken
        prepared.call()
        row.memory[name] = _taken(releases=False) - before
    if prepared.network is not None and name == OURS.name:
        row.kernels.update(Counter(layer.kernel for layer in prepared.network.layers))
    return prepared


def _taken(releases: bool = True) -> int:
    """Return the bytes of the GPU that are in use, with or without memory that torch and TVM keep for later."""
    import torch

    torch.cuda.synchronize()
    if releases:
        release()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _check(contender: Contender, prepared: Prepared, expected: Any, row: NetworkRow) -> None:
    """Note the error of the output; raise `WrongResultError` where it is too large."""
    import torch

    got = _ends(torch.from_dlpack(prepared.call())).cpu().numpy()
    (found,) = compare({"y": got}, {"y": expected.float().numpy()}, prepared.multiplied)
    row.errors[contender.name] = found.error / float(expected.abs().max())
    row.ratios[contender.name] = found.ratio
    if not found.agrees:
        problem = f"{contender.name} computes {row.name} wrongly"
        raise WrongResultError(f"{problem}: it differs by {found.error:.3g}, allowed {found.bound:.3g}")
