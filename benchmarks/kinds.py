"""The kinds of tables of docs/benchmarks.md: what names a row, and its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean

from columns import (
    SPARSITIES,
    Column,
    Estimate,
    all_times,
    crossover,
    duration,
    of,
    percent,
    tenths,
    three_digits,
    times,
    whole,
)
from measured import BETTER, COPY, OUR_LAYOUTS, OURS, Row, median, ran, read


@dataclass(frozen=True)
class Kind:
    """The common properties of the tables of a kind. A column without a single value is left out."""

    key: Callable[[Row], str]
    """A function that names a row; rows of several files with the same name are one line."""
    title: str
    columns: Sequence[Column]
    last: str = "geometric mean"
    grouped: str | None = None
    """The field that tells rows of the same name apart, where they are one line."""
    needed: Set[str] = frozenset()
    """The contenders without which a row is left out."""


def workload_name(row: Row) -> str:
    return str(row["name"])


def network_name(row: Row) -> str:
    pruned = "" if row["sparsity"] is None else f", {row['sparsity']:.0%} zeros"
    return f"{row['name']}{pruned}" + (f", batch {row['batch']}" if row["batch"] > 1 else "")


def tuned_workload(row: Row) -> str:
    """Return the name that the suites have for the workload."""
    (name,) = (each["name"] for each in read("benchmarks/depthwise-h100.json") if each["workload"] == row["workload"])
    return str(name)


def beside(file: int, name: str, first: Column, *rest: Column) -> list[Column]:
    """Return the columns for one of several files; the first column names the file."""
    return [replace(column, file=file) for column in (replace(first, title=f"{name}: {first.title}"), *rest)]


def extreme(title: str, name: str) -> Column:
    """Return a column of milliseconds of the fastest or the slowest round."""
    return Column(title, lambda row: 1e3 * row["times"][OURS][name], three_digits)


def rate(title: str, unit: float, *contenders: str) -> Column:
    """Return a column of floating-point operations per second, in a unit."""
    return Column(title, lambda row: row["flops"] / median(row, *contenders) / unit, three_digits)


TIME = duration("tvmconv, µs", OURS)
MILLISECONDS = duration("tvmconv, ms", OURS, unit=1e-3)
TIMES_COPY = Column("times copy", lambda row: median(row, OURS) / median(row, *COPY), last=geometric_mean)
PYTORCH = all_times({"PyTorch": "pytorch", "channels-last": "pytorch-channels-last"})
ONNXRUNTIME = times("ONNX Runtime", "onnxruntime")
OUR_DENSE = times("our dense", "tvmconv-dense")
SIGNAL = Column("dB", lambda row: row["ratios"][OURS] if row.get("top1") else None, whole)
TOP1 = of("top1", "top-1, %", OURS, percent)
IM2COL, IM2WIN = {"im2col and cuBLAS": "im2col-gemm"}, {"our im2win": "tvmconv-im2win"}

SPARSE = [
    TIME,
    times("float32", *BETTER),
    *all_times(
        {"TF32": "pytorch-tf32", "float16": "pytorch-fp16", "quarter": "pytorch-quarter", "SpMM": "im2col-spmm"}
    ),
    OUR_DENSE,
]

HALVES = [TIME, times("times PyTorch's better layout", *BETTER), TIMES_COPY]
DEPTHWISE_ON_GPU = [
    TIME,
    duration("PyTorch", "pytorch"),
    duration("copy", *COPY),
    times("times PyTorch", "pytorch"),
    times("times its better layout", *BETTER),
    TIMES_COPY,
    times("with epilogue", OURS, over=("tvmconv-plain",), file=1),
    *beside(2, "float16", *HALVES),
    *beside(3, "bfloat16", *HALVES),
]

TENSOR_CORES = [
    duration("tvmconv, µs", *OUR_LAYOUTS),
    rate("TFLOP/s", 1e12, *OUR_LAYOUTS),
    times("times PyTorch", *BETTER, over=OUR_LAYOUTS),
    times("times PyTorch in TF32", "pytorch-tf32-channels-last", over=OUR_LAYOUTS),
    times("times a matrix product", "gemm", "gemm-channels-last", over=OUR_LAYOUTS),
    times("times one in TF32", "gemm-tf32", over=OUR_LAYOUTS),
    times("our NCHW", OURS, over=OUR_LAYOUTS),
    times("our channels-last", OUR_LAYOUTS[1], over=OUR_LAYOUTS),
    times("without tensor cores", "tvmconv-direct", over=OUR_LAYOUTS),
]


def memory(title: str, contender: str) -> Column:
    """Return a column of megabytes beside operands and output; by formula for im2col where it found no room."""

    def value(row: Row) -> float | None:
        measured, formulas = row["memory"]["measured"], row["memory"]["formulas"]
        if contender in measured:
            return float(measured[contender] / 1e6)
        return Estimate(formulas["im2col"] / 1e6) if contender == "im2col-gemm" else None

    return Column(title, value, whole, sum)


MEMORY = {
    OURS: OURS, **IM2WIN, "PyTorch": "pytorch", "channels-last": "pytorch-channels-last",
    "TF32": "pytorch-tf32", **IM2COL,
}  # fmt: skip


def share_without(name: str) -> Column:
    """Return a column of the share of its speed that a kernel has without one of its optimizations."""

    def value(row: Row) -> float | None:
        return row["time"]["median"] / row["without"][name]["time"]["median"] if name in row["without"] else None

    return Column(name, value, percent, geometric_mean)


def zeros(share: float) -> Column:
    """Return a column of the times of dense cuDNN relative to tvmconv's with that share of zeros."""
    column = times(f"{share:.0%}", "pytorch", last=None)
    return Column(column.title, lambda rows: column.value(rows[share]) if share in rows else None)


