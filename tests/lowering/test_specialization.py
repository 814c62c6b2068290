"""Blocks whose warps have roles: what the copy engine is told to bring, and the machine code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm_ffi
from tvm import tirx

from tests.emulated.device_functions import device_functions
from tests.schedules.cases.teams import TEAMS
from tests.schedules.cases.tensor import FIRST, LAST, Layouts, layer, mma, nothing_read, wgmma
from tvmconv.compute import to_logical
from tvmconv.compute.annotations import BulkCopy
from tvmconv.compute.substitution import evaluated
from tvmconv.compute.tensor.chunks import (
    STEP_BYTES,
    STEPS,
    chunks_of_tap,
    has_separate_groups,
    last_chunk_steps,
    row_bytes,
)
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_kernel, lower
from tvmconv.lowering.gpu.intrinsics import with_intrinsics
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.model.rates import rates_of
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.schedules.cuda.tensor.bulk import column_copy, is_bulk, weight_copy
from tvmconv.schedules.cuda.tensor.tiles import converted_products, passes, tf32_products, tile_of, weight_split
from tvmconv.schedules.space import wasted
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import gpu_of
from tvmconv.testing import random_operands

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})

LAID_OUT = (
    *("NCHW", "float32-NCHW", "tf32-rounded-ahead-NCHW", "narrow-channels", "integers", "linear"),
    *("split-k-NCHW", "split-k-of-integers"),
)
COPIED = [name for name in TEAMS if name not in LAID_OUT]
"""The cases whose input is copied in the order in which it is given."""


def bulk_copies(stmt: Any, values: dict[Any, int]) -> Iterator[tuple[str, int, list[int]]]:
    """Yield the map, the slot and the corner of each bulk copy that a thread of one block begins, in its order."""
    if isinstance(stmt, tirx.SeqStmt):
        for each in stmt.seq:
            yield from bulk_copies(each, values)
    elif isinstance(stmt, tirx.For):
        for number in range(evaluated(stmt.extent, values)):
            yield from bulk_copies(stmt.body, values | {stmt.loop_var: number})
    elif isinstance(stmt, tirx.AttrStmt):
        yield from bulk_copies(stmt.body, values)
    elif isinstance(stmt, tirx.Bind) and not calls(stmt.value):
        values[stmt.var] = evaluated(stmt.value, values)
    elif isinstance(stmt, tirx.Evaluate) and calls(stmt.value) == "tvmconv::bulk_copy":
        _, _, _, slot, tensor_map, *corner, _ = stmt.value.args
        yield tensor_map.args[0].name, evaluated(slot, values), [evaluated(each, values) for each in corner]


def calls(expr: Any) -> str:
    """Return the CUDA function that an expression calls, if it does."""
    return (
        str(expr.args[0].value) if str(getattr(getattr(expr, "op", None), "name", "")) == "tirx.cuda.func_call" else ""
    )


def brought(array: np.ndarray, copy: BulkCopy, lanes: int, corner: list[int]) -> np.ndarray:
    """Return what the copy engine brings: pixels in the order of memory, and zeros outside of images and channels.

    Source: CUDA Driver API, cuTensorMapEncodeIm2col.
    """
    height, width = copy.height, copy.width or array.size // copy.channels
    images = np.asarray(array).reshape(-1, height, width, copy.channels)
    channel, column, row, image, tap_w, tap_h = corner
    result = np.zeros((copy.pixels, lanes), images.dtype)
    for pixel in range(copy.pixels):
        h, w = row + tap_h, column + tap_w
        if image < len(images) and 0 <= h < height and 0 <= w < width:
            part = images[image, h, w, channel : channel + lanes]
            result[pixel, : len(part)] = part
        column += copy.stride_w
        if column > width - 1 + copy.upper_w:
            column, row = copy.lower_w, row + copy.stride_h
        if row > height - 1 + copy.upper_h:
            row, image = copy.lower_h, image + 1
    return result


def chunk_of_input(problem: Problem, x: np.ndarray, tile: int, group: int, chunk: int, rows: int) -> np.ndarray:
    """Return the chunk of windows that a tile of pixels reads of x (N, C, H, W), by the definition of a convolution."""
    workload = problem.workload
    (sh, sw), (dh, dw), (top, left, _, _) = workload.stride, workload.dilation, workload.padding
    height, width = workload.output_size
    channels, lanes = workload.w_shape[1], 128 // workload.itemsize
    tap, first = chunk // chunks_of_tap(workload), chunk % chunks_of_tap(workload) * lanes
    r, s = divmod(tap, workload.kernel[1])
    result = np.zeros((rows, lanes), x.dtype)
    for number in range(rows):
        image, pixel = divmod(tile * rows + number, height * width)
        h, w = pixel // width * sh + r * dh - top, pixel % width * sw + s * dw - left
        if image < workload.batch and 0 <= h < workload.height and 0 <= w < workload.width:
            terms = x[image, group * channels : (group + 1) * channels, h, w][first : first + lanes]
            result[number, : len(terms)] = terms
    return result


@pytest.mark.parametrize("name", COPIED)
def test_chunks_are_those_of_the_convolution(name: str) -> None:
    """What the engine is told to bring to each slot are the chunks of the windows, and of the weight.

    A tap's last chunk has rows for the steps that are multiplied alone; what is behind them counts for nothing, and
    neither does what is behind the last pixel: where groups lie apart it is the next group's.
    """
    problem, config = TEAMS[name]
    workload = problem.workload
    func = with_intrinsics(lower(problem, select(problem, SM_90, config, "tensor"), SM_90, KERNEL_NAME))
    *_, kernel = (each for each in device_functions(func, SM_90) if "bulk_copy" in str(each))
    operands = random_operands(workload)
    axes: dict[str, Any] = {}
    tvm_ffi.structural_walk(kernel.body, [(tirx.AttrStmt, lambda each: axes.update(note(each)))])
    threads = {axes["threadIdx.x"][0]: config.teams * config.threads}
    block, blocks = axes["blockIdx.x"]
    columns = column_copy(workload, config.block_m)
    summands = range(max(1, weight_split(problem, config)))
    per_group = -(-workload.multiplier // config.block_n)
    through = passes(problem, config, gpu_of(SM_90).multiprocessors)
    assert (through > 1) == ("passes" in name)
    order = [tile_of(problem, config).channel_at(position) for position in range(workload.out_channels)]
    weight = operands["w"].reshape(workload.out_channels, -1, workload.w_shape[1])[order]
    weight = np.stack([weight / (1 + summand) for summand in summands])
    padded = np.pad(weight, ((0, 0), (0, 0), (0, 0), (0, -weight.shape[3] % columns.lanes)))
    padded = padded.reshape(*weight.shape[:2], -1, columns.lanes)
    each = 1 + len(summands)
    x, pixels, seen = to_logical(operands["x"], workload.x_layout), workload.batch * prod(workload.output_size), 0
    tiles, chunks = -(-pixels // config.block_m), padded.shape[2] // config.split_k
    for number in range(blocks):
        copies = list(bulk_copies(kernel.body, {block: number, **threads}))
        own = range(number, config.split_k * tiles * workload.groups * per_group, blocks)
        for turn, (tile, of_part) in enumerate(product(own, range(chunks))):
            maps, slots, (at_x, *at_weights) = zip(*copies[each * turn : each * (turn + 1)], strict=True)
            assert set(slots) == {turn % config.num_stages}
            if has_separate_groups(workload):
                part, group, pt, kt = np.unravel_index(tile, (config.split_k, workload.groups, tiles, per_group))
            else:
                extents = config.split_k, through, tiles, workload.groups, per_group // through
                part, way, pt, group, kt = np.unravel_index(tile, extents)
                kt += way * extents[-1]
            chunk = int(part) * chunks + of_part
            is_last = chunk % chunks_of_tap(workload) == chunks_of_tap(workload) - 1
            steps = last_chunk_steps(workload) if is_last else STEPS
            used, lanes = (size // workload.itemsize for size in (steps * STEP_BYTES, row_bytes(steps)))
            assert all(name.endswith(f"_{lanes}") for name in maps)
            wanted = chunk_of_input(problem, x, pt, group, chunk, config.block_m)[: pixels - pt * config.block_m, :used]
            np.testing.assert_array_equal(brought(operands["x"], columns, lanes, at_x)[: len(wanted), :used], wanted)
            first = group * workload.multiplier + kt * config.block_n
            for summand, at_w in zip(summands, at_weights, strict=True):
                rows = padded[summand, first : first + config.block_n, chunk, :used]
                copy = weight_copy(workload, config.block_n, summand)
                np.testing.assert_array_equal(brought(weight, copy, lanes, at_w)[: len(rows), :used], rows)
            seen += 1
        assert len(copies) == each * len(own) * chunks
    assert seen == tiles * workload.groups * per_group * padded.shape[2]


def note(attribute: tirx.AttrStmt) -> dict[str, tuple[Any, int]]:
    if attribute.attr_key != "thread_extent":
        return {}
    return {str(attribute.node.thread_tag): (attribute.node.var, evaluated(attribute.value, {}))}


@pytest.mark.parametrize("name", TEAMS)
def test_machine_code(name: str) -> None:
    """Nothing is spilled, the compiler leaves products as they are, and warps take registers from each other.

    Steps behind the channels have no instructions, in a function of their own where they are not all steps.
    """
    problem, config = TEAMS[name]
    executable, *_ = build_kernel(problem, select(problem, SM_90, config, "tensor"), SM_90)
    source = str(executable.mod.imports[0].inspect_source())
    kernels, ptx, log = cuda.assembled(source, "sm_90")
    assert "serialized" not in log
    for kernel in kernels:
        assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    for instruction in ("cp.async.bulk.tensor.4d", "setmaxnreg.inc", "setmaxnreg.dec", "mbarrier.try_wait", "wgmma"):
        assert instruction in ptx, instruction
    per_tap, left = chunks_of_tap(problem.workload), last_chunk_steps(problem.workload)
    steps = left if per_tap == 1 or left == STEPS else STEPS + left
    assert ptx.count("wgmma.mma_async") == config.tile.tiles_m * steps * max(1, tf32_products(problem))
    assert "cp.async.cg" not in ptx
    if converted_products(problem, config) == 0:
        assert "ldmatrix" not in ptx
    if (
        converted_products(problem, config) == 3
    ):  # what goes through registers is read and taken apart while products go on
        assert ptx.index("wgmma.mma_async") < ptx.rindex("ldmatrix")
    if converted_products(problem, config) == 1:  # it is read while the product before goes on
        assert ptx.index("ldmatrix") < ptx.index("wgmma.wait_group") < ptx.index("wgmma.mma_async")
    if tile_of(problem, config).gathered:
        assert ptx.count("st.global.v4.f32") >= config.sums // 4


APART = Layouts("NCHW64c", "KRSC", "NCHW32c")


@pytest.mark.parametrize(
    ("problem", "bulk"),
    [
        (layer((1, 64, 9, 9), (32, 64, 3, 3)), True),
        (layer((1, 96, 9, 9), (32, 96, 3, 3)), True),
        (layer((1, 80, 9, 9), (32, 80, 3, 3)), True),  # a row of the last chunk is a single step
        (layer((1, 104, 9, 9), (32, 104, 3, 3)), False),  # half of an instruction is behind them, in the next tap
        (layer((1, 224, 9, 9), (32, 224, 1, 1)), True),
        (layer((1, 96, 9, 9), (32, 96, 1, 1)), True),
        (layer((1, 48, 9, 9), (32, 48, 1, 1)), False),  # a quarter of the rows is behind the channels
        (layer((1, 72, 9, 9), (32, 72, 1, 1)), False),  # half of a step is
        (layer((1, 448, 9, 9), (64, 224, 1, 1), groups=2), True),
        (layer((1, 128, 1, 81), (64, 64, 1, 1), layouts=APART, groups=2), True),
        (layer((1, 128, 81, 1), (64, 64, 1, 1), layouts=APART, groups=2), False),
        (layer((2, 128, 1, 81), (64, 64, 1, 1), layouts=APART, groups=2), False),  # between images is another group
        (layer((1, 240, 9, 9), (64, 120, 1, 1), groups=2), False),  # half of an instruction is of the next group
        (layer((1, 128, 9, 9), (32, 128, 3, 3), "uint8"), True),
        (layer((1, 64, 29, 29), (32, 64, 1, 1), stride=9, padding=0), False),
        (layer((1, 64, 9, 9), (32, 64, 1, 1), padding=129), False),
        (layer((1, 64, 300, 300), (32, 64, 3, 3), dilation=65, padding=0), False),  # the last window begins too far up
        (nothing_read(64, "float16", LAST), True),  # which is laid out with its padding
        (msgspec.structs.replace(layer((1, 64, 9, 9), (32, 64, 3, 3)), open_sizes=("batch",)), False),
    ],
)
def test_windows_that_the_engine_knows(problem: Problem, bulk: bool) -> None:
    assert is_bulk(problem) == bulk
    config = wgmma(64, 32, 1, 1, teams=2)
    broken = [rule for rule, holds in tensor.constraints(problem, SM_90).items() if not holds(config)]
    assert broken == ([] if bulk else ["specialized"])


def test_estimate_counts_what_is_multiplied() -> None:
    """Of 224 channels of float16 two steps of the last chunk are left out, of 256 none."""
    config = wgmma(128, 128, 2, 1, 5, teams=1)
    of_224, of_256 = (tensor.estimate(layer((128, c, 24, 24), (256, c, 1, 1)), config, SM_90) for c in (224, 256))
    assert of_224 < 0.96 * of_256


def test_estimate_counts_a_weight_that_is_laid_out() -> None:
    """A float32 weight in two numbers is read once and written twice in each call, but not where it is a constant.

    Nor is there a kernel that does so, then.
    """
    problem = layer((128, 1024, 1, 1), (512, 1024, 1, 1), "float32", FIRST)
    constant = msgspec.structs.replace(problem, constant_weight=True)
    saved = [
        tensor.estimate(problem, config, SM_90) - tensor.estimate(constant, config, SM_90)
        for config in (wgmma(64, 64, 1, 1, 2), mma(32, 32, 1, 1))
    ]
    gpu = gpu_of(SM_90)
    assert saved == pytest.approx([3 * 4 * 1024 * 512 / gpu.bytes_per_clock + rates_of(gpu).further, 0])


def test_default_rounds_the_input_where_it_is_laid_out_anyhow() -> None:
    shapes = (128, 64, 26, 26), (128, 64, 3, 3)
    first, last = (layer(*shapes, "float32", layouts, "tf32") for layouts in (FIRST, LAST))
    assert tensor.default_config(first, SM_90).rounds_input
    assert not tensor.default_config(last, SM_90).rounds_input


def test_default_of_few_tiles_cuts_channels_into_equal_parts() -> None:
    """In TF32 1000 channels are six parts of 168 where tiles of 128 would leave many multiprocessors idle."""
    problem = layer((4096, 4096, 1, 1), (1000, 4096, 1, 1), "float32", FIRST, "tf32")
    config = tensor.default_config(problem, SM_90)
    assert (config.block_m, config.block_n, config.teams) == (192, 168, 1)


@pytest.mark.parametrize(("dtype", "precision"), [("float16", "float32"), ("bfloat16", "float32"), ("float32", "tf32")])
def test_default_shares_pixels_out_evenly(dtype: str, precision: str) -> None:
    """Tiles are nearly as many for each of 132 multiprocessors, where those of 192x128 would leave some a fifth.

    A residual is added to whole rows of output channels.
    """
    problem = layer((128, 96, 24, 24), (256, 96, 5, 5), dtype, precision=precision, padding=0)
    config = tensor.default_config(problem, SM_90)
    assert config.channel_rows
    assert wasted(tensor.blocks(problem, config), 132) < 1.06
    residual = msgspec.structs.replace(problem.workload.epilogue, residual=True)
    workload = msgspec.structs.replace(problem.workload, epilogue=residual)
    assert not tensor.default_config(msgspec.structs.replace(problem, workload=workload), SM_90).channel_rows


@pytest.mark.parametrize(("precision", "pixels"), [("float32", 100000), ("tf32", 800)])
def test_default_shares_a_reduction_where_there_are_few_tiles(precision: str, pixels: int) -> None:
    """A GPU has 28 tiles of 128x128 of 800 pixels and 512 channels, and 3128 of 100000 pixels."""
    problem = layer((pixels // 25, 512, 7, 7), (512, 512, 3, 3), "float32", precision=precision, padding=0)
    config = tensor.default_config(problem, SM_90)
    assert config.teams
    assert (config.split_k > 1) == (pixels == 800)


def test_default_has_large_tiles_where_there_are_many() -> None:
    """Of 1.5 million pixels the last tiles cost little, and large ones read the least for a product."""
    problem = layer((128, 64, 112, 112), (128, 64, 3, 3), padding=0)
    config = tensor.default_config(problem, SM_90)
    assert (config.block_m, config.block_n, config.channel_rows) == (256, 128, True)


def test_factors_of_two_types_keep_their_order() -> None:
    """Instructions tell the type of the first factor from that of the second: pixels of uint8 have weights of int8."""
    signed, unsigned = (layer((8, 64, 24, 24), (128, 64, 3, 3), dtype) for dtype in ("int8", "uint8"))
    config = wgmma(96, 128, 1, 2, 3, teams=1, channel_rows=True)
    assert tensor.constraints(signed, SM_90)["transposed"](config)
    assert not tensor.constraints(unsigned, SM_90)["transposed"](config)
    assert not tensor.default_config(unsigned, SM_90).channel_rows


def test_one_instruction_fits_into_the_registers_at_first() -> None:
    """Three groups of warps that multiply begin with 128 registers a thread, of which 232 columns would take 116."""
    problem = layer((128, 64, 24, 24), (192, 64, 3, 3))
    fitting, too_many = (wgmma(pixels, 192, 1, 3, 3, teams=1, channel_rows=True) for pixels in (192, 232))
    registers = tensor.constraints(problem, SM_90)["registers"]
    assert registers(fitting)
    assert not registers(too_many)


@pytest.mark.parametrize(("channels", "outputs"), [(256, 256), (96, 192), (160, 320)])
def test_default_of_a_large_layer(channels: int, outputs: int) -> None:
    """Blocks go on with tile after tile where a layer has many, and not on a GPU without the engine."""
    problem = layer((128, channels, 28, 28), (outputs, channels, 3, 3), shift=True, activation="relu")
    assert tensor.default_config(problem, SM_90).teams
    assert not tensor.default_config(problem, resolve_target({"kind": "cuda", "arch": "sm_89"})).teams
