"""The page of `tvmconv report` in a real browser: it runs, sorts, loads nothing, and fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.browser import CHROMIUM, Browser, browser
from tests.shared.command_line import tvmconv

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

COLUMN = "[...document.querySelectorAll('table')[{table}].tBodies[0].rows].map(row => row.cells[{column}]?.dataset.v)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of all data in the repository, with every kind of table and of plot."""
    files = [*(ROOT / "benchmarks").glob("*.json*"), *(ROOT / "tuning_logs").glob("*.jsonl")]
    path = tmp_path_factory.mktemp("report") / "report.html"
    result = tvmconv("report", *files, "-o", path)
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.mark.parametrize("size", [(1280, 900), (390, 844), (320, 568)], ids=["desk", "phone", "small-phone"])
def test_page(page: Path, shown: Browser, size: tuple[int, int]) -> None:
    shown.open(page, *size)
    assert shown.complaints == []
    assert [url for url in shown.requests if not url.startswith("file:")] == []
    assert shown.value("document.documentElement.scrollWidth") <= size[0], "it scrolls sideways"
    charts = "[...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect())"
    assert shown.value(f"{charts}.every(box => box.right <= innerWidth && box.height > 50)")
    texts = "[...document.querySelectorAll('p, td, th, h1, h2, dd, summary')]"
    assert shown.value(f"Math.min(...{texts}.map(text => parseFloat(getComputedStyle(text).fontSize)))") >= 12


def test_tables_sort_by_mouse_and_keyboard(page: Path, shown: Browser) -> None:
    shown.open(page, 1280, 900)
    bodies = "[...document.querySelectorAll('table')].map(table => table.tBodies[0])"
    table = shown.value(f"{bodies}.findIndex(body => body.rows.length > 5 && body.rows[0].cells[1]?.dataset.v)")
    columns = [shown.value(COLUMN.format(table=table, column=number)) for number in range(1, 9)]
    column = next(number for number, values in enumerate(columns, 1) if len(set(values)) > 3)
    values = COLUMN.format(table=table, column=column)
    before = [float(value) for value in shown.value(values) if value]
    shown.value(f"document.querySelectorAll('table')[{table}].tHead.rows[0].cells[{column}].id = 'chosen'")
    shown.click("#chosen")
    assert [float(value) for value in shown.value(values) if value] == sorted(before, reverse=True)
    shown.value("document.querySelector('#chosen').focus()")
    shown.press("Enter", 13)
    assert [float(value) for value in shown.value(values) if value] == sorted(before)
    assert shown.complaints == []


def test_scripts_of_others_do_not_run(page: Path, shown: Browser, tmp_path: Path) -> None:
    """The page's policy refuses them; this also shows that complaints are seen."""
    changed = tmp_path / "changed.html"
    changed.write_text(page.read_text().replace("</body>", "<script>document.title = 'hostile'</script></body>"))
    shown.open(changed, 1280, 900)
    assert shown.value("document.title") != "hostile"
    assert any("Content Security Policy" in complaint for complaint in shown.complaints)
