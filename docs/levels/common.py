"""The parts that all levels share: the problem, the build, the check, the time, and the line that is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from statistics import median

import numpy as np
import tvm
from tvm import te, tirx
from tvm.runtime import Executable
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload
from tvmconv.lowering import KERNEL_NAME, as_scheduled, build_function, build_twin_function, with_alignment
from tvmconv.lowering.signatures import with_operands
from tvmconv.problem import Problem
from tvmconv.targets import arch_of, backend_of, cuda, device_of, has_gpu, resolve_target
from tvmconv.testing import Sample, random_operands

Arrays = dict[str, np.ndarray]

TARGET = resolve_target("cuda")
"""The GPU of this machine; sm_90, that of an H100 or H200, where there is none."""

FLOAT32 = ConvWorkload.conv2d((32, 64, 56, 56), (64, 64, 3, 3), padding=1)
FLOAT16 = ConvWorkload.conv2d((32, 56, 56, 64), (64, 3, 3, 64), padding=1, layout="NHWC", dtype="float16")
"""The convolution: x (N, C, H, W) and w (K, C, R, S) in float32, or x (N, H, W, C) and w (K, R, S, C) in float16."""

SMALL32 = ConvWorkload.conv2d((1, 16, 8, 28), (64, 16, 3, 3), padding=1)
SMALL16 = ConvWorkload.conv2d((2, 8, 16, 64), (64, 3, 3, 64), padding=1, layout="NHWC", dtype="float16")
"""Smaller problems, which a CPU computes in a moment by the same schedules."""

CHECKED = 2**16
"""The number of outputs that are compared with the float64 reference; all have to be written."""


def convolution(workload: ConvWorkload) -> list[te.Tensor]:
    """Return the definition of a 3x3 convolution with padding 1 in float32: x, w, and the output (N, K, H, W)."""
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    batch, channels, height, width = workload.x_shape
    c, r, s = (te.reduce_axis((0, extent), name=name) for name, extent in (("c", channels), ("r", 3), ("s", 3)))

    def padded(n: tirx.Var, c: tirx.Var, y: tirx.Var, x_: tirx.Var) -> tirx.PrimExpr:
        inside = tirx.all(y >= 1, y <= height, x_ >= 1, x_ <= width)
        return tirx.if_then_else(inside, x[n, c, y - 1, x_ - 1], tirx.const(0, x.dtype))

    pad = te.compute((batch, channels, height + 2, width + 2), padded, name="pad")
    output = te.compute(
        workload.output_shape,
        lambda n, k, y, x_: te.sum(pad[n, c, y + r, x_ + s] * w[k, c, r, s], axis=[c, r, s]),
        name="output",
    )
    return [x, w, output]


WARPS_M, WARPS_N = 2, 2
"""The warps of a block for tensor cores, along the pixels and along the output channels."""

TILES_M, TILES_N = 4, 4
"""The matrices of a warp: of 16 pixels each, and of 8 output channels each."""

BLOCK_M, BLOCK_N, THREADS = WARPS_M * TILES_M * 16, WARPS_N * TILES_N * 8, WARPS_M * WARPS_N * 32
"""The pixels, output channels and threads of a block."""

CHUNK, VECTORS, LANES = 64, 8, 8
"""The numbers of a row of a chunk, 128 bytes; a row is 8 vectors of 8 numbers, and a thread copies a vector at once."""


def product(workload: ConvWorkload) -> list[te.Tensor]:
    """Return the definition for tensor cores: x, w, and the output with all pixels in a row, (1, 1, N * H * W, K).

    It is a product of matrices, of pixels by output channels. "columns" has the numbers that pixels read, and "weights"
    those of channels, each for a chunk: 64 input channels of one tap. "sums" has the product in the order of registers:
    thread (r, q) of a warp has, of each 16x8 matrix (i, j), columns 2q + e of rows r + 8h. "tile" has it as it is
    stored.
    """
    (batch, height, width, channels), filters = workload.operands["x"][0], workload.out_channels
    pixels, per_tap = batch * height * width, channels // CHUNK
    tiles, chunks = (pixels // BLOCK_M, filters // BLOCK_N), 9 * per_tap
    x, w = (te.placeholder(*workload.operands[name], name=name) for name in ("x", "w"))

    def column(*axes: tirx.Var) -> tirx.PrimExpr:
        tile, chunk, wm, i, h, r, copy, lane = axes
        p = tile * BLOCK_M + ((wm * TILES_M + i) * 2 + h) * 8 + r
        tap, c = chunk // per_tap, chunk % per_tap * CHUNK + copy * LANES + lane
        row, col = p // width % height + tap // 3 - 1, p % width + tap % 3 - 1
        inside = tirx.all(row >= 0, row < height, col >= 0, col < width)
        return tirx.if_then_else(inside, x[p // width // height, row, col, c], tirx.const(0, "float16"))

    def weight(*axes: tirx.Var) -> tirx.PrimExpr:
        tile, chunk, wn, j, r, copy, lane = axes
        tap, c = chunk // per_tap, chunk % per_tap * CHUNK + copy * LANES + lane
        return w[tile * BLOCK_N + (wn * TILES_N + j) * 8 + r, tap // 3, tap % 3, c]

    columns = te.compute((tiles[0], chunks, WARPS_M, TILES_M, 2, 8, VECTORS, LANES), column, name="columns")
    weights = te.compute((tiles[1], chunks, WARPS_N, TILES_N, 8, VECTORS, LANES), weight, name="weights")
    extents = {"chunk": chunks, "copy": VECTORS, "lane": LANES}
    chunk, copy, lane = (te.reduce_axis((0, extent), name=name) for name, extent in extents.items())

    def summed(*axes: tirx.Var) -> tirx.PrimExpr:
        pt, kt, wm, wn, r, q, i, j, h, e = axes
        first, second = columns[pt, chunk, wm, i, h, r, copy, lane], weights[kt, chunk, wn, j, q * 2 + e, copy, lane]
        return te.sum(first.astype("float32") * second.astype("float32"), axis=[chunk, copy, lane])

    sums = te.compute((*tiles, WARPS_M, WARPS_N, 8, 4, TILES_M, TILES_N, 2, 2), summed, name="sums")

    def rounded(*axes: tirx.Var) -> tirx.PrimExpr:
        pt, kt, wm, i, h, r, wn, j, q, e = axes
        return sums[pt, kt, wm, wn, r, q, i, j, h, e].astype("float16")

    tile = te.compute((*tiles, WARPS_M, TILES_M, 2, 8, WARPS_N, TILES_N, 4, 2), rounded, name="tile")

    def stored(a: tirx.Var, b: tirx.Var, p: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        row = (p % BLOCK_M // (TILES_M * 16), p // 16 % TILES_M, p // 8 % 2, p % 8)
        column = (k % BLOCK_N // (TILES_N * 8), k // 8 % TILES_N, k // 2 % 4, k % 2)
        return tile[(p // BLOCK_M, k // BLOCK_N, *row, *column)]

    return [x, w, te.compute((1, 1, pixels, filters), stored, name="output")]


@dataclass(frozen=True)
class Level:
    """A schedule of the convolution, with the problem that it is timed on and a small one that a CPU checks it on."""

    number: int
    idea: str
    workload: ConvWorkload
    small: ConvWorkload
    schedule: Callable[[ConvWorkload], Schedule]

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the kernel's arguments, in order."""
        return ("x", "w", "output")

    def operands(self, workload: ConvWorkload) -> Arrays:
        """Return random arrays for a problem by name, and an output full of NaN."""
        return random_operands(workload)

    def function(self, workload: ConvWorkload) -> tirx.PrimFunc:
        """Return the scheduled function, with parameters in the shapes of the problem's operands."""
        func = with_operands(self.schedule(workload).mod["main"], workload.operands)
        return with_alignment(as_scheduled(func, KERNEL_NAME), TARGET)

    def kernel(self, workload: ConvWorkload) -> Executable:
        """Build the kernel for a GPU."""
        return build_function(self.function(workload), TARGET).executable

    def twin(self, workload: ConvWorkload) -> Executable:
        """Build the kernel's serial twin: the same schedule for a CPU, with loops in the place of threads."""
        return build_twin_function(self.function(workload)).executable

    def checked(
        self, kernel: Executable, workload: ConvWorkload, operands: Arrays, device: tvm.runtime.Device
    ) -> list[tvm.runtime.Tensor]:
        """Run a kernel, compare its output with the float64 reference, and return its arguments."""
        arguments = [tvm.runtime.tensor(operands[name], device) for name in self.passed]
        kernel[KERNEL_NAME](*arguments)
        Sample(Problem(workload), operands, np.random.default_rng(0), CHECKED).check(arguments[-1].numpy())
        return arguments

    def check_on_cpu(self) -> None:
        """Check the schedule's numbers by its serial twin, on the small problem."""
        self.checked(self.twin(self.small), self.small, self.operands(self.small), tvm.cpu())

    def resources(self) -> list[cuda.KernelResources]:
        """Compile the kernels to machine code, without a GPU, and return the resources of each."""
        sources = cuda.sources(self.kernel(self.workload).mod)
        return [each for source in sources for each in cuda.kernel_resources(source, arch_of(TARGET))]

    def seconds(self) -> float:
        """Return the time of one call on the GPU, the median of five measurements, after a check of the result."""
        kernel, device = self.kernel(self.workload), device_of(TARGET)
        arguments = self.checked(kernel, self.workload, self.operands(self.workload), device)
        return median(backend_of(TARGET).costs(kernel, KERNEL_NAME, arguments, device, 10, 5, 20))

    def run(self) -> None:
        """Print the level's time and rate, of dense multiply-adds, or without a GPU what can be said without one."""
        if not has_gpu():
            self.check_on_cpu()
            found = self.resources()
            registers, spilled = max(each.registers for each in found), sum(each.spill_store_bytes for each in found)
            shared = max(each.shared_bytes for each in found)
            said = f"{registers} registers, {spilled} bytes spilled, {shared} bytes of static shared memory"
            print(f"level {self.number}, {self.idea}: numbers right on the CPU; {said}; for the time it needs a GPU")
            return
        seconds = self.seconds()
        first = seconds if self.number == 1 else import_module("01_naive").LEVEL.seconds()
        rate, ratio = self.workload.flops / seconds / 1e9, first / seconds
        measured = f"{1e6 * seconds:.1f} us, {rate:.0f} GFLOP/s, {ratio:.2f} times as fast as level 1"
        print(f"level {self.number}, {self.idea}: {measured}")
