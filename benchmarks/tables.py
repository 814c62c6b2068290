"""Tables of docs/benchmarks.md and the picture docs/figures.svg from the JSON beside this file:

    python benchmarks/tables.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; `TABLES` has the function that makes it. A ratio is
the time of a peer divided by tvmconv's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import floor, log10
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tvmconv.bench.html.charts import bars, below_each_other

FOLDER = Path(__file__).parent
PAGE, PICTURE = (FOLDER.parent / "docs" / name for name in ("benchmarks.md", "figures.svg"))
MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = dict[str, Any]
"""The results for a workload or a network, as `tvmconv.bench` describes them."""

OURS = ("tvmconv", "tvmconv-channels-last")
"""The names of tvmconv in PyTorch's two layouts."""

PEERS = {
    "`torch.compile`": ("torch-compile-half",),
    "PyTorch": ("pytorch", "pytorch-channels-last", "pytorch-half"),
    "PyTorch, TF32": ("pytorch-tf32", "pytorch-tf32-channels-last"),
    "PyTorch, float16": ("pytorch-fp16",),
    "cuBLAS": ("gemm", "gemm-channels-last"),
    "cuBLAS, TF32": ("gemm-tf32",),
    "PyTorch, cuBLAS": ("pytorch-channels-last", "gemm-channels-last"),
    "both in TF32": ("pytorch-tf32-channels-last", "gemm-tf32"),
    "ONNX Runtime": ("onnxruntime", "onnxruntime qdq"),
    "a copy": ("copy", "copy-kernel"),
    "Triton": ("triton",),
    "`causal_conv1d`": ("causal-conv1d",),
    "one size": ("known",),
}
"""The contenders that a peer's title stands for, of which the fastest counts."""

DEVICES = {"H200": "H200", "H100": "H100", "znver5": "Zen 5", "znver4": "Zen 4", "rocketlake": "Granite Rapids"}
"""The titles of devices, by a part of their names; LLVM's name for the Granite Rapids is that of another CPU."""


def read(file: str) -> dict[str, Any]:
    """Return the document of a file, by its name without folder and ending."""
    found: dict[str, Any] = json.loads((FOLDER / f"{file}.json").read_text())
    return found


@dataclass(frozen=True)
class Run:
    """One run of a benchmark on one device."""

    file: str
    """The name of its file."""
    date: str
    """The day on which it was measured."""
    type: str = "float32"
    """The type of the operands, or the precision."""
    peers: Sequence[str] = ("PyTorch",)
    """The titles of the peers beside which a table shows it."""
    suite: str = "networks"
    """The title of the suite, where the rows have none."""
    ours: Sequence[str] = OURS
    """The contenders that are tvmconv, of which the fastest counts."""

    @cached_property
    def document(self) -> dict[str, Any]:
        return read(self.file)

    @property
    def rows(self) -> list[Row]:
        """Return the rows that tvmconv has run on."""
        return [row for row in self.document["rows"] if set(self.ours) & set(row["times"])]

    @property
    def device(self) -> str:
        name = str(self.document["device"])
        return next(title for part, title in DEVICES.items() if part in name)

    @property
    def link(self) -> str:
        """The date, with a link to the data."""
        return f"[{self.date}](../benchmarks/{self.file}.json)"

    def seconds(self, row: Row, contenders: Sequence[str]) -> float | None:
        """Return the seconds of the fastest of some contenders; None if none has run.

        Of a time the median counts on a GPU, the fastest round on a CPU, which is shared.
        """
        statistic = "median" if "NVIDIA" in str(self.document["device"]) else "low"
        return min((float(row["times"][name][statistic]) for name in contenders if name in row["times"]), default=None)

    def ratio(self, row: Row, peer: str) -> float | None:
        """Return how many times as long as tvmconv a peer takes; None unless both have run."""
        times = self.seconds(row, PEERS[peer]), self.seconds(row, self.ours)
        return None if times[0] is None or times[1] is None else times[0] / times[1]

    def ms(self, row: Row) -> str:
        """Return the milliseconds of tvmconv."""
        found = self.seconds(row, self.ours)
        return "" if found is None else digits(1e3 * found)


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; columns without a value are left out."""
    columns = [column for column in zip(headers, *rows, strict=True) if any(column[1:])]
    head, *lines = zip(*columns, strict=True)
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(columns), *lines))


def digits(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def hundredths(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def span(values: Sequence[float], form: Callable[[Any], str] = hundredths) -> str:
    """Return the least and the greatest value, or the only one."""
    return "-".join(dict.fromkeys([form(min(values)), form(max(values))]))


def suites(*runs: Run) -> str:
    """Return a table with a row for each run of a whole suite beside each of its peers.

    The types, the devices and the dates are left out where there is one.
    """
    headers = ["suite", "layers", "type", "batch", "peer", "ratio", "slower on", "device", "measured"]
    return markdown(headers, without_constants(headers, [suite(run, peer) for run in runs for peer in run.peers]))


def without_constants(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return rows in which the types, the devices and the dates are empty where there is only one."""
    columns = list(zip(*rows, strict=True))
    for number, title in enumerate(headers):
        if title in ("type", "device", "measured") and len(set(columns[number])) == 1:
            columns[number] = ("",) * len(rows)
    return list(zip(*columns, strict=True))


