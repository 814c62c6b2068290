"""The pass that gives convolutions the kernels of tvmconv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

import msgspec
import numpy as np
import tvm
from tvm import relax

from tvmconv import dispatch, lowering
from tvmconv.compute import with_sizes
from tvmconv.errors import InvalidArgumentError
from tvmconv.lowering.folding.constants import COMPILED_IN
from tvmconv.lowering.workspace import Workspace, take_out
from tvmconv.problem import FusedProblem, Problem
from tvmconv.problem.dtypes import FLOATS, NARROW
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of, multiplies, resolve_target

from ..graph.constants import same_sizes
from ..graph.convolutions import GIVE_SIZES
from ..graph.graph import rebind
from ..graph.layers import Convolution, Layer
from ..graph.shuffles import expand_shuffles, gather_shuffles
from ..sites import Site, find_convolutions
from .exact_sums import with_exact_sums
from .gates import gates_of
from .joints import Joint, Slice, joints_of, pooled_parts, slices_of
from .layouts import choose_layouts
from .packing import Packing, split_packing
from .sparse_kernels import SparseChoice, SparseKernels

STORING_APART, READING_APART = {"cuda/tensor", "cuda/winograd"}, {"cuda/depthwise_nhwc", "cuda/depthwise_planes"}
"""The templates for GPUs whose kernels store, and read, pixels in NHWC that may be apart in memory."""


class NetworkKernel(NamedTuple):
    """A function of the module that computes convolutions of one problem."""

    function: relax.GlobalVar
    packings: tuple[Packing | None, ...]
    """The functions that lay a constant weight out, one for each range of batches; nothing for a computed weight."""
    workspace: Workspace


class FusedKernel(NamedTuple):
    """A function of the module that computes attention or a gate."""

    function: relax.GlobalVar
    selection: dispatch.Selection

    def layer(self, convolution: Convolution, reason: str) -> Layer:
        """Return the layer of one of the convolutions that the kernel computes."""
        config, function = msgspec.to_builtins(self.selection.config), str(self.function.name_hint)
        return Layer(convolution, f"tvmconv {self.selection.name}", config, reason, function)


def sites_for(mod: tvm.IRModule, target: tvm.target.Target) -> list[Site]:
    """Return the sites that get kernels on a target, and those of convolutions that stay with TVM.

    A convolution that no template takes with a size that is known only when the model runs is TVM's, too.
    """

    def obstacle(site: Site) -> str | None:
        dtype = site.described.dtype
        if dtype in NARROW and not multiplies(target, dtype):
            return f"{target.kind.name} has no instructions for {dtype}"
        try:
            dispatch.templates_for(site.problem(DEFAULT), target)
        except InvalidArgumentError as error:
            return str(error)
        return None

    found = find_convolutions(mod, obstacle)
    return [_left_to_tvm(site, target) if _is_too_open(site, target) else site for site in found]


def _is_too_open(site: Site, target: tvm.target.Target) -> bool:
    """Return whether a site has sizes that are known only when the model runs, and no template takes it with them."""
    return bool(site.convolution.open_sizes) and not dispatch.algorithms_for(site.problem(DEFAULT), target)


def _left_to_tvm(site: Site, target: tvm.target.Target) -> Site:
    """Return the site of a convolution without a kernel for its open sizes."""
    names = " and ".join(site.convolution.open_sizes)
    obstacle = f"the {names} is known only when the model runs, and no kernel for {target.kind.name} takes it so"
    obstacle += f"; {GIVE_SIZES}"
    convolution = replace(site.convolution, workload=None, obstacle=obstacle, open_sizes=(), is_too_open=True)
    return Site(convolution, None, (), site.output)


def use_kernels(
    mod: tvm.IRModule, target: tvm.target.Target, sparse: str = "auto", precision: str = DEFAULT
) -> tuple[tvm.IRModule, tuple[Layer, ...]]:
    """Return the module with a scheduled kernel for each convolution that can have one, and what runs each layer.

    Padding with zeros before a convolution goes into its kernel, and so do bias, factors, batch norm, an addition of
    another tensor and clips behind it. A linear layer is a convolution with kernels and images of one element.
    Convolutions with equal workloads share a kernel. Weights that are constants are laid out here and now as the kernel
    wants them. Where `sparse`, one of `MODES`, says so, they are compiled in: such kernels are modules of their own, in
    the attribute "external_mods". The others have the `precision`, one of `WORDS`.

    On a GPU two small layers behind the means of planes are one kernel, as `gates_of` says.

    On a CPU, what convolutions hand to each other is in blocks of channels, as `choose_layouts` says.

    Kernels store their outputs in the tensors that concatenations make of them, as `joints_of` says.

    Before: `y = R.nn.conv2d(x, w)`, `z = R.add(y, bias)`, `output = R.nn.relu(z)`.
    After: `output = R.call_tir(tvmconv_direct_0f3a91c2d47b, (x, packed, shift))`.
    """
    mod = gather_shuffles(mod) if backend_of(target).on_gpu else mod
    mod, sites = with_exact_sums(mod, sites_for(mod, target), lambda changed: sites_for(changed, target))
    builder = relax.BlockBuilder(mod)
    kernels: dict[tuple[object, ...], NetworkKernel] = {}
    workloads = [site.workload for site in sites if site.workload is not None]
    sparse_kernels = SparseKernels(target, sparse, workloads, precision)
    chosen = _choose_sparse(sites, sparse_kernels)
    dense = [site for place, site in enumerate(sites) if place not in chosen]
    gates = gates_of(mod, dense, target, precision)
    gated = {site.output: pair for pair in gates for site in (pair.first, pair.second)}
    in_nchw = [*(sites[place].output for place in chosen), *gated]
    sites, calls = choose_layouts(mod, sites, target, in_nchw, precision)
    fused = {pair.problem: add_fused(builder, pair.problem, target) for pair in gates}
    calls.update({pair.second.output: pair.call(fused[pair.problem].function) for pair in gates})
    own = [site for place, site in enumerate(sites) if place not in chosen and site.output not in gated]
    choices = _choices([site for site in own if site.workload is not None], target, precision)
    reading = [site for site in own if _is_by(READING_APART, choices.get(site.output))]
    storing = [site for site in own if _stores_apart(site, choices.get(site.output), target)]
    slices = slices_of(mod, reading, calls)
    joints = joints_of(mod, storing, calls, slices)
    calls.update(pooled_parts(mod, calls, joints))
    layers = []
    for place, site in enumerate(sites):
        if site.workload is None:
            layers.append(Layer(site.convolution, "TVM", None, _why(str(site.convolution.obstacle), site)))
            continue
        if choice := chosen.get(place):
            calls[site.output] = _sparse_call(site, choice)
            reason = _why(choice.reason, site)
            layers.append(Layer(site.convolution, f"tvmconv {choice.template}", choice.config, reason, choice.name))
            continue
        if pair := gated.get(site.output):
            kernel = fused[pair.problem]
            layers.append(kernel.layer(site.convolution, _why(f"{pair.reason}; {kernel.selection.reason}", site)))
            continue
        problem, weight, joint = site.problem(precision), site.weight, joints.get(site.output)
        ranges = choices[site.output]
        selection, part = ranges[0].selection, _slice(site, slices)
        places = {**({"x": part.place} if part else {}), **({"output": joint.place} if joint else {})}
        if (key := (problem, weight is not None, *places.items())) not in kernels:
            kind = dispatch.algorithm_of(selection.name)
            kernels[key] = add_kernel(builder, ranges, target, kind, weight is not None, places)
        call = _call(site, weight, kernels[key], part, joint)
        calls[site.output if joint is None or not joint.is_last else joint.whole] = call
        config, why = msgspec.to_builtins(selection.config), _why(reason_of(ranges), site)
        function = str(kernels[key].function.name_hint)
        layers.append(Layer(site.convolution, f"tvmconv {selection.name}", config, why, function))
    mod = expand_shuffles(rebind(builder.get(), calls))
    if modules := sparse_kernels.compiled():
        mod = mod.with_attr("external_mods", modules)
    return mod, tuple(layers)


def _choices(
    sites: Sequence[Site], target: tvm.target.Target, precision: str
) -> dict[relax.Var, tuple[dispatch.Range, ...]]:
    """Return the kernels for sites, by the variables of their outputs; those of equal problems are chosen once."""
    found: dict[Problem, tuple[dispatch.Range, ...]] = {}
    for problem in (site.problem(precision) for site in sites):
        if problem not in found:
            found[problem] = dispatch.select_ranges(problem, target)
    return {site.output: found[site.problem(precision)] for site in sites}


def _is_by(templates: Set[str], ranges: Sequence[dispatch.Range] | None) -> bool:
    """Return whether templates have the kernels of all ranges; none are those of a convolution that is left to TVM."""
    return ranges is not None and all(each.selection.name in templates for each in ranges)


def _stores_apart(site: Site, ranges: Sequence[dispatch.Range] | None, target: tvm.target.Target) -> bool:
    """Return whether the kernels of a site can store their output as channels of a larger tensor: on a CPU all can."""
    if not backend_of(target).on_gpu:
        return ranges is not None
    return site.workload is not None and site.workload.out_layout == "NHWC" and _is_by(STORING_APART, ranges)


def _slice(site: Site, slices: Mapping[relax.Var, Slice]) -> Slice | None:
    """Return the slice that the kernel of a site reads where it is."""
    return next((each for each in slices.values() if site.output in each.layers), None)


def _why(reason: str, site: Site) -> str:
    """Return the reason for a kernel, and the one why it is in floating point where its operands are quantized."""
    in_float = site.convolution.in_float
    return reason if in_float is None else f"{reason}; in {site.output.ty.dtype}: {in_float}"


def _choose_sparse(sites: Sequence[Site], kernels: SparseKernels) -> dict[int, SparseChoice]:
    """Choose the sparse kernels, by the places of their sites."""
    chosen = {}
    for place, site in enumerate(sites):
        if site.workload is None or site.workload.dtype not in FLOATS:
            continue
        if choice := kernels.choose(
            site.convolution.name, site.workload, site.weight, site.vectors, site.convolution.open_sizes
        ):
            chosen[place] = choice
    return chosen


def add_kernel(
    builder: relax.BlockBuilder,
    ranges: Sequence[dispatch.Range],
    target: tvm.target.Target,
    kind: str,
    constant: bool,
    places: Mapping[str, lowering.AnyPlace] | None = None,
) -> NetworkKernel:
    """Add a function with the kernels for ranges of batches to the module; `constant` says if the weight is one.

    Operands with places, by their names, are the tensors that they lie in.

    Its name has the kind in it, and is the same in all networks: the source of equal functions is compiled once.
    """
    content: list[object] = [(least, problem.to_json(), str(selection.config)) for least, problem, selection in ranges]
    content += sorted(places.items()) if places else []
    name = f"tvmconv_{kind}_{sha256(repr((content, constant)).encode()).hexdigest()[:12]}"
    key = _name_to_keep(name, content, ranges, target)
    if key is not None and (known := lowering.found(key)) is not None:
        laid_out = tuple(each and Packing(lowering.from_bitcode(each[0]), *each[1:]) for each in known.packings)
        return NetworkKernel(builder.add_func(known.function, name), laid_out, known.workspace)
    parts, weights, packings = [], [], list[Packing | None]()
    for least, problem, selection in ranges:
        func, packing = lowering.lower(problem, selection, target, name), None
        func = lowering.with_places(func, places, target) if places else func
        if constant:
            count = len(func.params)
            func, packing = split_packing(func)
            weights.append(1 + len(func.params) - count)
            packings.append(packing)
        parts.append(lowering.Part(least, *take_out(func, target)))
    func, workspace = lowering.join(parts, weights)
    func = lowering.limited(func, workspace, target)
    if key is not None:
        kept = [each and (lowering.bitcode(each.code), each.specs, each.keeps_weight) for each in packings]
        func = lowering.declare(key, func, workspace, kept)
    return NetworkKernel(builder.add_func(func, name), tuple(packings), workspace)


def add_fused(builder: relax.BlockBuilder, problem: FusedProblem, target: tvm.target.Target) -> FusedKernel:
    """Add a function with the kernel of attention or a gate to the module."""
    selection = dispatch.select(problem, target)
    ranges, kind = [dispatch.Range(1, problem, selection)], dispatch.algorithm_of(selection.name)
    return FusedKernel(add_kernel(builder, ranges, target, kind, False).function, selection)


def _name_to_keep(
    name: str, content: object, ranges: Sequence[dispatch.Range], target: tvm.target.Target
) -> str | None:
    """Return the name by which a function is kept on disk; None on a CPU, and for templates of one's own."""
    is_ours = all(dispatch.TEMPLATES.get(each.selection.name) is each.selection.template for each in ranges)
    if not backend_of(target).on_gpu or not is_ours:
        return None
    templates = [each.selection.name for each in ranges]
    return lowering.name_for(name, content, templates, str(target), str(resolve_target("llvm")))


