"""The choice of the tensors that a network holds in another layout than NCHW, its inner layout.

On a CPU with vectors of 8 that is (N, C / 8, H, W, 8): a convolution reads its input without gaps and stores vectors as
it summed them. On a GPU it is NHWC, in which tensor cores find the terms of a sum side by side. No tensor is copied
from one layout into another: convolutions at the ends of such parts read or write NCHW.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import msgspec
import tvm
import tvm_ffi
from tvm import relax

from tvmconv.dispatch import algorithms_for, least_cycles
from tvmconv.problem import Problem
from tvmconv.problem.activations import ACTIVATIONS
from tvmconv.problem.layout import channel_block, data_layout
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of
from tvmconv.targets.devices import KERNEL, cpu_of, gpu_of

from ...graph.constants import same_sizes, sizes_of, static_shape
from ...graph.convolutions import redescribed
from ...graph.graph import Block, blocks_of, free_variables, operator_name
from ...graph.interleaving import interleaving
from ...graph.shuffles import channels_of, chooses_channels, is_split, with_channel_axis
from ...sites import Site

BY_ELEMENT = (
    "add", "astype", "clip", "dequantize", "divide", "exp", "maximum", "minimum", "multiply", "negative", "quantize",
    "sqrt", "subtract", *(row.relax.removeprefix("relax.") for row in ACTIVATIONS.values() if row.relax),
)  # fmt: skip
"""Operators of Relax that compute each element from the elements at the same index, in any layout."""

POOLING = {"relax.nn.avg_pool2d": relax.op.nn.avg_pool2d, "relax.nn.max_pool2d": relax.op.nn.max_pool2d}


NHWC_FROM_NCHW, NCHW_FROM_NHWC = (0, 2, 3, 1), (0, 3, 1, 2)
"""The axes of a tensor (N, C, H, W) in the order of NHWC, and the other way round."""


def inner_layout(target: tvm.target.Target) -> str:
    """Return the layout in which convolutions of a network hand tensors to each other where that is faster."""
    return f"NCHW{cpu_of(target).lanes}c" if backend_of(target).channels_in_blocks else "NHWC"


def choose_layouts(
    mod: tvm.IRModule,
    sites: Sequence[Site],
    target: tvm.target.Target,
    in_nchw: Collection[relax.Var] = (),
    precision: str = DEFAULT,
) -> tuple[list[Site], dict[relax.Var, relax.Expr]]:
    """Return the sites with the layouts of their operands, and new values for other variables in the inner layout.

    A tensor can be in it if all operators that write and read it can handle it: convolutions, unless their output is
    one of `in_nchw`, pooling, means of planes, concatenations, depth to space and element-by-element operators; with
    NHWC also slices of channels, channels in another order, and permutations of axes, which then vanish. Those tensors
    are in it with which the convolutions take the least time by the estimates of their templates.

    Before: `y = conv(x)`, `z = R.nn.max_pool2d(y)`, `output = conv(z)`, all NCHW.
    After: `y` from NCHW to NCHW8c, `z = R.nn.max_pool2d(y, layout="NCHW8c")`, and `output` from NCHW8c to NCHW.
    """
    layout = inner_layout(target)

    by_output = {site.output: site for site in sites if site.workload is not None}
    others: dict[relax.Var, relax.Expr] = {}
    chosen: dict[relax.Var, Site] = {}
    for block in blocks_of(mod):
        groups = LayoutGroups(block, by_output, layout, target, precision)
        inner_vars = groups.inner_vars(in_nchw)
        for var in groups.live:
            if (site := by_output.get(var)) is not None:
                chosen[var] = _with_layouts(site, inner_vars, layout)
            elif var in inner_vars and (planes := groups.interleaved.get(var)) is not None:
                others[var] = planes.expression(layout)
            elif (value := _with_layout(var, block.values[var], inner_vars, layout)) is not None:
                others[var] = value
    return [chosen.get(site.output, site) for site in sites], others


class LayoutGroups:
    """The tensors of a dataflow block, in groups of tensors that must have the same layout."""

    def __init__(
        self,
        block: Block,
        by_output: Mapping[relax.Var, Site],
        layout: str,
        target: tvm.target.Target,
        precision: str,
    ) -> None:
        self._values, self._by_output, self._layout = block.values, by_output, layout
        self._target, self._precision = target, precision
        self._parents: dict[relax.Var, relax.Var] = {}
        self.live = block.live({var: site.operands for var, site in by_output.items()})
        found = {var: interleaving(var, block) for var in self.live if var not in by_output}
        self.interleaved = {var: each[0] for var, each in found.items() if each is not None}
        self._on_the_way = {var for each in found.values() if each is not None for var in each[1]}

    def inner_vars(self, in_nchw: Collection[relax.Var]) -> set[relax.Var]:
        """Return the variables to hold in the inner layout: those of groups that something writes and reads in it.

        That is a convolution or a permutation of axes, or a mean of planes as the reader.
        """
        fixed, written, read = set[relax.Var](in_nchw), set[relax.Var](), set[relax.Var]()
        sites, permuted = [], list[relax.Var]()
        for var in self.live:
            if var in self._on_the_way:
                continue
            if not isinstance(var, relax.DataflowVar) or not _divides(var, self._layout):
                fixed.add(var)
            value, site = self._values[var], self._by_output.get(var)
            if site is None:
                fixed.update(self._joined(var, value))
                if self._is_permuted(value, NCHW_FROM_NHWC):
                    written.add(var)
                    permuted.append(var)
                elif self._is_permuted(value, NHWC_FROM_NCHW):
                    read.add(value.args[0])
                    permuted.append(value.args[0])
                elif self._layout == "NHWC" and _is_mean(value):
                    read.add(value.args[0])
            elif var in in_nchw or not self._takes_it(site):
                fixed.update([var, *free_variables(*site.operands)])
            else:
                operands = dict(zip(site.described.operands, site.operands, strict=False))
                x = free_variables(operands["x"])
                read.update(x)
                written.add(var)
                fixed.update(free_variables(operands["w"]))
                if "residual" in operands:
                    self._join(var, operands["residual"])
                if site.described.is_depthwise:  # templates take both ends in one layout
                    self._join(var, *x)
                sites.append(site)
        fixed.update(var for var in self._parents if var not in self._values)  # from outside the block
        roots = [{self._root(var) for var in each} for each in (written, read, fixed)]
        chosen = self._fastest(sites, permuted, (roots[0] & roots[1]) - roots[2])
        return {var for var in self.live if self._root(var) in chosen}

    def _fastest(self, sites: Sequence[Site], permuted: Sequence[relax.Var], groups: set[relax.Var]) -> set[relax.Var]:
        """Return the groups to hold in the inner layout, by their roots, such that no single change would save time."""
        ends = [(self._root_of(site.operands[0]), self._root(site.output)) for site in sites]
        cycles_of_moves = [(self._root(var), self._moving_cycles(var)) for var in permuted]
        ordered = [root for root in dict.fromkeys(map(self._root, self.live)) if root in groups]
        sites_of = {root: [number for number, roots in enumerate(ends) if root in roots] for root in ordered}

        def cycles(numbers: Iterable[int], chosen: set[relax.Var]) -> float:
            moving = sum(cycles for root, cycles in cycles_of_moves if root not in chosen)
            return moving + sum(of_site(number, *(root in chosen for root in ends[number])) for number in numbers)

        @cache  # a search asks for it again
        def of_site(number: int, x_is_inner: bool, output_is_inner: bool) -> float:
            layout, out_layout = (self._layout if inner else "NCHW" for inner in (x_is_inner, output_is_inner))
            workload = msgspec.structs.replace(sites[number].described, layout=layout, out_layout=out_layout)
            constant = sites[number].is_constant
            problem = Problem(workload, precision=self._precision, constant_weight=constant)
            return least_cycles(problem, self._target)

        def improved(chosen: set[relax.Var]) -> set[relax.Var]:
            while better := [
                root for root, numbers in sites_of.items() if cycles(numbers, chosen ^ {root}) < cycles(numbers, chosen)
            ]:
                chosen = chosen ^ {better[0]}
            return chosen

        starts = groups, set[relax.Var]()
        return min(map(improved, starts), key=lambda chosen: cycles(range(len(ends)), chosen))

    def _takes_it(self, site: Site) -> bool:
        """Return whether a template takes a convolution in the layout, for those ends that its blocks divide."""
        workload, x = site.described, site.operands[0]
        if not same_sizes(x.ty, site.shaped.x_shape) or not same_sizes(site.output.ty, site.shaped.output_shape):
            return False  # one with a single spatial axis, or a linear layer
        if workload.epilogue.residual and not isinstance(site.operands[-1], relax.Var):
            return False  # a constant, which is in NCHW
        problem = msgspec.structs.replace(site.problem(self._precision), workload=with_layout(workload, self._layout))
        return bool(algorithms_for(problem, self._target))

    def _moving_cycles(self, var: relax.Var) -> float:
        """Return the clock cycles in which a kernel on a GPU permutes the axes of a tensor, at the speed of its memory.

        A size that is known only when the model runs counts as 1.
        """
        elements = prod(size if isinstance(size, int) else 1 for size in sizes_of(var.ty) or ())
        size = 2 * elements * int(tvm_ffi.dtype(str(var.ty.dtype)).itemsize)
        return KERNEL + size / gpu_of(self._target).bytes_per_clock

    def _root_of(self, x: relax.Expr) -> relax.Var | None:
        return self._root(x) if isinstance(x, relax.Var) else None

    def _joined(self, var: relax.Var, value: relax.Expr) -> list[relax.Var]:
        """Group a variable that no convolution computes with its operands; return the variables that stay NCHW."""
        arguments = free_variables(value)
        if _is_mean(value) or self._is_permuted(value, NHWC_FROM_NCHW):
            return [var]
        if self._is_permuted(value, NCHW_FROM_NHWC):
            return arguments
        if (planes := self.interleaved.get(var)) is not None:
            if not isinstance(planes.source, relax.Var) or planes.channels % channel_block(self._layout):
                return [var, *arguments, *free_variables(planes.source)]
            self._join(var, planes.source)
            return []
        if self._layout == "NHWC" and is_split(value):  # its parts are joined with what is split
            return []
        if self._layout == "NHWC" and (source := channels_of(value, self._values)) is not None:
            self._join(var, source)
            return []
        if _is_concatenation(value) or operator_name(value) in POOLING or _is_elementwise(value):
            vectors = [each for each in arguments if _vector_shape(each, value)]
            self._join(var, *(each for each in arguments if each not in vectors))
            return vectors
        return [var, *arguments]

    def _is_permuted(self, value: relax.Expr, axes: tuple[int, ...]) -> bool:
        """Return whether the inner layout is NHWC, and a value permutes axes as `axes`, from NCHW to it or back."""
        return self._layout == "NHWC" and is_permutation(value, axes)

    def _join(self, first: relax.Var, *others: relax.Var) -> None:
        for var in others:
            self._parents[self._root(var)] = self._root(first)

    def _root(self, var: relax.Var) -> relax.Var:
        while not (parent := self._parents.setdefault(var, var)).same_as(var):
            var = parent
        return var


def with_layout(workload: ConvWorkload, layout: str) -> ConvWorkload:
    """Return a workload with x and output in a layout, each where the layout's blocks divide its channels."""
    ends = {"layout": workload.in_channels, "out_layout": workload.out_channels}
    chosen = {name: layout for name, channels in ends.items() if channels % channel_block(layout) == 0}
    return msgspec.structs.replace(workload, **chosen)