def suite(run: Run, peer: str) -> list[str]:
    """Return the row of a run of a whole suite beside a peer."""
    rows = run.rows
    found = [(str(row["name"]), value) for row in rows if (value := run.ratio(row, peer)) is not None]
    ratios, slower = [value for _, value in found], [name for name, value in found if value < 1]
    return [
        " ".join(sorted({row.get("suite", run.suite) for row in rows})),
        f"{len(found)}" + f" of {len(rows)}" * (len(found) < len(rows)),
        run.type,
        span([batch(run, row) for row in rows], str),
        peer,
        f"{geometric_mean(ratios):.2f} ({span(ratios)})",
        slower[0] if len(slower) == 1 else str(len(slower) or ""),
        run.device,
        run.link,
    ]


def batch(run: Run, row: Row) -> int:
    """Return the number of images, of sequences, or of rows of a linear layer."""
    if "workload" in row:
        return int(row["workload"].split()[1].split("x")[0])
    shape = row.get("shape") or run.document.get("shape") or [row.get("batch", 1)]
    return int(shape[0])


def networks(batches: Sequence[int], *runs: Run) -> str:
    """Return a table with a row for each network and type of the runs.

    The types and the dates are left out where there is one.
    """
    peers = list(dict.fromkeys(peer for run in runs for peer in run.peers))
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        rows = {(row["name"], row.get("batch", 1)): row for row in run.rows}
        for name in dict.fromkeys(name for name, _ in rows):
            cells = [cell for size in batches for cell in network(run, rows[name, size], peers)]
            found[name, run.type] = [name, run.type, *cells, run.link]
    head = [f"batch {size}, ms" if len(batches) > 1 else "ms" for size in batches]
    headers = ["network", "type", *(title for first in head for title in (first, *peers)), "measured"]
    return markdown(headers, without_constants(headers, list(found.values())))


def network(run: Run, row: Row, peers: Sequence[str]) -> list[str]:
    """Return the milliseconds of tvmconv and the ratios of the peers."""
    return [run.ms(row), *(hundredths(run.ratio(row, peer)) for peer in peers)]


def gradients(runs: Mapping[str, Run]) -> str:
    """Return the geometric means of the ratios of PyTorch for convolutions and their gradients, and the least."""
    rows = []
    for operands, run in runs.items():
        kinds = [[run.ratio(row, "PyTorch") or 0 for row in run.rows if row["kind"] == kind] for kind in KINDS]
        means = [hundredths(geometric_mean(values)) for values in kinds]
        rows.append([operands, f"{len(kinds[0])}", *means, hundredths(min(map(min, kinds))), run.link])
    return markdown(["operands", "layers", "forward", "by input", "by weight", "least", "measured"], rows)


KINDS = ("forward", "input", "weight")
"""The kinds of rows of benchmarks/gradients.py: the convolution and its gradients."""


def training(run: Run) -> str:
    """Return the milliseconds of steps of training, and the ratio of PyTorch."""
    rows = [[row["network"], row["mode"], run.ms(row), hundredths(run.ratio(row, "PyTorch"))] for row in run.rows]
    return markdown(["network", "mode", "ms", "PyTorch"], rows)


