"""`tvmconv report`: pages that are whole, load nothing and escape everything, from every kind of file."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.autotvm import record
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.task import create
from tvmconv.bench.html.charts import PALETTE, LogAxis, bars, below_each_other, colours_of, curves
from tvmconv.bench.html.markup import tag
from tvmconv.bench.peers import known_peers
from tvmconv.bench.report import Report, Roofs, Row
from tvmconv.bench.timing import Timing
from tvmconv.targets import DeviceFacts

ROOT = Path(__file__).parents[2]
VOID = {"meta", "br"}
HOSTILE = "</script><script>alert('1')</script>&\"<img src=x onerror=alert(1)>"
TASK = create(ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3)), "llvm")


@pytest.mark.parametrize(
    ("values", "whole", "expected"),
    [
        ((1, 1000), False, [1, 10, 100, 1000]),
        ((1.0, 1.43), False, [1.0, 1.1, 1.2, 1.3, 1.4]),
        ((1.0, 4.0), True, [1, 2, 3]),
        ((0.98, 1.0), False, [0.8, 0.9, 1.0, 1.1, 1.2]),
    ],
    ids=str,
)
def test_axes_have_round_numbers(values: tuple[float, ...], whole: bool, expected: list[float]) -> None:
    assert LogAxis(values, 0, 100).ticks(whole) == pytest.approx(expected)


def test_a_contender_has_one_colour_in_all_charts() -> None:
    peers = [*known_peers(), "copy"]
    for names in (["pytorch", "tvm"], ["somebody", "pytorch", "another"], [*PALETTE], peers[: len(PALETTE)]):
        found = colours_of(names)
        assert list(found) == names
        assert len({*found.values()}) == len(names)
        assert {name: found[name] for name in names if name in PALETTE} == {
            name: PALETTE[name] for name in names if name in PALETTE
        }
    assert colours_of(["torch.compile", "PyTorch"]) == {
        "torch.compile": PALETTE["torch-compile"],
        "PyTorch": PALETTE["pytorch"],
    }


def test_a_picture_has_plain_colours() -> None:
    text = below_each_other([bars({"row": {"pytorch": 2.0, "somebody": 0.5}}, "times as long")], ["a note"])
    assert "var(" not in text
    bars_and_key = [each for each in ElementTree.fromstring(text).iter() if each.get("fill") not in (None, "#ffffff")]
    colours = [*colours_of(["pytorch", "somebody"]).values()]
    assert [each.get("fill") for each in bars_and_key] == 2 * colours


class Page(HTMLParser):
    """A parsed page; elements have to be closed in the order in which they were opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(path.read_text())
        self.close()
        assert self.opened == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))
        if name not in VOID:
            self.opened.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.opened.pop() == name

    def handle_data(self, text: str) -> None:
        if self.opened and self.opened[-1] not in ("style", "script"):
            self.text.append(text)

    def count(self, name: str, class_: str | None = None) -> int:
        return sum(found == name and class_ in (None, given.get("class")) for found, given in self.tags)

    def assert_loads_nothing(self) -> None:
        for name, attributes in self.tags:
            assert name not in ("link", "img", "iframe", "object")
            assert not attributes.keys() & {"src", "onerror", "onclick"}
            assert str(attributes.get("href", "#")).startswith("#")
        assert self.count("script") == 1


def page_of(folder: Path, *files: Path, options: tuple[str, ...] = ()) -> Page:
    output = folder / "report.html"
    result = tvmconv("report", *files, "-o", output, *options)
    assert result.exit_code == 0, result.output
    page = Page(output)
    page.assert_loads_nothing()
    return page


def trial(index: int, cost: float | None, stage: Stage = Stage.SEARCH, reason: str | None = None) -> record.Record:
    status = Status.CRASH if cost is None else Status.OK
    result = MeasureResult((cost,) if cost else (), status, reason, 0.1, 1.0 + index, DeviceFacts(f"CPU {HOSTILE}"))
    return record.Record.of(MeasureInput(TASK.target, TASK, TASK.space.configs[index], stage), result)


def suite_report(roofs: Roofs | None, name: str = "t21") -> bytes:
    times = {
        peer: Timing(median, 0.9 * median, 1.1 * median)
        for peer, median in {
            "tvmconv": 2e-6,
            "pytorch": 5e-6,
            "onnxruntime": 1e-6,
            "copy": 1.5e-6,
            "copy-kernel": 1.6e-6,
        }.items()
    }
    rows = [
        Row("tiny", name, "depthwise", 10**6, 10**5, "tuned", times, {"tvm": "not here"}, {}),
        Row(
            "tiny",
            "not-ours",
            "depthwise",
            10**6,
            10**5,
            None,
            {"pytorch": times["pytorch"]},
            {},
            {"tvmconv": HOSTILE},
        ),
    ]
    return msgspec.json.encode(Report({"kind": "llvm"}, DeviceFacts("CPU"), {"torch": "2"}, "warm", 9, roofs, rows))


