"""Steps of training with torch, its own depthwise convolutions beside those of `tvmconv.nn.replace`.

    python benchmarks/training.py --seconds 100 -o training-h200.json        # on a GPU
    python benchmarks/training.py --device cpu --batch 4 --size 96 --dtypes float32

Each row is a network, a type (autocast where it is not float32), an order in memory and a mode; "times" has the
seconds of a step by either: forward, backward and SGD. In the mode "compile" forward and backward are by
`torch.compile`; in "reduce-overhead" they are replayed in CUDA graphs too, so that the host has little to do. Before
them `--steps` steps of a small network on scikit-learn's digits show that both learn alike: "losses" has the mean of
the first and of the last ten.

On a GPU the first step of a network compiles some fifty kernels, for a minute: each network by either has a process,
and all begin at once. When all have made their first steps, or `--seconds` are over, those that have take turns in each
round, since the speed of a host changes with what others do on it. A round's time is the median of `TURN` steps. Last
comes "busy", the seconds of a step in which the GPU computes or copies; for the rest of a step it waits for the host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from script import ORDERS, Document, Row, options_of, profile_of
from torch import nn

from tvmconv.bench.networks.models import convnext_tiny, mobilenet_v2
from tvmconv.bench.networks.parts import Residual, conv_bn
from tvmconv.bench.timing import interleave
from tvmconv.nn import replace

WARM = 4
"""The first steps, in which kernels are compiled and CUDA graphs are captured."""

TURN = 5
"""The steps of a process that are timed in a round, behind one that is not."""


def large_kernels() -> nn.Module:
    """Return a network with the depthwise kernels of RepLKNet-31B (Ding et al., 2022), and a third of its blocks."""
    layers: list[nn.Module] = [conv_bn(3, 128, 3, 2), conv_bn(128, 128, 3, 2, groups=128)]
    for depth, width, kernel in ((1, 128, 31), (1, 256, 29), (6, 512, 27), (1, 1024, 13)):
        if width > 128:
            layers += [conv_bn(width // 2, width), conv_bn(width, width, 3, 2, groups=width)]
        for _ in range(depth):
            large = (
                conv_bn(width, width),
                conv_bn(width, width, kernel, groups=width),
                conv_bn(width, width, act=None),
            )
            wide = (conv_bn(width, 4 * width, act=nn.GELU), conv_bn(4 * width, width, act=None))
            layers += [Residual(nn.Sequential(*large)), Residual(nn.Sequential(*wide))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet_v2": mobilenet_v2,
    "convnext_tiny": convnext_tiny,
    "large_kernels": large_kernels,
}

BY = ("pytorch", "tvmconv")

MODES: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "compile": torch.compile,
    "reduce-overhead": partial(torch.compile, mode="reduce-overhead"),
}


def autocast(device: str, dtype: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in a type."""
    return torch.autocast(device, dtype=getattr(torch, dtype), enabled=dtype != "float32")


