"""The turns of networks that are called in several streams of a GPU, without one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from tvmconv.network.runtime import streams
from tvmconv.network.runtime.streams import in_turn


@dataclass
class Gpu:
    """A GPU that notes which streams were waited for."""

    index: int
    waited: list[int] = field(default_factory=list)

    def sync(self, stream: int) -> None:
        self.waited.append(stream)


def call(gpu: Any, stream: int, in_capture: bool = False) -> None:
    with in_turn(gpu, stream, of_torch=False, in_capture=in_capture):
        pass


def test_another_stream_is_waited_for() -> None:
    """A capture neither waits nor is waited for."""
    gpu = Gpu(1001)
    for stream in (7, 7, 8, 8, 7):
        call(gpu, stream)
    call(gpu, 9, in_capture=True)
    call(gpu, 7)
    assert gpu.waited == [7, 8]


def test_gpus_do_not_wait_for_each_other() -> None:
    first, second = Gpu(1002), Gpu(1003)
    for gpu, stream in ((first, 1), (second, 2), (first, 1)):
        call(gpu, stream)
    assert first.waited == second.waited == []


def test_calls_of_threads_are_not_under_way_together() -> None:
    gpu, inside, most = Gpu(1004), [0], [0]

    def work(stream: int) -> None:
        for _ in range(20):
            with in_turn(gpu, stream, of_torch=False, in_capture=False):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(1e-4)
                inside[0] -= 1

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_threads_that_are_first_get_one_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find no turns of the GPU, and make some, before either goes on."""
    both, made = threading.Barrier(2, timeout=10), streams._Turn

    def slow() -> Any:
        both.wait()
        return made()

    monkeypatch.setattr(streams, "_turns", {})
    monkeypatch.setattr(streams, "_Turn", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(streams._turn_of, (3, 3))
    assert first is second
