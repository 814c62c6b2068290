"""Templates of one's own on their way to another process."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgumentError, MissingPackageError


def pickled(name: str, template: Any) -> str:
    """A template, or its function, in base64, for `unpickled` in another process."""
    try:
        import cloudpickle
    except ImportError:
        raise MissingPackageError("cloudpickle", "tune", "tuning") from None
    try:
        content = cloudpickle.dumps(template)
    except (TypeError, ValueError, AttributeError) as error:
        expected = f"one that uses what can be sent to another process ({error})"
        raise InvalidArgumentError("template", name, expected) from None
    return base64.b64encode(content).decode()


def unpickled(content: str, path: Sequence[str]) -> Any:
    """What `pickled` was given, where `path` has what it imports; it is code."""
    import cloudpickle

    sys.path += [each for each in path if each not in sys.path]
    return cloudpickle.loads(base64.b64decode(content))