def _with_layouts(site: Site, inner_vars: Collection[relax.Var], layout: str) -> Site:
    """Return a site with x and output in the inner layout where those variables are held in it."""
    ends = {"layout": site.operands[0], "out_layout": site.output}
    chosen = {name: layout for name, var in ends.items() if var in inner_vars}
    if not chosen:
        return site
    workload = msgspec.structs.replace(site.described, **chosen)
    convolution = redescribed(site.convolution, workload, site.operands[0].ty)
    return replace(site, convolution=convolution, workload=workload)


def _with_layout(
    var: relax.Var, value: relax.Expr, inner_vars: Collection[relax.Var], layout: str
) -> relax.Expr | None:
    """Return the expression that computes a variable from tensors in the layout; None where it stays the same."""
    order = data_layout(layout)
    if _is_mean(value) and value.args[0] in inner_vars:
        # Of one pixel both layouts are the same.
        return relax.op.reshape(relax.op.mean(value.args[0], list(order.spatial), keepdims=True), var.ty.shape)
    if is_permutation(value, NHWC_FROM_NCHW) and value.args[0] in inner_vars:
        return value.args[0]
    if is_split(value) and value.args[0] in inner_vars:
        return with_channel_axis(value, order.channels)
    if var not in inner_vars or not isinstance(value, relax.Call):
        return None
    if chooses_channels(value):
        return with_channel_axis(value, order.channels)
    if is_permutation(value, NCHW_FROM_NHWC):
        return value.args[0]
    if _is_concatenation(value):
        return relax.op.concat(value.args[0], order.channels)
    if (pool := POOLING.get(value.op.name)) is not None:
        attrs = value.attrs
        how = attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation, attrs.ceil_mode, attrs.count_include_pad
        return pool(value.args[0], *how, layout, layout)
    vectors = [(each, _vector_shape(each, value)) for each in value.args]
    arguments = [relax.op.reshape(each, order.shape(shape)) if shape else each for each, shape in vectors]
    return relax.Call(value.op, arguments, value.attrs) if any(shape for _, shape in vectors) else None


