"""Steps of training with torch, its own depthwise convolutions beside those of `tvmconv.nn.replace`.

    python benchmarks/training.py --seconds 100 -o training-h200.json        # on a GPU
    python benchmarks/training.py --target llvm --batch 4 --size 96 --dtypes float32

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from script import ORDERS, TARGETS, Row, main, profile_of
from torch import nn

from tvmconv.bench.networks.models import convnext_tiny, mobilenet_v2
from tvmconv.bench.networks.parts import Residual, conv_bn
from tvmconv.bench.timing import interleave
from tvmconv.nn import replace

WARM = 4
"""The first steps, in which kernels are compiled and CUDA graphs are captured."""
TURN = 5
"""The steps of a process that are timed in a round, behind one that is not."""
BY = ("pytorch", "tvmconv")
MODES: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "compile": torch.compile,
    "reduce-overhead": partial(torch.compile, mode="reduce-overhead"),
}


def large_kernels() -> nn.Module:
    """Return a network with the depthwise kernels of RepLKNet-31B (Ding et al., 2022), and a third of its blocks."""
    layers: list[nn.Module] = [conv_bn(3, 128, 3, 2), conv_bn(128, 128, 3, 2, groups=128)]
    for depth, width, kernel in ((1, 128, 31), (1, 256, 29), (6, 512, 27), (1, 1024, 13)):
        if width > 128:
            layers += [conv_bn(width // 2, width), conv_bn(width, width, 3, 2, groups=width)]
        for _ in range(depth):
            inner, outer = conv_bn(width, width, kernel, groups=width), conv_bn(width, width, act=None)
            wide = (conv_bn(width, 4 * width, act=nn.GELU), conv_bn(4 * width, width, act=None))
            layers += [Residual(nn.Sequential(conv_bn(width, width), inner, outer)), Residual(nn.Sequential(*wide))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def digits() -> nn.Module:
    """Return a small network for scikit-learn's digits, with depthwise convolutions of strides 1 and 2."""
    layers = [conv_bn(1, 16, 3), conv_bn(16, 16, 5, groups=16), conv_bn(16, 32), conv_bn(32, 32, 3, 2, groups=32)]
    layers += [conv_bn(32, 64), conv_bn(64, 64, 7, groups=64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each for each in (digits, mobilenet_v2, convnext_tiny, large_kernels)
}

Case = tuple[str, str, str, str, str]
"""A network, a type, an order in memory, a mode, and one of `BY`."""


def stepper(case: Case, x: Any, y: Any) -> Callable[[], Any]:
    """Return a function that trains a network on the images and classes in x and y by a step; it returns the loss."""
    name, dtype, order, mode, by = case
    torch.manual_seed(0)
    model = NETWORKS[name]()
    model = replace(model) if by == "tvmconv" else model
    model = MODES[mode](model.to(x.device, memory_format=ORDERS[order]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(x.device.type, enabled=dtype == "float16")

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=getattr(torch, dtype), enabled=dtype != "float32"):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def seconds_of(step: Callable[[], Any], steps: int, on_gpu: bool) -> float:
    """Return the median time of a step."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times)


def busy_seconds(step: Callable[[], Any]) -> float:
    """Return the seconds of a step in which the GPU runs kernels, or copies; they run one after the other."""
    events = profile_of(step, TURN).events()
    on_gpu = (event for event in events if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(event.time_range.elapsed_us() for event in on_gpu) / 1e6 / TURN


def learned(case: Case, steps: int, device: str) -> Row:
    """Return the losses in training on digits, as images of 32x32."""
    from sklearn.datasets import load_digits

    found = load_digits()
    small = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    images = nn.functional.interpolate(small, size=32, mode="bilinear").to(device)
    classes = torch.tensor(found.target).to(device)
    x, y, losses = images[:64].clone(), classes[:64].clone(), []
    step = stepper(case, x, y)
    for number in range(steps):
        chosen = (torch.arange(64, device=device) + 64 * number) % len(images)
        x.copy_(images[chosen])
        y.copy_(classes[chosen])
        losses.append(float(step()))
    return {"first": fmean(losses[:10]), "last": fmean(losses[-10:])}


def work(case: Case, given: argparse.Namespace, asked: Connection) -> None:
    """Make the first steps of a network in this process, or all of the digits', and then steps when asked."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    on_gpu = given.target == "cuda"
    device = "cuda" if on_gpu else "cpu"
    if case[0] == "digits":
        asked.send(learned(case, given.steps, device))
        return
    x = torch.randn(given.batch, 3, given.size, given.size).to(device, memory_format=ORDERS[case[2]])
    step = stepper(case, x, torch.randint(1000, (given.batch,), device=device))
    seconds_of(step, WARM, on_gpu)
    asked.send("ready")
    answers = {"seconds": lambda: seconds_of(step, TURN, on_gpu), "busy": lambda: busy_seconds(step)}
    with suppress(EOFError):  # none asks for more
        while wanted := asked.recv():
            step()
            asked.send(answers[wanted]())


def begun(cases: Sequence[Case], given: argparse.Namespace) -> Iterator[tuple[Case, Connection, Any]]:
    """Begin a process for each case, and yield those that are ready in time, with the first that they send."""
    end, context = time.monotonic() + given.seconds, get_context("spawn")
    processes: dict[Connection, tuple[Case, BaseProcess]] = {}
    for case in cases:
        asked, other = context.Pipe()
        process = context.Process(target=work, args=(case, given, other), daemon=True)
        process.start()
        other.close()
        processes[asked] = case, process
    unready = {*processes}
    while unready and (some := wait(unready, max(0, end - time.monotonic()))):
        unready -= {*some}
    for asked in unready:
        processes[asked][1].kill()
    for asked, (case, _) in processes.items():
        try:
            yield case, asked, asked.recv()
        except EOFError:  # one that failed has printed why
            print(f"{' '.join(case)}: not ready in time, or failed", flush=True)


def sampled(asked: Connection, wanted: str) -> float:
    """Return the seconds of a step of a process, which makes some now, or those in which the GPU is busy."""
    asked.send(wanted)
    return float(asked.recv())


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of digits, and then those of networks."""
    ready = [*begun([*product(given.networks, given.dtypes, given.orders, given.modes, BY)], given)]
    timers = {case: partial(sampled, asked, "seconds") for case, asked, found in ready if found == "ready"}
    timings, found_rows = interleave(timers, given.rounds), dict[tuple[str, ...], Row]()
    for case, asked, found in ready:
        *names, by = case
        about = dict(zip(("network", "dtype", "order", "mode"), names, strict=True))
        row = found_rows.setdefault(tuple(names), {**about, "losses": {}, "times": {}, "busy": {}})
        if found != "ready":
            row["losses"][by] = found
        else:
            row["times"][by] = msgspec.to_builtins(timings[case])
            if given.target == "cuda":
                row["busy"][by] = sampled(asked, "busy")
    yield from found_rows.values()


def text(row: Row) -> str:
    """Return a row as a line of text."""
    found = [f"{by} losses {each['first']:.4f} to {each['last']:.4f}" for by, each in row["losses"].items()]
    found += [
        f"{by} {1e3 * each['median']:.2f} ms ({1e3 * each['low']:.2f} to {1e3 * each['high']:.2f})"
        for by, each in row["times"].items()
    ]
    found += [f"{by} keeps the GPU busy for {1e3 * seconds:.2f} ms" for by, seconds in row["busy"].items()]
    return f"{row['network']} {row['dtype']} {row['order']} {row['mode']}: {'; '.join(found)}"


if __name__ == "__main__":
    options = {"target": TARGETS, "networks": [*NETWORKS], "dtypes": ["float16", "float32", "bfloat16"]}
    sizes = {"batch": 32, "size": 224, "rounds": 9, "steps": 200, "seconds": 3600.0}
    main(__doc__, rows, text, **options, orders=[*ORDERS], modes=[*MODES], **sizes)
