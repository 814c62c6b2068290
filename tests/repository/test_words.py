"""Docstrings without the words that docs/glossary.md has better ones for, and the order of its words."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def cells(header: str) -> list[str]:
    """Return the first cell of each row of the glossary's table whose header begins with `header`."""
    rows = GLOSSARY[GLOSSARY.index(f"| {header} |") :].splitlines()[2:]
    return [row.split("|")[1].strip() for row in takewhile(lambda row: row.startswith("|"), rows)]


def pattern(phrase: str) -> re.Pattern[str]:
    """Return the expression for a phrase of the table "avoid": "a/b c ..." is "a c" or "b c" at the beginning."""
    words, begins, _ = phrase.partition(" ...")
    text = " ".join(f"({word.replace('/', '|')})" for word in words.split())
    return re.compile(rf"{'^' if begins else ''}\b{text}\b", re.IGNORECASE)


PHRASES = {phrase: pattern(phrase) for cell in cells("avoid") for phrase in cell.split(", ")}


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the texts that stand alone as statements: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def signs(docstring: str) -> list[str]:
    """Return the phrases to avoid that the first paragraph of a docstring has outside of backticks."""
    first = re.sub(r"`[^`]*`", "``", inspect.cleandoc(docstring).partition("\n\n")[0])
    return [phrase for phrase, expression in PHRASES.items() if expression.search(" ".join(first.split()))]


@pytest.mark.parametrize("room", ["schedules", "tvmconv"])
def test_docstrings_name_their_subject(room: str) -> None:
    paths = sorted((ROOT / room).rglob("*.py"))
    assert len(paths) > 80
    texts = [(path, text) for path in paths for text in docstrings(ast.parse(path.read_text()))]
    assert [f"{path.relative_to(ROOT)}: {text[:60]} {found}" for path, text in texts if (found := signs(text))] == []


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("Return so many rows.", ["so/as many"]),
        ("Return the rows, of which there are as\n    many as columns.", ["so/as many"]),
        ("Its bytes.", ["its/their/that/those/these/it/one/what/which/whether/where/of/by/how/there ..."]),
        ("The bytes that it has.", []),
        ("Return the index `place` of a row.\n\n    The place is in bytes.", []),
        ("Return the Places.", ["place/places"]),
        ("Return the placed block.", []),
    ],
)
def test_signs_are_seen(docstring: str, found: list[str]) -> None:
    assert signs(docstring) == found


def test_every_phrase_is_seen_in_itself() -> None:
    assert len(PHRASES) >= 15
    for phrase in PHRASES:
        shown = " ".join(word.partition("/")[0] for word in phrase.removesuffix(" ...").split())
        assert phrase in signs(f"{shown} things." if phrase.endswith("...") else f"Return {shown} things.")


def test_words_are_in_alphabetical_order() -> None:
    words = [word.casefold() for word in cells("word")]
    assert len(words) > 50
    assert words == sorted(words)