def _is_mean(value: relax.Expr) -> bool:
    """Return whether a value is the mean of each plane (H, W)."""
    name = operator_name(value)
    if name == "relax.nn.adaptive_avg_pool2d":
        return [int(size) for size in value.attrs.output_size or ()] == [1, 1] and value.attrs.layout == "NCHW"
    if name != "relax.mean" or value.args[0].ty.ndim != 4:
        return False
    return sorted(int(axis) % 4 for axis in value.attrs.axis or ()) == [2, 3]


def is_permutation(value: relax.Expr, axes: tuple[int, ...]) -> bool:
    """Return whether a value permutes the axes of a tensor of four dimensions as `axes`."""
    if operator_name(value) != "relax.permute_dims" or value.args[0].ty.ndim != 4 or value.attrs.axes is None:
        return False
    return tuple(int(axis) % 4 for axis in value.attrs.axes) == axes


def _is_concatenation(value: relax.Expr) -> bool:
    """Return whether a value joins tensors along their channels."""
    if operator_name(value) != "relax.concat" or value.attrs.axis != 1:
        return False
    return isinstance(value.args[0], relax.Tuple) and all(isinstance(each, relax.Var) for each in value.args[0].fields)


def _is_elementwise(value: relax.Expr) -> bool:
    """Return whether each element of a value depends on elements at its index, scalars and channel vectors only."""
    if (operator_name(value) or "").removeprefix("relax.") not in BY_ELEMENT:
        return False
    shape = sizes_of(value.ty)
    arguments = [each for each in value.args if isinstance(each.ty, relax.TensorType)]
    return shape is not None and all(
        (isinstance(each, relax.Var) and same_sizes(each.ty, shape)) or is_scalar(each) or _vector_shape(each, value)
        for each in arguments
    )


