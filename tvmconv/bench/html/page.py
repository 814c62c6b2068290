"""The page: a section for each file, the environment of the measurements, and the style and script of the page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from tvmconv.autotvm.tidy import by_making
from tvmconv.dispatch.record import Log

from ..report import Report
from .charts import STYLE
from .documents import documents
from .files import Source
from .logs import tuning
from .markup import Cell, Markup, section, table, tag
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
        _environment(sources),
        tag("script", script),
    ]
    return "<!DOCTYPE html>\n" + tag("html", tag("head", *head), tag("body", *body), lang="en") + "\n"


def _section(source: Source) -> Markup:
    if isinstance(source.content, Report):
        return benchmark(source.name, source.content)
    if isinstance(source.content, Log):
        return tuning(source.name, source.content)
    return documents(source.name, source.content)


def _environment(sources: Sequence[Source]) -> Markup:
    """Return the devices and versions of each file, as far as it holds them."""
    rows: list[list[Cell]] = []
    for source in sources:
        if isinstance(source.content, Report):
            report = source.content
            versions = ", ".join(f"{package} {version}" for package, version in report.versions.items())
            target = [report.target.get(name) for name in ("kind", "arch", "mcpu")]
            words = " ".join(str(value) for value in target if value)
            rows.append([source.name, str(report.device), report.device.driver, words, versions])
        elif isinstance(source.content, Log):
            made = {
                (each.device, each.processor, each.tvm): records[-1]
                for each, records in by_making(source.content.records).items()
            }
            for (device, processor, tvm), last in made.items():
                packages = f"apache-tvm {tvm}, tvmconv {last.versions.tvmconv}"
                rows.append([source.name, device, last.device.driver, processor, packages])
    if not rows:
        return Markup()
    return section("Environment", table(["file", "device", "driver", "target", "versions"], rows))
