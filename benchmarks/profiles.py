"""The profile of a call's kernels on a GPU, by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def profile_of(call: Callable[[], Any], calls: int) -> torch.profiler.profile:
    """Return the profile of the GPU in so many calls, after three that are not in it."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return profile
