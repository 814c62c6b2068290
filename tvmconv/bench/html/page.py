"""The page: a section for each file, and the style and script of the page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from tvmconv.dispatch.record import Log

from ..report import Report
from .charts import STYLE
from .documents import documents
from .files import Source
from .logs import tuning
from .markup import Markup, tag
from .suites import benchmark


def page(title: str, sources: Sequence[Source]) -> str:
    """Return the whole page as HTML. It loads nothing, and lets a browser run no script but the page's."""
    style, script = (Markup(files(__package__).joinpath(name).read_text()) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", STYLE, style),
    ]
    parts = [tag("a", source.name, href=f"#s{number}") for number, source in enumerate(sources)]
    body = [
        tag("h1", title),
        tag("nav", *parts) if len(sources) > 1 else Markup(),
        *(tag("div", _section(source), id=f"s{number}") for number, source in enumerate(sources)),
        tag("script", script),
    ]
    return "<!DOCTYPE html>\n" + tag("html", tag("head", *head), tag("body", *body), lang="en") + "\n"


def _section(source: Source) -> Markup:
    if isinstance(source.content, Report):
        return benchmark(source.name, source.content)
    if isinstance(source.content, Log):
        return tuning(source.name, source.content)
    return documents(source.name, source.content)
