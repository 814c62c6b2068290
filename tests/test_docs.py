"""The snippets of the pages in docs/, in order, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("without_torch")

DOCS = Path(__file__).parent.parent / "docs"


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = snippets("networks.md")
    assert len(found) == 4
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(snippet, "networks.md", "exec"), names)


def test_sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = snippets("sparse.md")
    assert found
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(snippet, "sparse.md", "exec"), names)
    assert capsys.readouterr().out.endswith("finite numbers: they are compiled in\n")
