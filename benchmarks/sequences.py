"""Causal convolutions of sequences beside PyTorch's and others', and beside copies of what they read and write.

    python benchmarks/sequences.py -o sequences-h200.json    # on a GPU, where calls are replayed in CUDA graphs
    python benchmarks/sequences.py --shape 1,512,2048 --dtypes float32    # on a CPU, eagerly

A row is a type, an order in memory, (B, D, L) or (B, L, D), and an activation behind the sum of four taps and a bias,
as state-space models have it. PyTorch takes `conv1d` with padding on both sides, cuts off what comes from behind the
end, and applies the activation in a call of its own. On a GPU there is a kernel in Triton, in the fastest of its
configurations, and the package `causal_conv1d` where it is installed: `pip install causal-conv1d`. Results are first
compared with PyTorch's in float64: "error" is the largest difference of tvmconv's, as a share of the largest number.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from script import CLOSE, TARGETS, Row, begin, errors_of, main, timed
from torch.nn import functional

from tvmconv.nn.functional import causal_conv1d

TAPS = 4
"""The elements of a channel that a sum reads."""
SECONDS = 0.01
"""The time of a contender in a round, in seconds."""


def by_pytorch(x: Any, w: Any, bias: Any, activation: str | None) -> Any:
    """Return PyTorch's result."""
    y = functional.conv1d(x, w[:, None], bias, padding=w.shape[1] - 1, groups=len(w))[..., : x.shape[2]]
    return y if activation is None else functional.silu(y)


def contenders(device: str) -> dict[str, Callable[..., Any]]:
    """Return the functions that can run here."""
    found: dict[str, Callable[..., Any]] = {"tvmconv": causal_conv1d, "pytorch": by_pytorch}
    if device == "cuda":
        from causal_triton import by_triton

        found["triton"] = by_triton
        if find_spec("causal_conv1d"):
            from causal_conv1d import causal_conv1d_fn

            found["causal-conv1d"] = lambda x, w, bias, activation: causal_conv1d_fn(x, w, bias, activation=activation)
    return found


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the row of each convolution."""
    (batch, channels, length), (_, device) = given.shape, begin(given.target)
    for dtype, order, activation in product(given.dtypes, ("BDL", "BLD"), (None, "silu")):
        random = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
        x = random(batch, channels, length) if order == "BDL" else random(batch, length, channels).transpose(1, 2)
        w, bias, other = random(channels, TAPS), random(channels), torch.empty_like(x)
        calls = {name: partial(each, x, w, bias, activation) for name, each in contenders(device).items()}
        name = f"{dtype}, ({', '.join(order)})" + (f", {activation}" if activation else "")
        exact = by_pytorch(x[:1].double(), w.double(), bias.double(), activation)
        errors = errors_of({name: call()[:1] for name, call in calls.items()}, exact, CLOSE[dtype], name)
        times = timed({"copy": partial(other.copy_, x), **calls}, device, given.rounds, SECONDS)
        yield {"name": name, "error": errors["tvmconv"], "times": times}


if __name__ == "__main__":
    options = {"target": TARGETS, "shape": [8, 4096, 2048], "dtypes": list(CLOSE), "rounds": 5}
    main(__doc__, rows, **options)
