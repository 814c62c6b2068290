"""`tvmconv log`: the summaries of logs, and the records that are kept."""

from __future__ import annotations

import gzip
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.autotvm import record, task, tidy
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record
from tvmconv.targets import DeviceFacts

SMALL, LARGE = (
    task.create(ConvWorkload.depthwise((1, 4, size, size), (4, 1, 3, 3), padding="VALID"), "llvm") for size in (6, 9)
)
HERE = DeviceFacts("a CPU", threads=2)


def trial(
    of: task.Task,
    index: int,
    *costs: float,
    status: Status = Status.OK,
    stage: Stage = Stage.SEARCH,
    device: DeviceFacts = HERE,
    at: float = 0.0,
) -> Record:
    """Return the record of the configuration at an index of the space; costs are in µs."""
    seconds = tuple(cost / 1e6 for cost in costs)
    result = MeasureResult(seconds, status, None if costs else "a reason", 0.1, at, device)
    return Record.of(MeasureInput(of.target, of, of.space.configs[index], stage), result)


SEARCH = [
    trial(SMALL, 0, 8.0, at=1),
    trial(SMALL, 3, status=Status.CRASH, at=2),
    trial(SMALL, 1, 2.0, at=3),
    trial(SMALL, 2, 4.0, at=4),
]
CONFIRM = [
    trial(SMALL, index, cost, stage=Stage.CONFIRM, at=5 + 0.1 * turn)
    for turn, costs in enumerate([(7.0, 6.0, 3.0), (7.0, 6.0, 3.5), (7.0, 6.0, 4.5)])
    for index, cost in enumerate(costs)
]
OTHERS = [trial(LARGE, 5, 10.0, at=6), trial(SMALL, 4, 1.0, device=DeviceFacts("another", threads=2), at=7)]
BEGUN = trial(SMALL, 6, status=Status.STARTED, at=8)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of two workloads and two devices, with lines that are no records."""
    path = tmp_path / "log.jsonl"
    record.append(path, [*SEARCH, *CONFIRM, *OTHERS, BEGUN])
    with path.open("ab") as file:
        file.write(b'[1]\n{"input": ["llvm", ')
    return path


def test_best(log: Path) -> None:
    """The confirmed median decides, not the luckiest trial, and devices do not compete."""
    small, large, elsewhere = tvmconv_json("log", "best", log)["records"]
    assert [found["config"]["index"] for found in (small, large, elsewhere)] == [2, 5, 4]
    assert small["result"][0] == [3e-6, 3.5e-6, 4.5e-6]
    table = tvmconv("log", "best", log)
    header, first, second, _ = table.stdout.splitlines()
    assert header.rstrip().endswith("configuration")
    assert " 3.5 " in first
    assert first.split()[first.split().index("3.5") + 1] == "2"  # 7 µs / 3.5 µs
    assert "tiles=" in second
    assert table.stderr == f"{log}: lines left out: 1 of another format, 1 cut off\n"


def test_show(log: Path) -> None:
    report = tvmconv_json("log", "show", log)
    assert len(report["records"]) == len(SEARCH + CONFIRM + OTHERS)
    assert report["statuses"] == {"ok": 14, "crash": 1}
    assert report["devices"] == {"a CPU, 2 threads": 14, "another, 2 threads": 1}
    assert report["skipped"] == {"foreign": 1, "torn": 1}
    assert [found["config"]["index"] for found in report["under_way"]] == [6]
    (failed,) = tvmconv_json("log", "show", log, "--status", "crash", "--workload", "6x6")["records"]
    assert failed["config"]["index"] == 3
    *rows, trials, devices, versions, begun = tvmconv("log", "show", log).stdout.splitlines()
    assert len(rows) == 1 + 15
    assert "a reason" in rows[2]
    assert trials == "records: 14 ok; 1 crash"
    assert devices.startswith("devices: 14 a CPU")
    assert versions.startswith(f"versions: 15 cpu/depthwise {SMALL.template.VERSION}, tvmconv ")
    assert begun.startswith("never ended: depthwise 1x4x6x6")


def test_show_says_that_there_is_nothing(log: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert tvmconv("log", "show", empty).stderr == f"{empty}: no records\n"
    assert (
        "none of 15 records has that workload and status" in tvmconv("log", "show", log, "--workload", "absent").stderr
    )
    assert tvmconv("log", "best", empty).stderr == "no trial worked: `tvmconv log show` lists the trials\n"


def test_plot(log: Path, tmp_path: Path) -> None:
    assert tidy.best_so_far([SEARCH[1], *SEARCH]) == pytest.approx([float("nan"), 8, 8, 2, 2], nan_ok=True)
    path = tmp_path / "curve.svg"
    assert tvmconv("log", "show", log, "--plot", path).exit_code == 0
    curves = [each for each in ElementTree.parse(path).iter() if each.tag.endswith("polyline")]
    assert curves
    assert all(each.attrib["points"] and each.attrib["stroke"].startswith("#") for each in curves)


def test_merge(log: Path, tmp_path: Path) -> None:
    """OUT has each record once, in the order of time, including those that it had before."""
    merged, later = tmp_path / "merged.jsonl.gz", tmp_path / "later.jsonl"
    record.append(later, [trial(LARGE, 1, 9.0, at=0), SEARCH[0]])
    first = tvmconv_json("log", "merge", log, "-o", merged)
    assert first == {"file": str(merged), "read": 15, "written": 16}  # the trial without an end is kept
    assert tvmconv_json("log", "merge", later, log, "-o", merged)["written"] == 17
    held = record.load_from_file(merged)
    assert held.records == [trial(LARGE, 1, 9.0, at=0), *SEARCH, *CONFIRM, *OTHERS]
    assert held.under_way == [BEGUN]
    assert gzip.decompress(merged.read_bytes()).count(b"\n") == 17


def test_prune(log: Path) -> None:
    old = [
        msgspec.structs.replace(OTHERS[0], tvm_version="0.1"),
        msgspec.structs.replace(OTHERS[0], versions=msgspec.structs.replace(OTHERS[0].versions, template=0)),
    ]
    record.append(log, old)
    before = log.read_bytes()
    elsewhere = log.with_name("pruned.jsonl")
    assert tvmconv_json("log", "prune", log, "-o", elsewhere)["written"] == 14
    assert log.read_bytes() == before
    assert tvmconv("log", "prune", log).stdout == f"{log}: 14 records of 17\n"
    kept = [one for one in (*SEARCH, *CONFIRM, *OTHERS) if one.status is Status.OK]
    assert record.load_from_file(log) == record.load_from_file(elsewhere) == record.Log(kept)
    assert sorted(path.name for path in log.parent.iterdir()) == ["log.jsonl", "pruned.jsonl"]


def test_prune_keeps_records_of_templates_that_it_does_not_know(log: Path) -> None:
    """The program that registers a template may use them, unless they failed or TVM has changed."""
    absent = msgspec.structs.replace(OTHERS[0], input=(OTHERS[0].target, "cpu/absent", *OTHERS[0].input[2:]))
    failed = msgspec.structs.replace(SEARCH[1], input=absent.input)
    record.append(log, [absent, msgspec.structs.replace(absent, tvm_version="0.1"), failed])
    result = tvmconv("log", "prune", log)
    assert result.stdout == f"{log}: 15 records of 18\n"
    assert result.stderr.endswith(f"{log}: kept 1 record of cpu/absent, which is no schedule of tvmconv\n")
    assert [one for one in record.load_from_file(log) if one.template == "cpu/absent"] == [absent]


def test_compact_keeps_what_decides(log: Path) -> None:
    best = tvmconv_json("log", "best", log)
    assert tvmconv_json("log", "compact", log)["written"] == 3 + 3 + 2
    kept = record.load_from_file(log).records
    assert {(one.config.index, one.stage) for one in kept if one.workload == SMALL.workload} == {
        (0, Stage.CONFIRM), (2, Stage.CONFIRM), (4, Stage.SEARCH)
    }  # fmt: skip
    assert tvmconv_json("log", "best", log) == best


@pytest.mark.parametrize(
    "command",
    [
        ["show", "FILE"],
        ["best", "LOG", "FILE"],
        ["merge", "FILE", "-o", "LOG"],
        ["prune", "FILE"],
        ["compact", "LOG", "-o", "FILE"],
        ["merge", "LOG", "-o", "FILE"],
    ],
    ids=" ".join,
)
def test_what_is_no_log_is_refused(command: list[str], log: Path, tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("# not a log\n")
    result = tvmconv("log", *({"FILE": file, "LOG": log}.get(argument, argument) for argument in command))
    assert result.exit_code == 2
    assert "README.md'; expected a tuning log" in result.stderr
    assert result.stdout == ""
    assert file.read_text() == "# not a log\n"


def test_a_writer_that_waited_finds_the_new_file(log: Path) -> None:
    """A record appended while a log is rewritten goes to the new file, not to the one replaced."""
    import threading

    late = trial(LARGE, 9, 5.0, at=9)
    writer = threading.Thread(target=record.append, args=(log, [late]))

    def edit(there: record.Log) -> list[Record]:
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        return there.records[:1]

    tidy.rewrite(log, edit)
    writer.join()
    assert record.load_from_file(log).records == [SEARCH[0], late]
