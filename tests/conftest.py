"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tvmconv
from tvmconv.support import store
from tvmconv.targets import has_gpu, sources

if TYPE_CHECKING:
    from tvmconv.autotvm.measure.builder import LocalBuilder

gc.disable()  # Until the tests are collected: modules leave little garbage, and to look for it would take 3 s.

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    # Processes that run tests side by side share the cores: TVM's threads, and torch's, spin while they wait.
    tvmconv.set_num_threads(max(1, tvmconv.get_num_threads() // workers))
    with suppress(ImportError):
        import torch

        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of real GPUs, which lie in files named `*_gpu.py`, where there is none."""
    of_gpus = [item for item in items if item.path.stem.endswith("_gpu")]
    if of_gpus and not has_gpu():
        for item in of_gpus:
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


def pytest_collection_finish() -> None:
    """Let Python collect garbage of tests."""
    gc.enable()


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Undo changes to the environment by commands that run in the process of the tests."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session", autouse=True)
def nothing_kept() -> Iterator[None]:
    """Let networks be scheduled anew: tests put other functions instead of the library's, which no digest tells.

    The fixture `kept` is for tests of what is kept. The rates that the user has calibrated are left out, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "digest", lambda: None)
        patch.setattr(store, "user_file", lambda name: None)
        yield


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder that has the user's files, at first none."""
    from tvmconv.schedules import cpu, cuda

    monkeypatch.setattr(store, "user_file", lambda name: tmp_path / name)
    files = cpu.model.rates.USER, cuda.model.rates.USER
    for each in files:
        each.forget()
    yield tmp_path
    for each in files:
        each.forget()


@pytest.fixture(scope="session")
def builder() -> Iterator[LocalBuilder]:
    """Yield a builder whose process the tests of all files share: it takes a second to start."""
    from tvmconv.autotvm.measure.builder import LocalBuilder

    builder = LocalBuilder(n_parallel=1)
    yield builder
    builder.close()


@pytest.fixture(scope="session", autouse=True)
def composite_operators() -> Iterator[None]:
    """Let torch look for its composite operators once: each import of a program would do so four times, for 0.1 s.

    Where no test has imported torch, it is not imported for this.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:
            from tests.torch_exports import remember_composite_operators

            remember_composite_operators(patch.setattr)
        yield


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks time everything for a moment, and find the limits of a device with little work."""
    from tvmconv.bench import roofs, suite, timing
    from tvmconv.bench.networks import network

    for module in (network, roofs, suite):
        monkeypatch.setattr(module, "SECONDS", 0.001)
    monkeypatch.setattr(timing._WallTimer, "SETTLE", 0.001)
    monkeypatch.setattr(roofs, "COPIED_BYTES", 2**20)
    monkeypatch.setattr(roofs, "STEPS", 2**10)


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches measure the best two configurations again, and once, in tests of something else."""
    from tvmconv.autotvm.tuner import tuner

    monkeypatch.setattr(tuner, "FINALISTS", 2)
    monkeypatch.setattr(tuner, "ROUNDS", 1)


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide torch from processes that the tests of a module start: TVM would import it, which takes 2 s in each."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "torch.py").write_text("raise ImportError('these tests do without torch')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield
