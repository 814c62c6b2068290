"""Memory of large arrays: it is used again once nothing refers to it, never before, and little of it is kept."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

import tvmconv
from tvmconv.runtime import pool
from tvmconv.runtime.pool import LEAST_BYTES, Pool

SHAPE = (2, 3, 5)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize(
    "view", [lambda y: y[1:, :, ::2].T, memoryview, np.from_dlpack], ids=["part", "memoryview", "dlpack"]
)
def test_memory_is_used_again_when_no_view_is_left(view: Callable[[np.ndarray], Any]) -> None:
    memory = Pool()
    y = memory.empty(SHAPE, "float32")
    y[:] = np.arange(30).reshape(SHAPE)
    first_address, left = address(y), view(y)
    expected = np.array(left)
    del y
    other = memory.empty(SHAPE, "float32")
    other[:] = -1
    assert address(other) != first_address
    np.testing.assert_array_equal(left, expected)
    del left
    again = memory.empty((30,), "int32")
    assert (address(again), again.shape, again.dtype, again.flags.writeable) == (first_address, (30,), "int32", True)
    assert address(memory.empty((31,), "int32")) != address(memory.empty((30,), "int32"))


def test_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given back last stays, as far as it fits; more than fits at all does not."""
    monkeypatch.setattr(pool, "MAX_FREE_BYTES", 100)
    memory = Pool()
    arrays = [memory.empty((40,), "uint8") for _ in range(3)]
    first, second, third = map(address, arrays)
    while arrays:
        del arrays[0]
    large = memory.empty((101,), "uint8")
    del large
    assert memory._free.keys() < {first, second, third}
    arrays = [memory.empty((40,), "uint8") for _ in range(2)]
    assert not memory._free


def test_threads() -> None:
    """No two threads are in the same memory."""
    memory, wrong = Pool(), []

    def use(number: int) -> None:
        for _ in range(2000):
            y = memory.empty((64,), "int32")
            y[:] = number
            if not (y == number).all():
                wrong.append(number)

    threads = [Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_results_of_operators(kind: str) -> None:
    """A result that nothing refers to any more is where the next one lies; others stay as they are."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((1, 4, 512, 513)).astype("float32"), np.ones((4, 1, 1, 1), "float32")
    assert x.nbytes >= LEAST_BYTES
    if kind == "torch":
        torch = pytest.importorskip("torch")
        y, other = (tvmconv.depthwise(torch.from_numpy(each), torch.from_numpy(w)) for each in (x, -x))
        addresses = [y.data_ptr(), other.data_ptr()]
    else:
        y, other = (tvmconv.depthwise(each, w) for each in (x, -x))
        addresses = [address(y), address(other)]
    assert len(set(addresses)) == 2
    np.testing.assert_array_equal(np.asarray(y), x)
    np.testing.assert_array_equal(np.asarray(other), -x)
    del other
    assert address(tvmconv.depthwise(2 * x, w)) == addresses[1]
    np.testing.assert_array_equal(np.asarray(y), x)