def reason_of(ranges: Sequence[dispatch.Range]) -> str:
    """Return the reasons why kernels are taken, with the ranges of all but the first."""
    reason = ranges[0].selection.reason
    for least, problem, selection in ranges[1:]:
        sizes = f"{least} pixels of all images" if problem.has_open_planes else f"a batch of {least}"
        reason += f"; from {sizes} on {selection.name}, {selection.reason}"
    return reason


def _call(
    site: Site, weight: np.ndarray | None, kernel: NetworkKernel, part: Slice | None, joint: Joint | None
) -> relax.Expr:
    """Return the expression that computes a site's output with a kernel: of a slice's source, and in a joined tensor.

    Tensors with one spatial axis get a second one of size 1 for the kernel. To Relax the workspace is further outputs
    that nobody reads, so that it plans their memory together with all other memory.
    """
    workload = site.shaped
    *shapes, _ = workload.in_nchw().operands.values()
    operands = [_shaped(operand, shape) for operand, (shape, _) in zip(site.operands, shapes, strict=True)]
    if part is not None:
        operands[0] = part.source
    if weight is not None:
        constants = [packing(weight) if packing else [weight] for packing in kernel.packings]
        operands[1:2] = [relax.const(each) for packed in constants for each in packed]
    if joint is None:
        return _reshaped(output_of(kernel, workload, operands), site)
    shape = joint.place.shape(workload.operands["output"][0])
    return output_of(kernel, workload, operands, shape, joint.before)