def accuracy(cpu: str, gpu: str) -> str:
    """Return the root mean square errors of float32 convolutions by kind of data; † breaks a promise."""
    columns = [
        ("multiply-adds", cpu, "fma"),
        ("Zen 4: `float32`", cpu, "tvmconv"),
        ("H200: `strict`", gpu, "tvmconv-strict"),
        ("`float32`", gpu, "tvmconv"),
        ("`tf32`", gpu, "tvmconv-tf32"),
    ]
    rows = {file: {row["name"]: row for row in read(file)["rows"] if row["dtype"] == "float32"} for file in (cpu, gpu)}

    def cell(row: Row, name: str) -> str:
        return digits(row["errors"][name]["rms"]) + "†" * (name in row["broken"])

    lines = [[kind, *(cell(rows[file][kind], name) for _, file, name in columns)] for kind in DATA]
    return markdown(["data", *(title for title, _, _ in columns)], lines)


DATA = ("normal", "scattered", "tiny", "with spike", "positive, long sums")
"""The kinds of data whose errors differ from one another, of those that `benchmarks/accuracy.py` has."""


def tuners(file: str) -> str:
    """Return the least and the greatest number of trials that each tuner needs, over the workloads."""
    names = {"xgb": "`XGBTuner`", "ga": "`GATuner`", "random": "`RandomTuner`", "grid": "`GridSearchTuner`"}
    found = {name: [row["median"] for row in read(file)["rows"] if row["tuner"] == name] for name in names}
    return markdown(list(names.values()), [[span(found[name], "{:g}".format) for name in names]])


def calls(on_cpu: str, on_gpu: str) -> str:
    """Return the microseconds of a call from Python, on a CPU in the fastest round, by machine and kind of arrays."""
    found: dict[str, dict[str, str]] = {}
    for file in (on_cpu, on_gpu):
        for row in read(file)["rows"]:
            time = row["time"]["low" if file == on_cpu else "median"]
            found.setdefault(row["name"], {})[f"{file} {row['arrays']}"] = digits(1e6 * time)
    columns = (f"{on_cpu} torch", f"{on_cpu} numpy", f"{on_gpu} torch")
    rows = [[name, *(by.get(column, "") for column in columns)] for name, by in found.items()]
    return markdown(["call", "Zen 5: torch, µs", "NumPy, µs", "H200: torch, µs"], rows)


TF32 = ("PyTorch, TF32",)
ON_CPU = ("PyTorch", "ONNX Runtime")

COMPILE = ("`torch.compile`",)
DRAWN = Run("networks-h200-float16-compile", "2026-11-30", "float16", COMPILE)
"""The run of the picture, which is in a table too."""