def pays(title: str, peer: str) -> Column:
    """Return a column of the share of zeros from which tvmconv is faster than a peer."""

    def value(rows: Row) -> str | None:
        if (found := crossover(rows, peer)) is None:
            return None
        return f"{found:.0%} or less" if found == min(rows) > 0 else f"{found:.0%}"

    return Column(title, value)


def trials(title: str, tuner: str) -> Column:
    return Column(title, lambda rows: f"{rows[tuner]['median']:g}")


def of_gradient(kind: str) -> list[Column]:
    """Return the columns of a convolution, or of one of its gradients: its time, and those of PyTorch and a copy."""

    def of_kind(value: Callable[[Row], float | str | None], rows: Row) -> float | str | None:
        return value(rows[kind]) if kind in rows else None

    columns = duration(f"{kind}, µs", OURS), times("times PyTorch", "pytorch"), times("times copy", OURS, over=["copy"])
    return [replace(column, value=partial(of_kind, column.value)) for column in columns]


def spread(title: str, contender: str) -> Column:
    """Return a column of the fastest and the slowest round of a contender, in milliseconds."""

    def value(row: Row) -> str:
        timing = row["times"][contender]
        return f"{three_digits(1e3 * timing['low'])} to {three_digits(1e3 * timing['high'])}"

    return Column(title, value)


def between(row: Row) -> list[Row]:
    """Return the functions of a network that are neither convolutions nor products."""
    return [each for each in row["kernels"] if "bytes" in each]


def micros(functions: Sequence[Row], name: str = "us") -> float:
    return sum(float(each[name]) for each in functions)


def copies(functions: Sequence[Row]) -> float:
    """Return how many times as long as copies of their bytes functions take."""
    return micros(functions) / micros(functions, "copy_us")


def slow(row: Row) -> list[Row]:
    """Return the functions between convolutions that take more than 1.5 copies."""
    return [each for each in between(row) if copies([each]) > 1.5]


def slowest(row: Row) -> str | None:
    """Return how many copies the slowest function takes, and its name and share, of those with a hundredth of time."""
    total = micros(row["kernels"])
    long = [each for each in between(row) if each["us"] > total / 100]
    found = max(long, key=lambda each: copies([each]), default=None)
    return found and f"{copies([found]):.2f} (`{found['name']}`, {found['us'] / total:.0%})"


