"""The snippets of the pages in docs/, as a reader would run them, the parts made from benchmarks/, and their lists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.shared.pages import snippets
from tvmconv.dispatch.registry import TEMPLATES
from tvmconv.problem.activations import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("without_torch", "one_round")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

LARGEST = 60_000
"""The largest number of bytes of a picture, so that a page loads at once."""


def snippets_of(name: str) -> list[str]:
    return snippets((DOCS / name).read_text())


def test_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = snippets_of("networks.md")
    assert len(found) == 7
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(snippet, "networks.md", "exec"), names)


def test_sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = snippets_of("sparse.md")
    assert found
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(snippet, "sparse.md", "exec"), names)
    assert capsys.readouterr().out.endswith("finite numbers: they are compiled in\n")


def test_training() -> None:
    pytest.importorskip("torch")
    (snippet,) = snippets_of("training.md")
    exec(compile(snippet, "training.md", "exec"), {})


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """Import a module of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module(request.param)


@pytest.mark.parametrize("script", ["tables"], indirect=True)
def test_tables_are_those_of_the_data(script: ModuleType) -> None:
    page = (DOCS / "benchmarks.md").read_text()
    assert re.findall(r"<!-- table: (.+?) -->", page) == list(script.TABLES)
    assert script.renewed(page) == page, "python benchmarks/tables.py"
    wrong = page.replace("| 2.40 (", "| 2.41 (")
    assert wrong != page
    assert script.renewed(wrong) == page


def test_losses_that_the_page_tells_are_in_its_tables() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    lines = page.splitlines()
    prose, tables = ([line for line in lines if line.startswith("|") == table] for table in (False, True))
    told = re.findall(r"\((0\.\d\d)\b", "\n".join(prose))
    assert len(told) > 10
    assert set(told) <= set(re.findall(r"0\.\d\d\b", "\n".join(tables)))


def test_figures_are_few() -> None:
    assert len((DOCS / "benchmarks.md").read_text().split()) <= 3000


def test_activations_are_listed() -> None:
    page = (DOCS / "networks.md").read_text()
    listed = page[
        page.index("The activations that end in a kernel are") : page.index(", each a row in [activations.py]")
    ]
    assert re.findall(r"`(\w+)`", listed) == list(ACTIVATIONS)


@pytest.mark.parametrize("script", ["tables"], indirect=True)
def test_the_picture_is_that_of_the_data(script: ModuleType) -> None:
    assert script.PICTURE.read_text() == script.picture(), "python benchmarks/tables.py"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_small_and_whole(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_templates_are_listed() -> None:
    page = (DOCS / "concepts.md").read_text()
    listed = dict(re.findall(r"\[`(\w+/\w+)`\]\(([\w./]+)\)", page))
    assert listed.keys() == TEMPLATES.keys()
    assert all((DOCS / link).exists() for link in listed.values())
