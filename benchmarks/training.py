"""Steps of training with torch, its own depthwise convolutions beside those of `tvmconv.nn.replace`.

    python benchmarks/training.py -o training-h200.json        # on a GPU
    python benchmarks/training.py --target llvm --batch 4 --size 96 --dtypes float32

Each row is a network, a type (autocast where it is not float32), an order in memory and a mode; "times" has the
seconds of a step by either: forward, backward and SGD. In the mode "compile" forward and backward are by
`torch.compile`; in "reduce-overhead" they are replayed in CUDA graphs too, so that the host has little to do. Before
them `--steps` steps of a small network on scikit-learn's digits show that both learn alike: "losses" has the mean of
the first and of the last ten.

Both take turns in each round: its time is the median of `TURN` steps, behind one that does not count. On a GPU the
first step of a network compiles some fifty kernels, for a minute. Last comes "busy", the seconds of a step in which the
GPU computes or copies; for the rest of a step it waits for the host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from script import ORDERS, TARGETS, Row, begin, main
from torch import nn

from tvmconv.bench.networks.models import convnext_tiny, mobilenet_v2
from tvmconv.bench.networks.parts import Residual, conv_bn
from tvmconv.bench.timing import interleave
from tvmconv.nn import replace

TURN = 5
"""The steps of a network that are timed in a round."""
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


def turn(step: Callable[[], Any], device: str) -> float:
    """Return the median seconds of `TURN` steps, behind one that does not count."""
    times = []
    for _ in range(1 + TURN):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times[1:])


def busy_seconds(step: Callable[[], Any]) -> float:
    """Return the seconds of a step in which the GPU runs kernels, or copies; they run one after the other."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(TURN):
            step()
        torch.cuda.synchronize()
    on_gpu = (event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)
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


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network, type, order in memory and mode."""
    _, device = begin(given.target)
    for chosen in product(given.networks, given.dtypes, given.orders, given.modes):
        about = dict(zip(("network", "dtype", "order", "mode"), chosen, strict=True))
        cases: dict[str, Case] = {by: (*chosen, by) for by in BY}
        row: Row = {**about, "losses": {}, "times": {}, "busy": {}}
        if chosen[0] == "digits":
            row["losses"] = {by: learned(case, given.steps, device) for by, case in cases.items()}
        else:
            form = torch.randn(given.batch, 3, given.size, given.size)
            x, y = form.to(device, memory_format=ORDERS[chosen[2]]), torch.randint(1000, (given.batch,), device=device)
            steps = {by: stepper(case, x, y) for by, case in cases.items()}
            timers = {by: partial(turn, step, device) for by, step in steps.items()}
            for first in timers.values():  # in which kernels are compiled and CUDA graphs are captured
                first()
            row["times"] = msgspec.to_builtins(interleave(timers, given.rounds))
            row["busy"] = {by: busy_seconds(step) for by, step in steps.items()} if device == "cuda" else {}
        yield row


if __name__ == "__main__":
    options = {"target": TARGETS, "networks": [*NETWORKS], "dtypes": ["float16", "float32", "bfloat16"]}
    sizes = {"batch": 32, "size": 224, "rounds": 9, "steps": 200}
    main(__doc__, rows, **options, orders=[*ORDERS], modes=[*MODES], **sizes)