TABLES: dict[str, Callable[[], str]] = {
    "gpu-suites": partial(
        suites,
        Run("depthwise-h200", "2026-11-22"),
        Run("depthwise-h200-float16", "2026-11-22", "float16"),
        Run("tensor-h200-batch-1", "2026-11-23"),
        Run("tensor-h200-batch-128-float16", "2026-11-25", "float16"),
        Run("networks-h200-float16", "2026-11-25", "float16", COMPILE),
        Run("tensor-h100-batch-128-float32", "2026-11-27"),
        Run("tensor-h100-batch-1-tf32", "2026-11-27", "TF32", TF32),
        Run("tensor-h100-batch-128-tf32", "2026-11-27", "TF32", TF32),
        Run("tensor-h100-batch-128-float16", "2026-11-27", "float16"),
        Run("grouped-h100-float16", "2026-11-26", "float16"),
        Run("pointwise-h100-tf32", "2026-11-27", "TF32", ("both in TF32",)),
        Run("pointwise-h100-float16", "2026-11-27", "float16", ("PyTorch, cuBLAS",)),
        Run("pointwise-h100-int8", "2026-11-27", "int8", ("cuBLAS",)),
        Run("linear-h100-float32", "2026-11-26", "float32", ("cuBLAS",)),
        Run("linear-h100-tf32", "2026-11-27", "TF32", ("cuBLAS, TF32",)),
        Run("linear-h100-float16", "2026-11-27", "float16", ("cuBLAS",)),
        Run("linear-h100-int8", "2026-11-26", "int8", ("cuBLAS",)),
        Run("networks-h100-float32", "2026-11-26", "float32", TF32),
        Run("networks-h100-bfloat16", "2026-11-26", "bfloat16", COMPILE),
    ),
    "gpu-networks": partial(networks, (1, 32), DRAWN, Run("networks-h200-choices", "2026-11-30")),
    "zen5-suites": partial(
        suites,
        Run("depthwise-cpu-2-threads", "2026-11-21", peers=ON_CPU),
        Run("conv2d-cpu-zen5-batch-1", "2026-11-30", peers=ON_CPU),
        Run("conv2d-cpu-zen5-batch-8", "2026-11-25", peers=ON_CPU),
        Run("networks-cpu-zen5-bfloat16", "2026-11-26", "bfloat16", ("ONNX Runtime",)),
        Run("quantized-cpu-zen5", "2026-11-25", "int8", ("ONNX Runtime",), ours=("tvmconv qdq",)),
    ),
    "zen5-networks": partial(networks, (1,), Run("networks-cpu-zen5", "2026-11-30", peers=ON_CPU)),
    "zen4-suites": partial(
        suites,
        Run("depthwise-cpu-zen4", "2026-11-22", peers=ON_CPU),
        Run("conv2d-cpu-zen4-batch-1", "2026-11-23", peers=ON_CPU),
    ),
    "zen4-networks": partial(networks, (1,), Run("networks-cpu-zen4", "2026-11-24", peers=ON_CPU)),
    "granite-rapids": partial(
        suites,
        Run("conv2d-cpu-granite-rapids-batch-1", "2026-11-26"),
        Run("networks-cpu-granite-rapids", "2026-11-26", peers=("ONNX Runtime",)),
        Run("networks-cpu-granite-rapids-bfloat16", "2026-11-26", "bfloat16"),
        Run("quantized-cpu-granite-rapids", "2026-11-26", "int8", ("ONNX Runtime",), ours=("tvmconv qdq",)),
    ),
    "sparse": partial(
        suites,
        Run("sparse-h200-batch-64", "2026-11-22", peers=("PyTorch", "PyTorch, TF32", "PyTorch, float16")),
        Run("sparse-h200-batch-1", "2026-11-22"),
        Run("sparse-cpu-zen4", "2026-11-22", peers=ON_CPU),
    ),
    "open-sizes": partial(
        suites,
        Run("open-sizes-h200", "2026-11-23", "both", ("one size", "PyTorch"), ours=("open",)),
        Run("open-sizes-cpu-zen4", "2026-11-23", "float32", ("one size", "ONNX Runtime"), ours=("open",)),
    ),
    "sequences": partial(
        suites,
        Run("sequences-h200", "2026-11-24", "all", ("PyTorch", "a copy"), "sequences"),
        Run("sequences-h100-others", "2026-11-26", "float32, bfloat16", ("`causal_conv1d`", "Triton"), "sequences"),
    ),
    "gradients": partial(
        gradients,
        {
            "float32": Run("gradients-h100", "2026-11-25"),
            "float32, 5x5 to 31x31": Run("gradients-h100-large", "2026-11-26"),
            "float32, channels_last": Run("gradients-h100-channels-last", "2026-11-26"),
            "float16": Run("gradients-h100-float16", "2026-11-26"),
            "float16, channels_last": Run("gradients-h100-float16-channels-last", "2026-11-26"),
            "Zen 5, batch 4: float32": Run("gradients-cpu-zen5-float32", "2026-11-26"),
        },
    ),
    "training": partial(training, Run("training-h100-channels-last", "2026-11-26")),
    "accuracy": partial(accuracy, "accuracy-cpu-zen4", "accuracy-h200"),
    "calls": partial(calls, "overhead-cpu-zen5", "overhead-h200"),
    "tuners": partial(tuners, "tuners-h100"),
}
"""The functions that make the tables, by the names that the page has for them."""


def renewed(page: str) -> str:
    """Return the page with all of its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", page)


def picture() -> str:
    """Return the picture of the README, in which networks have bars of how many times as fast as a peer tvmconv is."""
    (peer,) = DRAWN.peers
    found = {f"{row['name']}, batch {row['batch']}": {"tvmconv": DRAWN.ratio(row, peer) or 0} for row in DRAWN.rows}
    chart = bars(found, f"tvmconv is this many times as fast as {peer.strip('`')}")
    note = f"Whole networks in {DRAWN.type}, {DRAWN.document['device']['name']}, one run of {DRAWN.date}"
    return below_each_other([chart], [note]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
    PICTURE.write_text(picture())
