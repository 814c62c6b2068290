"""Choices of configurations for GPUs that are kept on disk: models try thousands of configurations for each."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import msgspec

from tvmconv.support.store import store
from tvmconv.targets import sources

Answer = TypeVar("Answer")


def kept(question: str, target: str, kind: type[Answer], make: Callable[[], Answer]) -> Answer:
    """Return what `make` answers to a question about a target: of this kind, and all that decides it in the text."""
    if (digest := sources.digest()) is None:
        return make()
    key = f"{sha256(repr((digest, target, question)).encode()).hexdigest()}.choice"
    if (content := store.get(key)) is not None:
        return msgspec.json.decode(content, type=kind)
    answer = make()
    store.put(key, msgspec.json.encode(answer))
    return answer
