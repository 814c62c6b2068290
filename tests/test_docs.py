"""The examples in docs/, in order, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sparse_stand_in import use_sparse_on_cpu

pytest.importorskip("torch")
use_sparse_on_cpu()

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", [path.name for path in sorted(DOCS.glob("*.md"))])
def test_examples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    assert snippets
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), names)
    if name == "sparse.md":
        assert capsys.readouterr().out.endswith("finite numbers: they are compiled in\n")
