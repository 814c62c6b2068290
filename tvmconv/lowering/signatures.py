"""The signatures of scheduled functions: their names, the shapes and alignment of parameters, launch bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.compute.annotations import CHANNELS_LAST, MIN_BLOCKS
from tvmconv.compute.substitution import substitute
from tvmconv.problem.workload import Operands
from tvmconv.targets import backend_of

OPAQUE = 8
"""TVM's operator pattern for functions that its fusion leaves as they are."""


def as_scheduled(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Return the function named, and marked as scheduled."""
    return func.with_attrs({"global_symbol": name, "tirx.is_scheduled": True, "op_pattern": OPAQUE})


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Return whether a function is marked as scheduled; TVM's own functions are not at first."""
    return "tirx.is_scheduled" in (func.attrs or {})


def with_operands(func: tirx.PrimFunc, operands: Operands) -> tirx.PrimFunc:
    """Return the function with parameters in the shapes of a problem's operands.

    Some templates take all rows of a plane as one: an index past the end of an operand's row then means an element of
    the next row, and has the right address. Others take images of one pixel as the pixels of one image.

    Before: `x: T.Buffer((1, 8, 1, 196), "float32")`. After: `x: T.Buffer((1, 8, 14, 14), "float32")`.
    Before: `x: T.Buffer((1, 197, 1, 8), "float32")`, `x[0, row, 0, channel]`.
    After: `x: T.Buffer((197, 8, 1, 1), "float32")`, `x[row, channel, 0, 0]`.
    """
    shapes = [shape for shape, _ in operands.values()]
    if all(tvm_ffi.structural_equal(old.ty.shape, shape) for old, shape in zip(func.params, shapes, strict=True)):
        return func
    parameters = zip(func.params, shapes, strict=True)
    fresh = {old: tirx.decl_buffer(shape, old.ty.dtype, old.name) for old, shape in parameters}
    images = {old: new for old, new in fresh.items() if _is_one_image(old, new)}
    return _with_parameters(_with_images(func, images), fresh)


def _is_one_image(old: tvm.ir.Var, new: tvm.ir.Var) -> bool:
    """Return whether a parameter has the pixels of one image in NHWC where the operand has images of one pixel."""
    if len(new.ty.shape) != 4:
        return False
    rows, channels, height, width = new.ty.shape
    is_pixel = all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in (height, width))
    return is_pixel and bool(tvm_ffi.structural_equal(old.ty.shape, [height, rows, width, channels]))


def _with_images(func: tirx.PrimFunc, images: Mapping[tvm.ir.Var, tvm.ir.Var]) -> tirx.PrimFunc:
    """Return the function with operands of one-pixel images instead of parameters with the pixels of one NHWC image."""

    def permuted(indices: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
        image, row, column, channel = indices
        return [row, channel, image, column]

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        new = images.get(store.buffer)
        return store if new is None else tirx.BufferStore(new, store.value, permuted(store.indices))

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        new = images.get(load.source)
        return load if new is None else new[tuple(permuted(load.indices))]

    return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.BufferStore, stored), (TensorLoad, loaded)]))


def given_in_channels_last(func: tirx.PrimFunc, names: Sequence[str]) -> tirx.PrimFunc:
    """Return the function marked so that `build` gives these parameters in NHWC the shape of NCHW."""
    return func.with_attr(CHANNELS_LAST, [*names])


def with_channels_last(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function whose parameters in `CHANNELS_LAST` have the shape and strides of torch's channels_last.

    The stride of an axis of one element, and that of images, may be any, as in torch.
    Before: `x: T.Buffer((2, 14, 14, 8), "float32")`.
    After: `x: T.Buffer((2, 8, 14, 14), "float32", strides=(any, 1, 112, 8))`, whose memory has a second name,
    `x_1 = T.decl_buffer((2, 14, 14, 8), "float32", data=x.data)`.
    """
    names = {str(name) for name in (func.attrs or {}).get(CHANNELS_LAST, ())}
    if not names:
        return func
    params = [_in_channels_last(old) if old.name in names else old for old in func.params]
    declared = [
        tirx.DeclBuffer(old, data=new.data) for old, new in zip(func.params, params, strict=True) if old is not new
    ]
    root = func.body.block
    body = SBlock([], [], [], root.name_hint, tirx.stmt_seq(*declared, root.body), alloc_buffers=root.alloc_buffers)
    attributes = func.without_attr(CHANNELS_LAST).attrs
    return tirx.PrimFunc(params, SBlockRealize([], True, body), func.ret_type, attrs=attributes)


def _in_channels_last(old: tvm.ir.Var) -> tvm.ir.Var:
    """Return the parameter in the shape of NCHW, with strides, for one in NHWC."""
    images, rows, columns, channels = old.ty.shape
    known = {"channel": (channels, 1), "row": (rows, columns * channels), "column": (columns, channels)}
    strides = [tirx.Var("image_stride", "int32")]
    for axis, (size, stride) in known.items():
        is_one = isinstance(size, tirx.IntImm) and int(size) == 1
        strides.append(tirx.Var(f"{axis}_stride", "int32") if is_one else stride)
    shape, alignment = (images, channels, rows, columns), old.ty.data_alignment
    return tirx.decl_buffer(shape, old.ty.dtype, old.name, strides=strides, data_alignment=alignment)


def with_launch_bounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with `MIN_BLOCKS` as TVM's attribute of a kernel, which no schedule primitive can set.

    Before: `for tx in T.thread_binding(256, ..., annotations={"tvmconv.min_blocks": 2}): ...`.
    After: `for tx in T.thread_binding(256, ...): with T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 2): ...`.
    """

    def bounded(loop: tirx.For) -> tirx.For:
        annotations = dict(loop.annotations)
        if (blocks := annotations.pop(MIN_BLOCKS, None)) is None:
            return loop
        body = tirx.AttrStmt(0, "tirx.launch_bounds_min_blocks_per_sm", blocks, loop.body)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)

    return tvm_ffi.structural_map(func, (tirx.For, bounded))


def with_alignment(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the function with parameters aligned to no more than arrays are: by `Backend.alignment`, or an element.

    TVM assumes 64 bytes, and CPU code made so crashes on the arrays of NumPy and on slices, which are aligned to less.
    Before: `x: T.Buffer((1024,), "float32")`. After: `x: T.Buffer((1024,), "float32", align=4)`.
    """

    def aligned(old: tvm.ir.Var) -> tvm.ir.Var:
        if not hasattr(old.ty, "shape"):  # a number, or TVM's memory of sizes
            return old
        alignment = backend_of(target).alignment or itemsize(old.ty.dtype)
        return tirx.decl_buffer(old.ty.shape, old.ty.dtype, old.name, strides=old.ty.strides, data_alignment=alignment)

    return _with_parameters(func, {old: aligned(old) for old in func.params})


def itemsize(dtype: Any) -> int:
    """Return the bytes of an element."""
    return -(-int(tvm.DataType(str(dtype)).bits) // 8)


def _with_parameters(func: tirx.PrimFunc, fresh: dict[tvm.ir.Var, tvm.ir.Var]) -> tirx.PrimFunc:
    body = substitute(func.body, fresh)
    return tirx.PrimFunc([fresh[old] for old in func.params], body, func.ret_type, attrs=func.attrs)