def stepper(model: nn.Module, x: Any, y: Any, dtype: str) -> Callable[[], Any]:
    """Return a function that trains a model by a step, and returns the loss."""
    device = x.device.type
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")

    def step() -> Any:
        optimizer.zero_grad()
        with autocast(device, dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def seconds_of(step: Callable[[], Any], steps: int, device: str) -> float:
    """Return the median time of a step."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times)


def busy_seconds(step: Callable[[], Any]) -> float:
    """Return the seconds of a step in which the GPU runs kernels, or copies; they run one after the other."""
    events = profile_of(step, TURN).events()
    on_gpu = (event for event in events if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(event.time_range.elapsed_us() for event in on_gpu) / 1e6 / TURN


def network_stepper(
    name: str, dtype: str, order: str, mode: str, by: str, given: argparse.Namespace
) -> Callable[[], Any]:
    """Return a function that trains a network by a step, in a type, an order and a mode, by torch or by tvmconv."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    model = replace(model) if by == "tvmconv" else model
    x = torch.randn(given.batch, 3, given.size, given.size)
    y = torch.randint(1000, (given.batch,), device=given.device)
    model, x = (each.to(given.device, memory_format=ORDERS[order]) for each in (model, x))
    return stepper(MODES[mode](model), x, y, dtype)


def digits() -> tuple[Any, Any]:
    """Return scikit-learn's digits, as images of 32x32, and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    return nn.functional.interpolate(images, size=32, mode="bilinear"), torch.tensor(found.target)


def small_network() -> nn.Module:
    """Return a network for digits, with depthwise convolutions of strides 1 and 2."""
    return nn.Sequential(
        conv_bn(1, 16, 3),
        conv_bn(16, 16, 5, groups=16),
        conv_bn(16, 32),
        conv_bn(32, 32, 3, 2, groups=32),
        conv_bn(32, 64),
        conv_bn(64, 64, 7, groups=64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def learned(dtype: str, order: str, mode: str, by: str, given: argparse.Namespace) -> Row:
    """Return the losses in training a small network on digits, by torch or by tvmconv."""
    images, classes = (tensor.to(given.device) for tensor in digits())
    torch.manual_seed(0)
    model = small_network()
    model = (replace(model) if by == "tvmconv" else model).to(given.device, memory_format=ORDERS[order])
    x, y = images[:64].clone(), classes[:64].clone()
    step, losses = stepper(MODES[mode](model), x, y, dtype), []
    for number in range(given.steps):
        place = torch.arange(64, device=given.device) + 64 * number
        x.copy_(images[place % len(images)])
        y.copy_(classes[place % len(classes)])
        losses.append(float(step()))
    return {"first": fmean(losses[:10]), "last": fmean(losses[-10:])}


def work(place: Sequence[str], given: argparse.Namespace, asked: Connection) -> None:
    """Make the first steps of a network in a process of its own, or all of the digits', and then steps when asked."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    name, dtype, order, mode, by = place
    if name == "digits":
        asked.send(learned(dtype, order, mode, by, given))
        return
    step = network_stepper(name, dtype, order, mode, by, given)
    seconds_of(step, WARM, given.device)
    asked.send("ready")
    answers = {"seconds": lambda: seconds_of(step, TURN, given.device), "busy": lambda: busy_seconds(step)}
    with suppress(EOFError):  # none asks for more
        while wanted := asked.recv():
            step()
            asked.send(answers[wanted]())


def begun(
    places: Iterable[Sequence[str]], given: argparse.Namespace
) -> Iterator[tuple[Sequence[str], Connection, Any]]:
    """Begin a process for each place, and yield those that are ready in time, with the first that they send."""
    end, context = time.monotonic() + given.seconds, get_context("spawn")
    processes: dict[Connection, tuple[Sequence[str], BaseProcess]] = {}
    for place in places:
        asked, own = context.Pipe()
        process = context.Process(target=work, args=(place, given, own), daemon=True)
        process.start()
        own.close()
        processes[asked] = place, process
    unready = {*processes}
    while unready and (some := wait(unready, max(0, end - time.monotonic()))):
        unready -= {*some}
    for asked in unready:
        processes[asked][1].kill()
    for asked, (place, _) in processes.items():
        try:
            yield place, asked, asked.recv()
        except EOFError:  # one that failed has printed why
            print(f"{' '.join(place)}: not ready in time, or failed", flush=True)


def sampled(asked: Connection, wanted: str) -> float:
    """Return the seconds of a step of a process, which makes some now, or those in which the GPU is busy."""
    asked.send(wanted)
    return float(asked.recv())


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of digits, and then those of networks."""
    places = product(given.networks, given.dtypes, given.orders, given.modes, BY)
    ready = list(begun(places, given))
    losses: dict[Sequence[str], Row] = {}
    for (*place, by), _, found in ready:
        if found != "ready":
            losses.setdefault(tuple(place), {})[by] = found
    for place, each in losses.items():
        yield named(place, losses=each)
    timed = {tuple(place): asked for place, asked, found in ready if found == "ready"}
    timers = {place: partial(sampled, asked, "seconds") for place, asked in timed.items()}
    times: dict[Sequence[str], Row] = {}
    for (*place, by), timing in interleave(timers, given.rounds).items():
        times.setdefault(tuple(place), {})[by] = msgspec.to_builtins(timing)
    for place, each in times.items():
        busy = {by: sampled(timed[(*place, by)], "busy") for by in each} if given.device == "cuda" else {}
        yield named(place, times=each, busy=busy)


def named(place: Sequence[str], **found: Row) -> Row:
    """Return the row of what was found of a network."""
    return {**dict(zip(("network", "dtype", "order", "mode"), place, strict=True)), **found}


def words(row: Row) -> str:
    """Return a row as a line of text."""
    found = [
        f"{by} losses {', '.join(f'{name} {value:.4f}' for name, value in each.items())}"
        for by, each in row.get("losses", {}).items()
    ]
    found += [
        f"{by} {1e3 * each['median']:.2f} ms ({1e3 * each['low']:.2f} to {1e3 * each['high']:.2f})"
        for by, each in row.get("times", {}).items()
    ]
    found += [f"{by} keeps the GPU busy for {1e3 * seconds:.2f} ms" for by, seconds in row.get("busy", {}).items()]
    return f"{row['network']} {row['dtype']} {row['order']} {row['mode']}: {'; '.join(found)}"


def main() -> None:
    """Measure, print and write the rows."""
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu", "cuda"]
    given = options_of(
        __doc__,
        device=dict.fromkeys(devices),
        networks=["digits", *NETWORKS],
        dtypes=["float16", "float32", "bfloat16"],
        orders=list(ORDERS),
        modes=list(MODES),
        batch=32,
        size=224,
        rounds=9,
        steps=200,
        seconds=3600.0,
    ).parse_args()
    settings = {name: getattr(given, name) for name in ("batch", "size", "steps")}
    document = Document(given.output, "cuda" if given.device == "cuda" else "llvm", **settings)
    for row in rows(given):
        document.add(row, words(row))


if __name__ == "__main__":
    main()