def test_every_file_of_the_repository(tmp_path: Path) -> None:
    logs = [*(ROOT / "tuning_logs").glob("*.jsonl"), ROOT / "tuning_logs" / "exhaustive" / "t21.jsonl.gz"]
    files = [*(ROOT / "benchmarks").glob("*.json*"), *logs]
    page = page_of(tmp_path, *files)
    assert page.count("h2") == len(files)
    for path in files:
        assert path.name in page.text
    assert page.count("svg") >= 2 * len([*(ROOT / "benchmarks").glob("conv2d-*.json")]) + len(logs)
    for shown in ("mb-512x14", "tuned", "xgb", "cudnn fp32", "NVIDIA H100 80GB HBM3"):
        assert any(shown in text for text in page.text), shown


@pytest.mark.parametrize("roofs", [None, Roofs(1e11, 1e12), Roofs(1e10, 1e12)], ids=["no-roofs", "roofs", "cache"])
def test_a_benchmark(tmp_path: Path, roofs: Roofs | None) -> None:
    (tmp_path / "bench.json").write_bytes(suite_report(roofs))
    page = page_of(tmp_path, tmp_path / "bench.json", options=("--title", f"mine {HOSTILE}"))
    assert page.count("svg") == 2
    assert f"mine {HOSTILE}" in page.text
    assert {"2.5", "0.5", "geometric mean", "Took no part", "not here", HOSTILE} <= set(page.text)
    assert page.count("circle") == 3
    assert any("multiply-adds" in text for text in page.text)
    # The rows' copy moves 6.7e10 bytes a second: where memory is slower, it was one in a cache, with its own line.
    assert page.count("polyline") == (2 if roofs == Roofs(1e10, 1e12) else 1)
    values = [given["data-v"] for name, given in page.tags if name == "td" and given.get("data-v")]
    assert any(float(str(value)) == pytest.approx(2.5) for value in values)


def test_networks_have_bars(tmp_path: Path) -> None:
    times = {"tvmconv": Timing(1e-3, 9e-4, 2e-3), "pytorch": Timing(2.5e-3, 2e-3, 3e-3)}
    rows = [{"name": "resnet50", "batch": batch, "times": times} for batch in (1, 32)]
    (tmp_path / "networks.json").write_bytes(msgspec.json.encode({"device": {"name": "CPU"}, "rows": rows}))
    page = page_of(tmp_path, tmp_path / "networks.json")
    assert page.count("svg") == 1
    assert {"resnet50 1", "resnet50 32", "geometric mean", "2.5"} <= set(page.text)


def test_a_log(tmp_path: Path) -> None:
    records = [
        trial(0, 8e-6),
        trial(1, None, reason=HOSTILE),
        trial(2, 2e-6),
        trial(0, 8e-6, Stage.CONFIRM),
        trial(2, 2e-6, Stage.CONFIRM),
    ]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(map(record.encode, records)) + b'{"torn": ')
    page = page_of(tmp_path, log)
    assert {"crash", HOSTILE, "20.00%", "1 torn", "8", "2", "4"} <= set(page.text)
    assert page.count("svg") == 1
    (points,) = [given["points"] for name, given in page.tags if name == "polyline"]
    assert len(str(points).split()) == 3, "a step down at the third trial"


def test_a_log_in_which_everything_failed(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(record.encode(trial(0, None)))
    page = page_of(tmp_path, tmp_path / "log.jsonl")
    assert page.count("svg") == 0
    assert "100.00%" in page.text


def test_other_documents(tmp_path: Path) -> None:
    """Outputs of other commands have figures, lists of records, lines of text before, or a document on each line."""
    rows = [{"workload": json.loads(TASK.workload.to_json()), "us": [1.5, 2], "name": HOSTILE, "none": None}]
    (tmp_path / "one.json").write_text("some text\n" + json.dumps({"seconds": 3, "rows": rows}, indent=2))
    (tmp_path / "lines.gz").write_bytes(gzip.compress(b'{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n{"other": true}\n'))
    page = page_of(tmp_path, tmp_path / "one.json", tmp_path / "lines.gz")
    assert {str(TASK.workload), "1.5, 2", HOSTILE, "seconds", "other"} <= set(page.text)
    assert page.count("table") == 3
    kinds = tvmconv_json("report", tmp_path / "one.json", "-o", tmp_path / "r.html")["files"]
    assert kinds == {"one.json": "list"}


@pytest.mark.parametrize("content", [b"", b"no json\n", b"[1]", b"\xff\xfe", b"{" * 9999], ids=str)
def test_what_is_no_report_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    result = tvmconv("report", tmp_path / "file.json", "-o", tmp_path / "r.html")
    assert result.exit_code == 2
    assert re.search(r"file\.json.*expected a tuning log, or what a command", result.stderr)
    assert not (tmp_path / "r.html").exists()


def test_markup_escapes() -> None:
    assert tag("p", "<", tag("b", "&"), title='"') == '<p title="&quot;">&lt;<b>&amp;</b></p>'


def test_curves_fall_in_stairs_and_may_be_empty() -> None:
    """A workload none of whose trials has computed anything has no points."""
    nan = float("nan")
    drawn = below_each_other([curves({"falling": [nan, 4.0, 4.0, 1.0, 1.0], "none": [nan, nan]}, ("x", "y"))], [])
    falling, none = re.findall(r'<polyline[^>]*points="([^"]*)"', drawn)
    assert (len(falling.split()), none) == (4, "")