def over_sizes(title: str, peer: str, summary: Callable[[Sequence[float]], float]) -> Column:
    """Return a column for networks at several sizes: times of one build for all, relative to a peer's."""

    def value(sizes: Row) -> float | None:
        ratios = [median(row, "open") / median(row, peer) for row in sizes.values() if ran(row, peer)]
        return summary(ratios) if ratios else None

    return Column(title, value)


def memory_over_sizes(title: str, when: str) -> Column:
    """Return a column for networks at several sizes: the most megabytes taken since the network was loaded."""
    return Column(title, lambda sizes: max(row["memory"].get(when, 0) for row in sizes.values()) / 1e6, whole)


def of_all_sizes(title: str, value: Callable[[Row], float]) -> Column:
    """Return a column for networks at several sizes: the least and the largest of a row's numbers."""

    def both(sizes: Row) -> str:
        numbers = [value(row) for row in sizes.values()]
        least, largest = three_digits(min(numbers)), three_digits(max(numbers))
        return least if least == largest else f"{least} to {largest}"

    return Column(title, both)


def errors(title: str, dtype: str, contender: str) -> Column:
    """Return a column of the largest error of a contender in a type, and the root mean square; † breaks the promise."""

    def value(rows: Row) -> str | None:
        row = rows.get(dtype, {"errors": {}})
        if (found := row["errors"].get(contender)) is None:
            return None
        texts = ["not finite" if found[key] is None else three_digits(found[key]) for key in ("largest", "rms")]
        return " / ".join(texts) + " †" * (contender in row["broken"])

    return Column(title, value)


ACCURACY = {
    "multiply-adds": "fma", "strict": "tvmconv-strict", "float32": "tvmconv", "PyTorch": "pytorch",
    "channels-last": "pytorch-channels-last", "of TF32 factors": "fma-tf32", "tf32": "tvmconv-tf32",
    "PyTorch in TF32": "pytorch-tf32",
}  # fmt: skip
ACCURACY_OF_HALVES = {
    "multiply-adds": "fma", "tvmconv": "tvmconv", "PyTorch": "pytorch", "channels-last": "pytorch-channels-last"
}  # fmt: skip

BUILDS = {
    "tvmconv": OURS, "PyTorch in half": "pytorch-half", "autocast": "pytorch-autocast",
    "`torch.compile`": "torch-compile", "`torch.compile` in half": "torch-compile-half",
}  # fmt: skip
"""The contenders on networks whose builds are compared, by their titles."""


def of_builds(field: str, title: str, form: Callable[[float], str], unit: float = 1) -> list[Column]:
    """Return the columns of a field for the contenders of `BUILDS`."""
    return [of(field, f"{name}: {title}", contender, form, unit) for name, contender in BUILDS.items()]


NETWORKS_ON_CPU = {
    "our dense": "tvmconv-dense", "our float32": "tvmconv-float32", "PyTorch": "pytorch",
    "PyTorch in half": "pytorch-half", "`torch.compile`": "torch-compile",
}  # fmt: skip
NETWORKS_ON_GPU = {
    "our dense": "tvmconv-dense", "our float32": "tvmconv-float32", "PyTorch": "pytorch",
    "PyTorch in TF32": "pytorch-tf32", "`torch.compile`": "torch-compile", "PyTorch in half": "pytorch-half",
    "autocast": "pytorch-autocast", "`torch.compile` in half": "torch-compile-half",
    "max-autotune in half": "torch-compile-max-autotune", "TVM as it is": "tvm",
}  # fmt: skip
BUILD_SECONDS = {
    "tvmconv's build, s": OURS, "`torch.compile`'s": "torch-compile",
    "`torch.compile`'s in half": "torch-compile-half", "max-autotune's in half": "torch-compile-max-autotune",
}  # fmt: skip

