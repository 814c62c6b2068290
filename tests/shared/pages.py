"""Pages of the documentation as tests read them."""

from __future__ import annotations

import re


def snippets(page: str, language: str = "python") -> list[str]:
    """Return the texts of a page's fenced blocks in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