def is_scalar(argument: relax.Expr) -> bool:
    """Return whether a tensor has a single element."""
    shape = static_shape(argument.ty)
    return shape is not None and prod(shape) == 1


def _vector_shape(argument: relax.Expr, value: relax.Expr) -> tuple[int, int, int, int] | None:
    """Return the shape (N or 1, C, 1, 1) of an argument with one number for each channel of a value (N, C, H, W).

    None for any other argument.
    """
    if not all(isinstance(each.ty, relax.TensorType) for each in (argument, value)):
        return None
    given, shape = sizes_of(argument.ty), sizes_of(value.ty)
    if given is None or shape is None or len(shape) != 4 or same_sizes(argument.ty, shape) or len(given) not in (3, 4):
        return None
    n, *rest = (1, *given)[-4:]
    channels = shape[1]
    of_channels = isinstance(channels, int) and channels > 1 and rest == [channels, 1, 1]
    return (n, channels, 1, 1) if of_channels and (n == 1 or n is shape[0]) else None


def _divides(var: relax.Var, layout: str) -> bool:
    """Return whether a variable is a tensor (N, C, H, W) whose channels are whole blocks of a layout."""
    shape = sizes_of(var.ty) if isinstance(var.ty, relax.TensorType) else None
    if shape is None or len(shape) != 4:
        return False
    return isinstance(shape[1], int) and shape[1] % channel_block(layout) == 0