def output_of(
    kernel: NetworkKernel,
    workload: ConvWorkload,
    operands: Sequence[relax.Expr],
    shape: tuple[int, ...] | None = None,
    inside: relax.Var | None = None,
) -> relax.Expr:
    """Return the expression that computes a workload's output, as it lies in memory or in a shape, with a kernel.

    Where it is stored inside of a tensor, that one is the result.
    """
    own, dtype = workload.operands["output"]
    outputs = [relax.TensorType(*each) for each in ((shape or own, dtype), *kernel.workspace.sized(workload))]
    if inside is None:
        call = relax.call_tir(kernel.function, operands, outputs)
    else:
        places = [len(operands), *(-1 for _ in outputs[1:])]
        call = relax.call_tir_inplace(kernel.function, [*operands, inside], places, outputs)
    return relax.TupleGetItem(call, 0) if kernel.workspace.parameters else call


def _sparse_call(site: Site, choice: SparseChoice) -> relax.Expr:
    """Return the expression that computes a site's output with a sparse kernel, which holds the constants."""
    *names, output = site.described.operands
    operands = dict(zip(names, site.operands, strict=True))
    wanted = with_sizes(choice.workload, site.sizes).operands
    taken = [_shaped(operand, wanted[name][0]) for name, operand in operands.items() if name not in COMPILED_IN]
    return _reshaped(relax.call_dps_packed(choice.name, taken, relax.TensorType(*wanted[output])), site)


def _reshaped(call: relax.Expr, site: Site) -> relax.Expr:
    """Return a kernel's output in the shape that the model has."""
    shape = site.shaped.output_shape
    return call if same_sizes(site.output.ty, shape) else relax.op.reshape(call, site.output.ty.shape)


def _shaped(operand: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return operand if same_sizes(operand.ty, shape) else relax.op.reshape(operand, shape)
