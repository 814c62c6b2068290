"""Timing of a whole network beside its peers, all of them checked first."""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import TvmconvError, WrongResultError
from ..network import Network
from ..network.importer_errors import IMPORT_ERRORS
from ..precision import DEFAULT, HALVES
from ..targets import backend_of
from ..verify import compare
from . import choices
from .contenders import DENSE, FLOAT32, OURS, PEERS, Contender, Half, Prepared, Tvmconv
from .timing import Call, Timer, Timing, interleave, timer, times_as_long, use_threads_of_tvm

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
    times: dict[str, Timing]
    errors: dict[str, float]
    """The largest error, as a share of the largest output."""
    build_seconds: dict[str, float]
    """The seconds from the module of torch to the end of the first call."""
    memory: dict[str, int]
    """The bytes of the GPU that are in use after some calls: weights, intermediate tensors, code; empty for a CPU."""
    file_bytes: dict[str, int]
    kernels: dict[str, int]
    """The number of the network's convolutions that run on each of tvmconv's templates, or on TVM's loops."""
    skipped: dict[str, str]
    """The reasons why contenders took no part."""
    failed: dict[str, str]
    """The failures of contenders that took part."""
    precision: str = DEFAULT
    """The precision of tvmconv."""
    ratios: dict[str, float] = {}
    """The ratio of signal to noise in dB."""
    top1: float | None = None
    """The share of random images, or pixels, with the same largest output as in float32; None in float32."""

    def images_per_second(self, contender: str) -> float:
        """Return how many images a contender that has run takes in a second, one batch after the other."""
        return self.batch / self.times[contender].median

    def times_faster(self, peer: str) -> float | None:
        """Return the ratio of the peer's time to tvmconv's; None unless both have run."""
        return times_as_long(self.times, peer, OURS.name)


def choose(names: Sequence[str]) -> Sequence[str]:
    """Return the networks of these names, or the default ones if there are none."""
    from .networks import NETWORKS

    choices.choose(NETWORKS, names, "network")
    return names or NAMES


def choose_peers(names: str | None, precision: str = DEFAULT) -> list[Contender]:
    """Return the peers in text such as "pytorch,tvm"; if there is no text all that can take part in a precision."""
    known = {name: replace(peer, dtype=precision) if isinstance(peer, Half) else peer for name, peer in PEERS.items()}
    chosen = choices.choose(known, [] if names is None else choices.split_names(names), "peers").values()
    return [peer for peer in chosen if names is not None or precision in HALVES or not isinstance(peer, Half)]


def measure_networks(
    names: Iterable[str],
    target: tvm.target.Target,
    peers: Sequence[Contender],
    rounds: int,
    batches: Sequence[int],
    size: int | None,
    sparsity: float | None,
    started: Callable[[str], None],
    precision: str = DEFAULT,
) -> Iterator[NetworkRow]:
    """Measure networks one by one, at each batch, with random weights and images (batch, 3, size, size).

    The size of None is that of the network's paper. `started` is told the name of each before it begins. With a
    sparsity, that share of the weights is zero, and tvmconv's dense kernels are a contender, too; with another
    precision than float32 so is tvmconv in that. PyTorch and all other libraries have as many threads on a CPU as TVM.
    """
    import torch

    from .networks import NETWORKS, SIZE, SIZES
    from .weights import prune, randomized

    use_threads_of_tvm(target)
    ours = [replace(OURS, precision=precision), *([FLOAT32] if precision != DEFAULT else [])]
    contenders = [*ours, *([DENSE] if sparsity is not None else []), *peers]
    for name in names:
        module, pixels = randomized(NETWORKS[name]), size or SIZES.get(name, SIZE)
        if sparsity is not None:
            prune(module, sparsity)
        for batch in batches:
            started(f"{name}, batch {batch}")
            x = torch.randn(batch, 3, pixels, pixels, generator=torch.Generator().manual_seed(3))
            yield measure_network(name, module, x, target, contenders, rounds, sparsity)


