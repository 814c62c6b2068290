"""Zero padding, the stage in front of every convolution."""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload


def _reaches_beyond(end: int | tirx.PrimExpr, input_end: int | tirx.PrimExpr, is_exact: bool, after: int) -> bool:
    """Return whether reads up to `end` pass the input's end; for open sizes, whether padding or rounding makes them."""
    return end > input_end if isinstance(end, int) and isinstance(input_end, int) else not is_exact or after > 0


def padded_input(
    x: te.Tensor, workload: ConvWorkload, output_size: tuple[int, int], lanes: int = 1, dtype: str | None = None
) -> tuple[te.Tensor, int]:
    """Return the stage "pad": x with zeros around it, in the rows and columns that `output_size` outputs read.

    Schedules inline it, or stage a tile of it, so that no padded tensor is ever stored. x has shape (N, C, H, W), or
    that in the workload's layout, and so has the stage. An `output_size` beyond the workload's makes the stage read as
    zero there too. Rows and columns come in whole strides, so that a schedule can lay them out by their phase.

    With more than one of `lanes`, which have to divide the width of an input in NCHW, the stage has shape (N, C, H, W /
    lanes, lanes): each of its vectors is all input, and aligned as the input is, or all zeros. For that the stage may
    begin some columns further left; their number is the second result.

    With a `dtype` elements are in that type, less the zero point of x.
    """
    top, left, bottom, right = workload.padding
    stride = workload.stride[1]
    is_exact = [given is known for given, known in zip(output_size, workload.output_size, strict=True)]
    surplus = -left % lanes
    left += surplus
    height, width = (
        (size + step - 1) // step * step
        for size, step in zip(workload.read_by(output_size), workload.stride, strict=True)
    )
    vectors = (surplus + width + lanes - 1) // lanes
    layout = workload.x_layout
    row, column = layout.spatial

    def value(*index: tirx.Var) -> tirx.PrimExpr:
        h, w = index[row], index[column]
        tests = []
        if top:
            tests.append(h >= top)
        if _reaches_beyond(height - top, workload.height, is_exact[0], bottom):
            tests.append(h - top < workload.height)
        if left:
            tests.append(w >= left // lanes)
        # Only outputs read rows, but the stage "windows" reads columns in whole strides.
        if _reaches_beyond(vectors * lanes - left, workload.width, is_exact[1], right + stride - 1):
            tests.append(w - left // lanes < workload.width // lanes)
        source = list(index[: len(x.shape)])
        source[row], source[column] = h - top, (w * lanes + index[-1] if lanes > 1 else w) - left
        element = x[tuple(source)]
        if dtype is not None:
            element = element.astype(dtype) - tirx.const(workload.zero_point, dtype)
        return tirx.if_then_else(tirx.all(*tests), element, tirx.const(0, dtype or x.dtype)) if tests else element

    shape = layout.shape((workload.batch, workload.in_channels, height, vectors))
    shape = (*shape, lanes) if lanes > 1 else shape
    return te.compute(shape, value, name="pad"), surplus


def nearest_input(x: te.Tensor, workload: ConvWorkload, output_size: tuple[int, int]) -> te.Tensor:
    """Return the stage "pad", after "nearest" and "wide": x with zeros around it, read without branches.

    "nearest" reads the input at indices that are clamped into it, "wide" is its elements in the type of sums, and "pad"
    selects an element of "wide", or zero outside the input, by one instruction. A GPU's compiler makes a branch of an
    element that may only be read on a condition, and reads nothing ahead over it. Rows and columns are not rounded up
    to whole strides.
    """
    top, left, bottom, right = workload.padding
    sums, layout = workload.storage.sums, workload.x_layout
    sizes = workload.read_by(output_size)
    exact = [given is known for given, known in zip(output_size, workload.output_size, strict=True)]
    height, width, (row, column) = workload.height, workload.width, layout.spatial
    edges = (
        (row, top, height, _reaches_beyond(sizes[0] - top, height, exact[0], bottom)),
        (column, left, width, _reaches_beyond(sizes[1] - left, width, exact[1], right)),
    )

    def within(*indices: tirx.Var) -> tirx.PrimExpr:
        source = list(indices)
        for axis, padding, size, is_beyond in edges:
            index = indices[axis] - padding
            index = tirx.max(index, 0) if padding else index
            source[axis] = tirx.min(index, size - 1) if is_beyond else index
        return x[tuple(source)]

    def selected(*index: tirx.Var) -> tirx.PrimExpr:
        tests = [index[axis] >= padding for axis, padding, _, _ in edges if padding]
        tests += [index[axis] - padding < size for axis, padding, size, is_beyond in edges if is_beyond]
        return tirx.Select(tirx.all(*tests), wide[index], tirx.const(0, sums)) if tests else wide[index]

    shape = layout.shape((workload.batch, workload.in_channels, *sizes))
    nearest = te.compute(shape, within, name="nearest")
    wide = te.compute(shape, lambda *index: nearest[index].astype(sums), name="wide")
    return te.compute(shape, selected, name="pad")
