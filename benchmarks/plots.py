"""Draws docs/figures.svg and docs/roofline.svg anew from the JSON beside this file: python benchmarks/plots.py"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean

from tables import BETTER, COPY, OURS, ROOT, Row, median, read

from tvmconv.report.charts import bars, points

PEERS = {
    "PyTorch": ("pytorch",),
    "its better layout": BETTER,
    "PyTorch in TF32": ("pytorch-tf32",),
    "torch.compile": ("torch-compile",),
    "ONNX Runtime": ("onnxruntime",),
    "our dense kernels": ("tvmconv-dense",),
}

DENSE_128 = "conv2d-h100-batch-128.json+conv2d-h100-batch-128-conv4-tuned.json"

SUITES = {
    "H100: depthwise": "depthwise-h100.json",
    "H100: dense, batch 1": "conv2d-h100-batch-1.json",
    "H100: dense, batch 128": DENSE_128,
    "H100: 90% zeros, batch 64": "sparse-h100-batch-64.json",
    "H100: networks, batch 1": "networks-h100-batch-1.json+networks-h100-batch-1-mobilenet.json",
    "H100: networks, batch 32": "networks-h100-batch-32.json",
    "H200: VGG-16, batch 1": "networks-h200.json vgg16 1",
    "H200: VGG-16, batch 32": "networks-h200.json vgg16 32",
    "H200: ResNet-50, 90% zeros": "networks-h200.json resnet50 32",
    "CPU: depthwise, 1 thread": "depthwise-cpu-zen4-1-thread.json",
    "CPU: depthwise": "depthwise-cpu-zen4.json",
    "CPU: dense, batch 1": "conv2d-cpu-zen4-batch-1.json",
    "CPU: dense, batch 8": "conv2d-cpu-zen4-batch-8.json",
    "CPU: 90% zeros": "sparse-cpu-zen4.json",
    "CPU: networks": "networks-cpu-zen4.json",
    "CPU: ResNet-50, 90% zeros": "networks-cpu-zen4-pruned.json",
}
"""The files of each row of docs/figures.svg, or one with the network and the batch that are meant."""

H100_FLOPS = 132 * 128 * 2 * 1.98e9
"""Floating-point operations in a second that an H100 SXM can do in float32 at most: its multiprocessors, each with 128
units that multiply and add, at the highest clock."""


def merged(meant: str) -> list[Row]:
    """The rows that an entry of `SUITES` means; those of later files replace earlier ones of the same name."""
    files, *only = meant.split()
    found = read("+".join(f"benchmarks/{file}" for file in files.split("+")))
    rows = {(row["name"], str(row.get("batch"))): row for row in found}
    return [row for key, row in rows.items() if not only or key == tuple(only)]


def means(rows: list[Row]) -> dict[str, float]:
    """How many times as long as tvmconv each peer takes that has run on all rows, in the geometric mean."""
    found = {}
    for peer, names in PEERS.items():
        if names == BETTER and not all(name in row["times"] for name in BETTER for row in rows):
            continue
        taken = [seconds for row in rows if (seconds := median(row, *names)) is not None]
        if len(taken) == len(rows):
            ours = [median(row, OURS) for row in rows]
            found[peer] = geometric_mean([theirs / own for theirs, own in zip(taken, ours, strict=True)])
    return found


def figures() -> str:
    """The geometric mean of each suite and group of networks, beside each peer."""
    chart = bars({name: means(merged(files)) for name, files in SUITES.items()}, "times as long as tvmconv takes", 1)
    return chart.file(
        [
            "Geometric means; left of 1 tvmconv loses. float32, in strict float32 on GPUs but for TF32.",
            "CPU: two cores of an EPYC of Zen 4, nothing set, default configurations, batch 1 unless said.",
            "ResNet-50 with 90% zeros on the H200 is at batch 32.",
        ]
    )


def roofline() -> str:
    """The rates of convolutions on an H100 below what it can do."""
    rows = [*merged("depthwise-h100.json"), *merged(DENSE_128)]
    series = {
        name: [(row["name"], intensity(row), row["flops"] / median(row, *contenders) / 1e9) for row in rows]
        for name, contenders in ((OURS, (OURS,)), ("PyTorch", ("pytorch",)))
    }
    largest = max(rows, key=lambda row: row["bytes"])
    memory = bandwidth(largest)
    cache = max(map(bandwidth, rows))
    ends = min(map(intensity, rows)) / 1.5, max(map(intensity, rows)) * 1.5
    roofs = [
        [(x, min(x * speed, H100_FLOPS) / 1e9) for x in (ends[0], H100_FLOPS / speed, ends[1])]
        for speed in (memory, cache)
    ]
    return points(series, roofs, ("FLOP for each byte of input, weight and output", "GFLOP/s")).file(
        [
            f"Lines: a copy in memory, {memory / 1e12:.1f} TB/s, and in the L2, {cache / 1e12:.1f} TB/s, where small",
            f"workloads are; {H100_FLOPS / 1e12:.0f} TFLOP/s. PyTorch's points above them are FFTs of cuDNN.",
        ]
    )


def intensity(row: Row) -> float:
    return float(row["flops"] / row["bytes"])


def bandwidth(row: Row) -> float:
    """Bytes in a second of the faster copy, which reads and writes as many bytes as the convolution."""
    return float(row["bytes"] / median(row, *COPY))


PLOTS = {"figures.svg": figures, "roofline.svg": roofline}
"""What draws each file of docs/."""

if __name__ == "__main__":
    for name, draw in PLOTS.items():
        Path(ROOT / "docs" / name).write_text(draw() + "\n")
