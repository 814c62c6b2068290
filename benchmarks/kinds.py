"""The kinds of tables of docs/benchmarks.md: what names a row, and its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from statistics import geometric_mean

from columns import (
    Column,
    between,
    busy,
    code,
    copies,
    duration,
    errors,
    extreme,
    kernels_time,
    memory,
    memory_over_sizes,
    of,
    of_all_sizes,
    of_gradient,
    over_sizes,
    pays,
    percent,
    rate,
    share_above,
    share_without,
    slowest,
    spread,
    tenths,
    three_digits,
    times,
    trials,
    whole,
    zeros,
)
from measured import BETTER, COPY, OUR_LAYOUTS, OURS, Row, median, read

from tvmconv.bench.report import SPARSITIES


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


TIME = duration("tvmconv, µs", OURS)
SIGNAL = Column("dB", lambda row: row["ratios"][OURS] if row.get("top1") else None, whole)

TOP1 = of("top1", "top-1, %", OURS, percent)

MILLISECONDS = duration("tvmconv, ms", OURS, unit=1e-3)
TIMES_COPY = Column("times copy", lambda row: median(row, OURS) / median(row, *COPY), last=geometric_mean)
PYTORCH = [times("PyTorch", "pytorch"), times("channels-last", "pytorch-channels-last")]
ONNXRUNTIME = times("ONNX Runtime", "onnxruntime")
OUR_DENSE = times("our dense", "tvmconv-dense")


NETWORKS = {
    "tvmconv": OURS,
    "PyTorch in half": "pytorch-half",
    "autocast": "pytorch-autocast",
    "`torch.compile`": "torch-compile",
    "`torch.compile` in half": "torch-compile-half",
}
"""The contenders on networks whose builds and errors are compared, by their titles."""


def of_networks(field: str, title: str, form: Callable[[float], str], unit: float = 1, file: int = 0) -> list[Column]:
    """Return the columns of a field for all contenders on networks."""
    return [
        replace(of(field, f"{name}: {title}", contender, form, unit), file=file) for name, contender in NETWORKS.items()
    ]


def beside(file: int, name: str, first: Column, *rest: Column) -> list[Column]:
    """Return the columns for one of several files; the first column names the file."""
    return [replace(column, file=file) for column in (replace(first, title=f"{name}: {first.title}"), *rest)]


SPARSE = [
    TIME,
    times("float32", *BETTER),
    times("TF32", "pytorch-tf32"),
    times("float16", "pytorch-fp16"),
    times("quarter", "pytorch-quarter"),
    times("SpMM", "im2col-spmm"),
    OUR_DENSE,
]
ON_GPU = [
    *PYTORCH,
    times("TF32", "pytorch-tf32"),
    times("im2col and cuBLAS", "im2col-gemm"),
    times("our im2win", "tvmconv-im2win"),
]
MEMORY = {
    OURS: OURS,
    "our im2win": "tvmconv-im2win",
    "PyTorch": "pytorch",
    "channels-last": "pytorch-channels-last",
    "TF32": "pytorch-tf32",
    "im2col and cuBLAS": "im2col-gemm",
}
DEPTHWISE_ON_GPU = [
    TIME,
    duration("PyTorch", "pytorch"),
    duration("copy", *COPY),
    times("times PyTorch", "pytorch"),
    times("times its better layout", *BETTER),
    TIMES_COPY,
    times("with epilogue", OURS, over=("tvmconv-plain",), file=1),
    *beside(2, "float16", TIME, times("times PyTorch's better layout", *BETTER), TIMES_COPY),
    *beside(3, "bfloat16", TIME, times("times PyTorch's better layout", *BETTER), TIMES_COPY),
]

TENSOR_CORES = [
    duration("tvmconv, µs", *OUR_LAYOUTS),
    Column("TFLOP/s", lambda row: row["flops"] / median(row, *OUR_LAYOUTS) / 1e12, three_digits),
    times("times PyTorch", *BETTER, over=OUR_LAYOUTS),
    times("times PyTorch in TF32", "pytorch-tf32-channels-last", over=OUR_LAYOUTS),
    times("times a matrix product", "gemm", "gemm-channels-last", over=OUR_LAYOUTS),
    times("times one in TF32", "gemm-tf32", over=OUR_LAYOUTS),
    times("our NCHW", OURS, over=OUR_LAYOUTS),
    times("our channels-last", OUR_LAYOUTS[1], over=OUR_LAYOUTS),
    times("without tensor cores", "tvmconv-direct", over=OUR_LAYOUTS),
]

KINDS = {
    "accuracy-float32": Kind(
        workload_name,
        "data",
        [
            errors("multiply-adds", "float32", "fma"),
            errors("strict", "float32", "tvmconv-strict"),
            errors("float32", "float32", "tvmconv"),
            errors("PyTorch", "float32", "pytorch"),
            errors("channels-last", "float32", "pytorch-channels-last"),
            errors("of TF32 factors", "float32", "fma-tf32"),
            errors("tf32", "float32", "tvmconv-tf32"),
            errors("PyTorch in TF32", "float32", "pytorch-tf32"),
        ],
        grouped="dtype",
    ),
    "accuracy-half": Kind(
        workload_name,
        "data",
        [
            column
            for dtype in ("float16", "bfloat16")
            for column in (
                errors(f"{dtype}: multiply-adds", dtype, "fma"),
                errors("tvmconv", dtype, "tvmconv"),
                errors("PyTorch", dtype, "pytorch"),
                errors("channels-last", dtype, "pytorch-channels-last"),
            )
        ],
        grouped="dtype",
    ),
    "depthwise-gpu": Kind(workload_name, "workload", DEPTHWISE_ON_GPU),
    "depthwise-cpu": Kind(
        workload_name,
        "workload",
        [
            *beside(0, "1 thread", TIME, *PYTORCH, ONNXRUNTIME),
            *beside(1, "2 threads", TIME, *PYTORCH, ONNXRUNTIME),
        ],
    ),
    "dense-cpu": Kind(workload_name, "layer", [TIME, rate("GFLOP/s", 1e9), *PYTORCH, ONNXRUNTIME]),
    "tensor-gpu": Kind(workload_name, "layer", TENSOR_CORES),
    "linear-types": Kind(
        workload_name,
        "layer",
        [
            *beside(0, "bfloat16", TIME, times("times a matrix product", "gemm-channels-last")),
            *beside(1, "TF32", TIME, times("times one in TF32", "gemm-tf32")),
            *beside(2, "float32", TIME, times("times one in strict float32", "gemm-channels-last")),
            *beside(3, "int8", TIME, times("times one in int8", "gemm-channels-last")),
        ],
    ),
    "dense-gpu": Kind(workload_name, "layer", [TIME, rate("TFLOP/s", 1e12), *ON_GPU]),
    "memory": Kind(workload_name, "layer", [memory(*pair) for pair in MEMORY.items()], last="together"),
    "ablation": Kind(
        workload_name,
        "layer",
        [
            Column("µs", lambda row: 1e6 * row["time"]["median"], three_digits),
            *map(share_without, ("micro-kernel", "vectors", "threads", "vector loads", "prefetch", "packing")),
        ],
    ),
    "sparse-cpu": Kind(
        workload_name,
        "operator",
        [TIME, *PYTORCH, ONNXRUNTIME, OUR_DENSE, times("SpMM", "im2col-spmm"), times("im2col", "im2col-gemm")],
    ),
    "sparse-gpu": Kind(workload_name, "operator", [*beside(0, "batch 64", *SPARSE), *beside(1, "batch 1", *SPARSE)]),
    "sparse-code": Kind(
        workload_name,
        "operator",
        [
            *(code(name, name) for name in ("template", "removed", "left", "instructions")),
            code("PTX, kB", "ptx_bytes", 1e3),
            code("cubin, kB", "cubin_bytes", 1e3),
        ],
    ),
    "sparsity": Kind(
        workload_name,
        "operator",
        [*map(zeros, reversed(SPARSITIES)), pays("float32 from", "pytorch"), pays("TF32 from", "pytorch-tf32")],
        grouped="sparsity",
    ),
    "tuners": Kind(
        tuned_workload,
        "workload",
        [
            Column("space", lambda rows: rows["xgb"]["space"], whole),
            Column("within 5%", lambda rows: rows["xgb"]["good"], whole),
            trials("XGBTuner", "xgb"),
            Column("share of the space", lambda rows: f"{rows['xgb']['share']:.1%}"),
            trials("GATuner", "ga"),
            trials("RandomTuner", "random"),
            trials("GridSearchTuner", "grid"),
            trials("XGBTuner, warm", "xgb, warm"),
        ],
        grouped="tuner",
    ),
    "networks-cpu": Kind(
        network_name,
        "network",
        [
            MILLISECONDS,
            extreme("from", "low"),
            extreme("to", "high"),
            ONNXRUNTIME,
            OUR_DENSE,
            times("our float32", "tvmconv-float32"),
            times("PyTorch", "pytorch"),
            times("PyTorch in half", "pytorch-half"),
            times("`torch.compile`", "torch-compile"),
            of("build_seconds", "tvmconv's build, s", OURS),
            SIGNAL,
            TOP1,
        ],
    ),
    "quantized": Kind(
        lambda row: str(row["name"]),
        "network",
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
        lambda row: f"{row['name']}, {row['dtype']}",
        "network",
        [
            Column("sizes", lambda sizes: float(len(sizes)), whole),
            of_all_sizes("ms", lambda row: 1e3 * median(row, "open")),
            over_sizes("over a build for the size", "known", geometric_mean),
            over_sizes("at most", "known", max),
            over_sizes("over PyTorch", "pytorch", geometric_mean),
            over_sizes("over ONNX Runtime", "onnxruntime", geometric_mean),
            of_all_sizes("first call, ms", lambda row: 1e3 * row["first"]),
            memory_over_sizes("memory at most, MB", "open"),
            memory_over_sizes("behind the smallest again", "again"),
            of_all_sizes("its build, s", lambda row: row["build"]["open"]),
            of_all_sizes("one for the size, s", lambda row: row["build"]["known"]),
            of_all_sizes("its file, MB", lambda row: row["file_bytes"]["open"] / 1e6),
            of_all_sizes("one for the size, MB", lambda row: row["file_bytes"]["known"] / 1e6),
        ],
        grouped="shape",
        needed={"open"},
    ),
    "networks-gpu": Kind(
        network_name,
        "network",
        [
            MILLISECONDS,
            times("our dense", "tvmconv-dense", last=None),
            times("our float32", "tvmconv-float32", last=None),
            times("PyTorch", "pytorch", last=None),
            times("PyTorch in TF32", "pytorch-tf32", last=None),
            times("`torch.compile`", "torch-compile", last=None),
            times("PyTorch in half", "pytorch-half", last=None),
            times("autocast", "pytorch-autocast", last=None),
            times("`torch.compile` in half", "torch-compile-half", last=None),
            times("max-autotune in half", "torch-compile-max-autotune", last=None),
            times("TVM as it is", "tvm", last=None),
            of("build_seconds", "tvmconv's build, s", OURS),
            of("build_seconds", "`torch.compile`'s", "torch-compile"),
            of("build_seconds", "`torch.compile`'s in half", "torch-compile-half"),
            of("build_seconds", "max-autotune's in half", "torch-compile-max-autotune"),
            SIGNAL,
            TOP1,
        ],
    ),
    "builds": Kind(
        network_name,
        "network",
        [
            *of_networks("cold_seconds", "cold, s", tenths),
            *of_networks("warm_seconds", "warm, s", tenths),
            *of_networks("memory", "memory, MB", whole, 1e6),
            *of_networks("file_bytes", "file, MB", tenths, 1e6),
        ],
    ),
    "accuracy-networks": Kind(
        network_name,
        "network",
        [
            column
            for file, dtype in enumerate(("float16", "bfloat16"))
            for column in (
                *of_networks("ratios", f"{dtype}, dB", tenths, file=file),
                *of_networks("top1", f"{dtype}, top-1, %", percent, file=file),
            )
        ],
    ),
    "shares": Kind(
        lambda row: f"{row['name']}, batch {row['batch']}",
        "network",
        [
            Column("kernels, ms", lambda row: kernels_time(row) / 1e3, three_digits),
            Column("between, %", lambda row: sum(each["us"] for each in between(row)) / kernels_time(row), percent),
            Column("times copies", lambda row: copies(between(row)) if between(row) else None),
            Column("above 1.5 copies, %", share_above(1.5), percent),
            Column("slowest, times copy", slowest),
        ],
    ),
    "sequences": Kind(
        workload_name,
        "convolution",
        [
            duration("tvmconv, µs", OURS),
            times("times PyTorch", "pytorch"),
            times("Triton", "triton"),
            times("causal_conv1d", "causal-conv1d"),
            times("times copy", OURS, over=["copy"]),
        ],
    ),
    "training": Kind(
        lambda row: f"{row['network']}, {row['mode']}",
        "network, mode",
        [
            duration("PyTorch, ms", "pytorch", unit=1e-3),
            spread("rounds", "pytorch"),
            MILLISECONDS,
            spread("rounds", OURS),
            times("times PyTorch", "pytorch"),
            busy("GPU busy: PyTorch, ms", "pytorch"),
            busy("tvmconv, ms", OURS),
        ],
    ),
    "gradients": Kind(
        workload_name,
        "workload",
        [column for kind in ("forward", "input", "weight") for column in of_gradient(kind)],
        grouped="kind",
    ),
}
