"""Drawing of docs/figures.svg and docs/roofline.svg from the JSON beside this file: python benchmarks/plots.py"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean

from measured import BETTER, COPY, OURS, ROOT, Row, median, read

from tvmconv.bench.html.charts import bars, points

PEERS = {
    "PyTorch": ("pytorch",),
    "its better layout": BETTER,
    "PyTorch in TF32": ("pytorch-tf32",),
    "torch.compile": ("torch-compile",),
    "torch.compile in half": ("torch-compile-half",),
    "ONNX Runtime": ("onnxruntime",),
    "our dense kernels": ("tvmconv-dense",),
}


@dataclass(frozen=True)
class Group:
    """Results measured together: the rows of files in benchmarks/, or those of a network or a batch size."""

    files: str
    """The names of files, joined by "+"; rows of later files replace earlier ones of the same name."""
    only: tuple[str | None, int] | None = None
    """The network, None for all, and the batch size."""

    def rows(self) -> list[Row]:
        """Return the rows."""
        found = read("+".join(f"benchmarks/{file}.json" for file in self.files.split("+")))
        rows = {(row["name"], row.get("batch")): row for row in found}
        return [row for (name, batch), row in rows.items() if self.only in (None, (name, batch), (None, batch))]


DEPTHWISE = Group("depthwise-h200")
DENSE = Group("conv2d-h200-batch-128")

FLOAT16 = (
    "networks-h100-float16+networks-h100-float16-joined+networks-h100-float16-channel-rows"
    "+networks-h100-float16-early-launches"
)

GROUPS = {
    "H200: depthwise": DEPTHWISE,
    "H200: dense, batch 1": Group("conv2d-h200-batch-1"),
    "H200: dense, batch 128": DENSE,
    "H200: 90% zeros, batch 64": Group("sparse-h200-batch-64"),
    "H200: networks, batch 1": Group("networks-h200-records-batch-1"),
    "H200: networks, batch 32": Group("networks-h200-records-batch-32"),
    **{f"H100: float16, batch {batch}": Group(FLOAT16, (None, batch)) for batch in (1, 32, 128)},
    "H200: VGG-16, batch 1": Group("networks-h200", ("vgg16", 1)),
    "H200: VGG-16, batch 32": Group("networks-h200", ("vgg16", 32)),
    "H200: ResNet-50, 90% zeros": Group("networks-h200", ("resnet50", 32)),
    "CPU: depthwise, 1 thread": Group("depthwise-cpu-zen4-1-thread"),
    "CPU: depthwise": Group("depthwise-cpu-zen4"),
    "CPU: dense, batch 1": Group("conv2d-cpu-zen5-batch-1"),
    "CPU: dense, batch 8": Group("conv2d-cpu-zen5-batch-8"),
    "CPU: 90% zeros": Group("sparse-cpu-zen4"),
    "CPU: networks": Group("networks-cpu-zen5"),
    "CPU: ResNet-50, 90% zeros": Group("networks-cpu-zen4-pruned"),
}
"""The groups of rows in docs/figures.svg, by title."""

H200_FLOPS = 132 * 128 * 2 * 1.98e9
"""The most floating-point operations per second of an H200 SXM in float32.

Its 132 multiprocessors have 128 units each that multiply and add, at a highest clock of 1.98 GHz.
"""


def means(rows: list[Row]) -> dict[str, float]:
    """Return the geometric mean of times relative to tvmconv's for each peer that has run on all rows."""
    return {
        peer: geometric_mean([median(row, *names) / median(row, OURS) for row in rows])
        for peer, names in PEERS.items()
        if all(name in row["times"] for name in names for row in rows)
    }


def figures() -> str:
    """Draw the geometric mean of each group, beside each peer."""
    chart = bars({name: means(group.rows()) for name, group in GROUPS.items()}, "times as long as tvmconv takes", 1)
    return chart.file(
        [
            "Geometric means; left of 1 tvmconv loses. float32, strict on GPUs but for TF32, where not float16.",
            "CPU: two cores of an EPYC, of Zen 5 for dense and networks, else Zen 4; nothing set, batch 1 unless said.",
            "ResNet-50 with 90% zeros on the H200 is at batch 32; those in float16 are 15 networks.",
        ]
    )


def roofline() -> str:
    """Draw the rates of convolutions on an H200 below its roofs."""
    rows = [*DEPTHWISE.rows(), *DENSE.rows()]
    series = {
        name: [(row["name"], intensity(row), row["flops"] / median(row, *contenders) / 1e9) for row in rows]
        for name, contenders in ((OURS, (OURS,)), ("PyTorch", ("pytorch",)))
    }
    largest = max(rows, key=lambda row: row["bytes"])
    memory = bandwidth(largest)
    cache = max(map(bandwidth, rows))
    ends = min(map(intensity, rows)) / 1.5, max(map(intensity, rows)) * 1.5
    roofs = [
        [(x, min(x * speed, H200_FLOPS) / 1e9) for x in (ends[0], H200_FLOPS / speed, ends[1])]
        for speed in (memory, cache)
    ]
    return points(series, roofs, ("FLOP for each byte of input, weight and output", "GFLOP/s")).file(
        [
            f"Lines: a copy in memory, {memory / 1e12:.1f} TB/s, and in the L2, {cache / 1e12:.1f} TB/s, where small",
            f"workloads are; {H200_FLOPS / 1e12:.0f} TFLOP/s. PyTorch's points above them are FFTs of cuDNN.",
        ]
    )


def intensity(row: Row) -> float:
    return float(row["flops"] / row["bytes"])


def bandwidth(row: Row) -> float:
    """Return the bytes per second of the faster copy, which reads and writes as many bytes as the convolution."""
    return float(row["bytes"] / median(row, *COPY))


PLOTS = {"figures.svg": figures, "roofline.svg": roofline}
"""The functions that draw each file of docs/."""

if __name__ == "__main__":
    for name, draw in PLOTS.items():
        (ROOT / "docs" / name).write_text(draw() + "\n")
