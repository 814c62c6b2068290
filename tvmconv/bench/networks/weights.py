"""Random weights for networks, with a share of zeros. Importing this module loads torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def randomized(network: Callable[[], nn.Module]) -> nn.Module:
    """Return the network in eval mode with random weights that keep the size of activations, and random batch norms."""
    torch.manual_seed(7)
    module = network().eval()
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_uniform_(part.weight, nonlinearity="relu")
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.0)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
            nn.init.normal_(part.bias, std=0.1)
            nn.init.normal_(part.running_mean, std=0.1)
    return module


def prune(module: nn.Module, share: float) -> None:
    """Set a share of the weights of each convolution and linear layer to zero, those that are closest to it.

    The rest is scaled up to the norm that the weight had, so that activations keep their size.
    """
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            weight = part.weight.detach()
            norm, smallest = weight.norm(), weight.abs().flatten().argsort()[: round(share * weight.numel())]
            weight.view(-1)[smallest] = 0
            weight *= norm / weight.norm()