KINDS = {
    "accuracy-float32": Kind(
        workload_name, "data", [errors(title, "float32", name) for title, name in ACCURACY.items()], grouped="dtype",
    ),
    "accuracy-half": Kind(
        workload_name, "data",
        [
            errors(f"{dtype}: {title}" if name == "fma" else title, dtype, name)
            for dtype in ("float16", "bfloat16") for title, name in ACCURACY_OF_HALVES.items()
        ],
        grouped="dtype",
    ),
    "depthwise-gpu": Kind(workload_name, "workload", DEPTHWISE_ON_GPU),
    "depthwise-cpu": Kind(
        workload_name, "workload",
        [
            *beside(0, "1 thread", TIME, *PYTORCH, ONNXRUNTIME),
            *beside(1, "2 threads", TIME, *PYTORCH, ONNXRUNTIME),
        ],
    ),
    "dense-cpu": Kind(workload_name, "layer", [TIME, rate("GFLOP/s", 1e9, OURS), *PYTORCH, ONNXRUNTIME]),
    "tensor-gpu": Kind(workload_name, "layer", TENSOR_CORES),
    "linear-types": Kind(
        workload_name, "layer",
        [
            *beside(0, "bfloat16", TIME, times("times a matrix product", "gemm-channels-last")),
            *beside(1, "TF32", TIME, times("times one in TF32", "gemm-tf32")),
            *beside(2, "float32", TIME, times("times one in strict float32", "gemm-channels-last")),
            *beside(3, "int8", TIME, times("times one in int8", "gemm-channels-last")),
        ],
    ),
    "dense-gpu": Kind(
        workload_name, "layer",
        [TIME, rate("TFLOP/s", 1e12, OURS), *PYTORCH, *all_times({"TF32": "pytorch-tf32", **IM2COL, **IM2WIN})],
    ),
    "memory": Kind(workload_name, "layer", [memory(*pair) for pair in MEMORY.items()], last="together"),
    "ablation": Kind(
        workload_name, "layer",
        [
            Column("µs", lambda row: 1e6 * row["time"]["median"], three_digits),
            *map(share_without, ("micro-kernel", "vectors", "threads", "vector loads", "prefetch", "packing")),
        ],
    ),
    "sparse-cpu": Kind(
        workload_name, "operator",
        [TIME, *PYTORCH, ONNXRUNTIME, OUR_DENSE, *all_times({"SpMM": "im2col-spmm", "im2col": "im2col-gemm"})],
    ),
    "sparse-gpu": Kind(workload_name, "operator", [*beside(0, "batch 64", *SPARSE), *beside(1, "batch 1", *SPARSE)]),
    "sparse-code": Kind(
        workload_name, "operator",
        [
            *(of("code", name, name) for name in ("template", "removed", "left", "instructions")),
            of("code", "PTX, kB", "ptx_bytes", unit=1e3), of("code", "cubin, kB", "cubin_bytes", unit=1e3),
        ],
    ),
    "sparsity": Kind(
        workload_name, "operator",
        [*map(zeros, reversed(SPARSITIES)), pays("float32 from", "pytorch"), pays("TF32 from", "pytorch-tf32")],
        grouped="sparsity",
    ),
    "tuners": Kind(
        tuned_workload, "workload",
        [
            Column("space", lambda rows: rows["xgb"]["space"], whole),
            Column("within 5%", lambda rows: rows["xgb"]["good"], whole),
            trials("XGBTuner", "xgb"), Column("share of the space", lambda rows: f"{rows['xgb']['share']:.1%}"),
            trials("GATuner", "ga"), trials("RandomTuner", "random"), trials("GridSearchTuner", "grid"),
            trials("XGBTuner, warm", "xgb, warm"),
        ],
        grouped="tuner",
    ),
    "networks-cpu": Kind(
        network_name, "network",
        [
            MILLISECONDS, extreme("from", "low"), extreme("to", "high"), ONNXRUNTIME, *all_times(NETWORKS_ON_CPU),
            of("build_seconds", "tvmconv's build, s", OURS), SIGNAL, TOP1,
        ],
    ),
    "quantized": Kind(
        workload_name, "network",
        [
            duration("Q/DQ, ms", "tvmconv qdq", unit=1e-3),
            duration("QOperator, ms", "tvmconv qoperator", unit=1e-3),
            times("ONNX Runtime's Q/DQ", "onnxruntime qdq", over=("tvmconv qdq",)),
            times("its QOperator", "onnxruntime qoperator", over=("tvmconv qoperator",)),
            times("our float32", "tvmconv float32", over=("tvmconv qdq",)),
            times("ONNX Runtime's float32", "onnxruntime float32", over=("tvmconv qdq",)),
        ],
    ),
    "open-sizes": Kind(
        lambda row: f"{row['name']}, {row['dtype']}", "network",
        [
            Column("sizes", lambda sizes: float(len(sizes)), whole),
            of_all_sizes("ms", lambda row: 1e3 * median(row, "open")),
            over_sizes("over a build for the size", "known", geometric_mean), over_sizes("at most", "known", max),
            over_sizes("over PyTorch", "pytorch", geometric_mean),
            over_sizes("over ONNX Runtime", "onnxruntime", geometric_mean),
            of_all_sizes("first call, ms", lambda row: 1e3 * row["first"]),
            memory_over_sizes("memory at most, MB", "open"), memory_over_sizes("behind the smallest again", "again"),
            of_all_sizes("its build, s", lambda row: row["build"]["open"]),
            of_all_sizes("one for the size, s", lambda row: row["build"]["known"]),
            of_all_sizes("its file, MB", lambda row: row["file_bytes"]["open"] / 1e6),
            of_all_sizes("one for the size, MB", lambda row: row["file_bytes"]["known"] / 1e6),
        ],
        grouped="shape", needed={"open"},
    ),
    "networks-gpu": Kind(
        network_name, "network",
        [
            MILLISECONDS, *all_times(NETWORKS_ON_GPU, last=None),
            *(of("build_seconds", title, contender) for title, contender in BUILD_SECONDS.items()), SIGNAL, TOP1,
        ],
    ),
    "builds": Kind(
        network_name, "network",
        [
            *of_builds("cold_seconds", "cold, s", tenths), *of_builds("warm_seconds", "warm, s", tenths),
            *of_builds("memory", "memory, MB", whole, 1e6), *of_builds("file_bytes", "file, MB", tenths, 1e6),
        ],
    ),
    "shares": Kind(
        lambda row: f"{row['name']}, batch {row['batch']}", "network",
        [
            Column("kernels, ms", lambda row: micros(row["kernels"]) / 1e3, three_digits),
            Column("between, %", lambda row: micros(between(row)) / micros(row["kernels"]), percent),
            Column("times copies", lambda row: copies(between(row)) if between(row) else None),
            Column("above 1.5 copies, %", lambda row: micros(slow(row)) / micros(row["kernels"]), percent),
            Column("slowest, times copy", slowest),
        ],
    ),
    "sequences": Kind(
        workload_name, "convolution",
        [
            TIME, times("times PyTorch", "pytorch"), times("Triton", "triton"),
            times("causal_conv1d", "causal-conv1d"), times("times copy", OURS, over=["copy"]),
        ],
    ),
    "training": Kind(
        lambda row: f"{row['network']}, {row['mode']}", "network, mode",
        [
            duration("PyTorch, ms", "pytorch", unit=1e-3), spread("rounds", "pytorch"),
            MILLISECONDS, spread("rounds", OURS), times("times PyTorch", "pytorch"),
            of("busy", "GPU busy: PyTorch, ms", "pytorch", three_digits, 1e-3),
            of("busy", "tvmconv, ms", OURS, three_digits, 1e-3),
        ],
    ),
    "gradients": Kind(
        workload_name, "workload",
        [column for kind in ("forward", "input", "weight") for column in of_gradient(kind)], grouped="kind",
    ),
}  # fmt: skip
