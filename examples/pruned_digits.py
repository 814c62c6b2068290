"""A small network trained on handwritten digits, pruned to a tenth of its weights, and built with them compiled in.

Needs torch and scikit-learn, whose 1,797 digits of 8x8 pixels it brings along. Takes about a minute on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import prune

import tvmconv
from tvmconv import Network

TRAINING = 1440
"""The number of digits to train on; the other 357 are for the test."""


@dataclass(frozen=True)
class Result:
    """The shares of the test's digits that are recognised, and the difference between the networks."""

    before: float
    """The share recognised by torch, before pruning."""
    pruned: float
    """The share recognised by torch, pruned and fine-tuned."""
    dense: float
    """The share recognised by tvmconv, with zeros multiplied."""
    sparse: float
    """The share recognised by tvmconv, with nothing left of zeros."""
    difference: float
    """The largest difference between the scores of the last two, as a share of the largest score."""
    network: Network
    """The sparse network of tvmconv."""


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 1, 8, 8) and their labels, in random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.tensor(images[order], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return x, torch.tensor(labels[order])


def network(channels: int) -> nn.Sequential:
    """Return three convolutions with batch norm, and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, channels), (channels, channels), (channels, channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 10))


def train(model: nn.Module, x: torch.Tensor, labels: torch.Tensor, epochs: int, rate: float) -> None:
    """Train on batches of 48."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(48):
            loss = nn.functional.cross_entropy(model(x[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()


def accuracy(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of digits that are recognised."""
    return float((scores.argmax(1) == labels).float().mean())


def run(channels: int = 32, epochs: int = 20) -> Result:
    """Train, prune the convolutions behind the first to a tenth of their weights, fine-tune, build and compare."""
    torch.manual_seed(0)
    x, labels = digits()
    test, expected = x[TRAINING:], labels[TRAINING:]
    model = network(channels)
    train(model, x[:TRAINING], labels[:TRAINING], epochs, 3e-3)
    with torch.no_grad():
        before = accuracy(model(test), expected)
    convolutions = [layer for layer in model if isinstance(layer, nn.Conv2d)][1:]
    for layer in convolutions:
        prune.l1_unstructured(layer, "weight", amount=0.9)
    train(model, x[:TRAINING], labels[:TRAINING], epochs // 2, 1e-3)
    for layer in convolutions:
        prune.remove(layer, "weight")  # the zeros stay
    imported = tvmconv.import_model(model, (test,))
    dense, sparse = (tvmconv.build(imported, sparse=mode) for mode in ("never", "auto"))
    with torch.no_grad():
        pruned, by_dense, by_sparse = model(test), dense(test), sparse(test)
    difference = float((by_dense - by_sparse).abs().max() / by_dense.abs().max())
    accuracies = (accuracy(scores, expected) for scores in (pruned, by_dense, by_sparse))
    return Result(before, *accuracies, difference, sparse)


if __name__ == "__main__":
    result = run()
    for layer in result.network.layers:
        print(f"{layer.convolution.description}: {layer.kernel}, {layer.reason}")
    print(f"recognised: {result.before:.1%} before pruning, {result.pruned:.1%} pruned and fine-tuned,")
    print(f"{result.dense:.1%} by tvmconv's dense kernels, {result.sparse:.1%} by its sparse ones")
