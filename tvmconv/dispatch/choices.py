"""Choices of configurations for GPUs that are kept on disk: models try thousands of configurations for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import TypeVar

import msgspec

from tvmconv.targets import kernel_cache, sources

Answer = TypeVar("Answer")


class _Line(msgspec.Struct, frozen=True):
    question: str
    answer: msgspec.Raw


def kept(question: str, target: str, kind: type[Answer], make: Callable[[], Answer]) -> Answer:
    """Return what `make` answers to a question about a target: of this kind, and all that decides it in the text."""
    if (digest := sources.digest()) is None:
        return make()
    name = f"{sha256(f'{digest} {target}'.encode()).hexdigest()}.choices"
    known = _known(name)
    if question in known:
        return msgspec.json.decode(known[question], type=kind)
    answer = make()
    known[question] = encoded = msgspec.json.encode(answer)
    kernel_cache.keep_line(name, msgspec.json.encode(_Line(question, msgspec.Raw(encoded))))
    return answer


@cache
def _known(name: str) -> dict[str, bytes]:
    """Return the answers in a file by their questions."""
    lines = (msgspec.json.decode(each, type=_Line) for each in kernel_cache.kept_lines(name))
    return {line.question: bytes(line.answer) for line in lines}
