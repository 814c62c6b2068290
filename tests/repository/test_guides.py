"""The snippets of the guides in docs/, as a reader would run them, and the commands that they name."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.shared.pages import snippets
from tvmconv.cli import main

pytestmark = pytest.mark.usefixtures("without_torch", "one_round")

ROOT = Path(__file__).parents[2]
GUIDES = ("concepts", "operands", "tuning", "troubleshooting")
PAGES = [
    *(f"docs/{name}.md" for name in (*GUIDES, "estimates", "glossary", "networks", "benchmarks", "choosing")),
    "CONTRIBUTING.md",
]
by_guide = pytest.mark.parametrize("name", GUIDES)


def text(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


@by_guide
def test_snippets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = snippets(text(name))
    assert len(found) >= 2
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(snippet, f"{name}.md", "exec"), names)


@pytest.mark.parametrize("path", [path for path in PAGES if path != "docs/glossary.md"])
def test_commands_and_options_exist(path: str) -> None:
    written = (ROOT / path).read_text()
    prose = re.sub(r"```.*?```", "", written, flags=re.DOTALL)
    commands = re.findall(r"\btvmconv ([a-z][a-z-]*(?: [a-z][a-z-]+)?)([^`\n#]*)", prose)
    found = 0
    for words, rest in commands:
        command: click.Command = main
        for word in words.split():
            if isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
        if command is main:
            continue
        found += 1
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"(?<=\s)--[a-z-]+", rest)) <= known, f"{words} {rest}"
    assert found >= 1


@pytest.mark.parametrize("path", [*PAGES, "docs/training.md", "CHANGELOG.md", "README.md"])
def test_links_lead_somewhere(path: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / path).read_text()):
        assert link.startswith("https://") or ((ROOT / path).parent / link).exists(), link


def anchors(path: Path) -> set[str]:
    """Return the names by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*GUIDES, "choosing", "estimates", "glossary", "networks"])
def test_links_lead_to_headings(name: str) -> None:
    page = ROOT / "docs" / f"{name}.md"
    links = re.findall(r"\]\(([\w./-]*)#([^)]+)\)", page.read_text())
    for target, anchor in links:
        assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"
