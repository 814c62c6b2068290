"""Templates of one's own, and the functions of AutoTVM's, on their way to another process."""

from __future__ import annotations

import base64
import sys
from functools import lru_cache
from typing import Any

import msgspec

from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError


class _Message(msgspec.Struct):
    """A template, or its function, for another process."""

    name: str
    content: str
    """The object as cloudpickle writes it, in base64."""
    path: list[str]
    """The folders in which Python looks for modules that it needs."""


def to_message(name: str, template: Any) -> str:
    """Return a template, or its function, as one line of JSON, for `from_message` in another process."""
    try:
        import cloudpickle
    except ImportError:
        raise MissingPackageError("cloudpickle", "tune", "tuning") from None
    try:
        content = cloudpickle.dumps(template)
    except (TypeError, ValueError, AttributeError) as error:
        expected = f"one that uses what can be sent to another process ({error})"
        raise InvalidArgumentError("template", name, expected) from None
    return msgspec.json.encode(_Message(name, base64.b64encode(content).decode(), sys.path)).decode()


@lru_cache(maxsize=16)
def from_message(text: str) -> tuple[str, Any]:
    """Return the name and the object that `to_message` was given, the same object for the same text.

    The text comes from the process that began this one, or from the client of an RPC server: it is code.
    """
    import cloudpickle

    message = msgspec.json.decode(text, type=_Message)
    sys.path += [each for each in message.path if each not in sys.path]
    return message.name, cloudpickle.loads(base64.b64decode(message.content))