def measure_network(
    name: str,
    module: Any,
    x: Any,
    target: tvm.target.Target,
    contenders: Sequence[Contender],
    rounds: int,
    sparsity: float | None,
) -> NetworkRow:
    """Measure one network, a module of torch, on images (N, 3, H, W), both on the CPU.

    Raises `WrongResultError` where tvmconv is wrong. A peer that is wrong or fails is left out, and the row says why.
    """
    backend = backend_of(target)
    x = x.to(backend.device_type)
    expected = _reference(module, x)
    row = NetworkRow(name, x.shape[0], x.shape[2], sparsity, {}, {}, {}, {}, {}, {}, {}, {})
    calls: dict[str, Call] = {}
    networks: dict[str, Network] = {}
    timers: dict[str, Timer] = {}
    for contender in contenders:
        if reason := contender.obstacle(target):
            row.skipped[contender.name] = reason
            continue
        with _unless_it_fails(contender, row):
            prepared = _prepared(contender, module, x, target, row)
            _check(contender, prepared, expected, row)
            calls[contender.name] = prepared.call
            if prepared.network is not None:
                networks[contender.name] = prepared.network
    # Not before: a graph that was captured of TVM as it is needs memory that TVM's pool would give back above.
    for contender in contenders:
        if contender.name in calls:
            with _unless_it_fails(contender, row):
                timers[contender.name] = timer([calls[contender.name]], backend.on_gpu, SECONDS)
    row.times.update(interleave(timers, rounds))
    ours = next(each for each in contenders if isinstance(each, Tvmconv))
    if ours.precision == DEFAULT:
        return row
    top1 = _agreement(networks[ours.name], networks[FLOAT32.name], x)
    return msgspec.structs.replace(row, precision=ours.precision, top1=top1)


def _agreement(network: Network, exact: Network, like: Any) -> float:
    """Return the share of random images, at least `IMAGES`, of which two networks have the same largest output.

    Where each pixel has outputs of its own it is the share of pixels.
    """
    import torch

    generator, shares = torch.Generator().manual_seed(4), []
    for _ in range(-(-IMAGES // len(like))):
        images = torch.randn(like.shape, generator=generator).to(like.device)
        shares.append(float((network(images).argmax(1) == exact(images).argmax(1)).float().mean()))
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


def _reference(module: Any, x: Any) -> Any:
    """Return the module's output in float64 for the first and the last image."""
    import torch

    with torch.no_grad():
        return deepcopy(module).to(x.device, torch.float64)(_ends(x).double()).cpu()


def _ends(images: Any) -> Any:
    return images[:: max(len(images) - 1, 1)]


def _prepared(contender: Contender, module: Any, x: Any, target: tvm.target.Target, row: NetworkRow) -> Prepared:
    """Prepare the contender and make its first calls; the row gets their seconds and memory."""
    before = _taken() if x.is_cuda else 0
    start = time.perf_counter()
    prepared = contender.prepare(module, x, target)
    built = time.perf_counter()
    row.file_bytes[contender.name] = file_bytes(prepared.save)
    saved = time.perf_counter()
    prepared.call()
    if x.is_cuda:
        _taken()  # without what the first call alone has taken
    row.build_seconds[contender.name] = time.perf_counter() - saved + built - start
    if x.is_cuda:
        prepared.call()
        row.memory[contender.name] = _taken(release=False) - before
    if contender.name == OURS.name and prepared.network is not None:
        row.kernels.update(Counter(layer.kernel for layer in prepared.network.layers))
    return prepared


def _taken(release: bool = True) -> int:
    """Return the bytes of the GPU that are in use, with or without memory that torch and TVM keep for later."""
    import torch
    import tvm

    torch.cuda.synchronize()
    if release:
        gc.collect()
        torch.cuda.empty_cache()
        tvm.get_global_func("vm.builtin.memory_manager.clear")()
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


def file_bytes(save: Callable[[Path], object]) -> int:
    """Return the size of the file that a function writes a network to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.so")
        save(path)
        return path.stat().st_size
