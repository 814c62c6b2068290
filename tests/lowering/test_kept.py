"""Functions of networks, and choices of configurations, that are found again by all that decides them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels
from tvmconv import lowering
from tvmconv.dispatch import registry, select_ranges
from tvmconv.lowering import kept as kept_functions
from tvmconv.lowering.gpu import side_by_side
from tvmconv.network import Network
from tvmconv.network.passes.convolutions.functions import add_kernel
from tvmconv.problem import Problem
from tvmconv.schedules.cpu.model import rates as cpu_rates
from tvmconv.schedules.cuda.model import rates as gpu_rates
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.support.store import default_folder, store
from tvmconv.targets import cuda, resolve_target, sources
from tvmconv.targets.devices import AVX512, H100

SM_90 = {"kind": "cuda", "arch": "sm_90"}
PROBLEM = Problem(tvmconv.ConvWorkload.conv2d((1, 32, 14, 14), (64, 32, 3, 3), dtype="float16"))


def model(channels: int = 32) -> onnx.ModelProto:
    """Return a network of a depthwise layer, a dense one, whose weight is packed, and a function of TVM's behind."""
    graph = Graph((1, channels, 9, 11))
    y = graph.conv("x", (channels, 1, 3, 3), pads=[1, 1, 1, 1], group=channels)
    return graph.model(graph.node("Softmax", graph.conv(y, (64, channels, 3, 3)), axis=1))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep functions and choices in a folder of their own, by a digest that the test may change."""
    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "digest", lambda: "these sources")
    forget()


def forget() -> None:
    """Forget what this process has chosen."""
    registry.default_config.cache_clear()
    registry.estimated_cycles.cache_clear()


@pytest.fixture
def scheduled(kept: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of functions that are scheduled from now on, and of those that TVM lowers."""
    names: list[str] = []
    lower, split = lowering.lower, side_by_side.split_host_device_mods

    def noted(*args: Any) -> Any:
        names.append(args[3])
        return lower(*args)

    def noted_split(mod: tvm.IRModule) -> Any:
        names.extend(f"lowered {var.name_hint}" for var in mod.get_global_vars())
        return split(mod)

    monkeypatch.setattr(lowering, "lower", noted)
    monkeypatch.setattr(side_by_side, "split_host_device_mods", noted_split)
    return names


def build(channels: int = 32) -> Network:
    network = tvmconv.build(model(channels), SM_90)
    assert len(network.layers) == 2
    return network


def test_a_network_that_is_built_again_schedules_nothing(scheduled: list[str], tmp_path: Path) -> None:
    """Its sources are the same, each in the module of a host function with the same code, and it can be exported."""
    first = build()
    assert len([name for name in scheduled if name.startswith("tvmconv")]) == 2
    assert len([name for name in scheduled if name.startswith("lowered")]) >= 3
    scheduled.clear()
    forget()
    again = build()
    assert scheduled == []
    assert again.layers == first.layers
    assert again._executable.as_text() == first._executable.as_text()
    assert hosts(again._executable.mod) == hosts(first._executable.mod)
    again.export(tmp_path / "again.so")
    assert len(hosts(again._executable.mod)) == 3


def hosts(module: tvm.runtime.Module) -> set[tuple[str, ...]]:
    """Return the code of each host function and the sources that it launches the kernels of."""
    found, parts = set(), list(module.imports)
    for part in parts:
        parts.extend(each for each in part.imports if each.kind == "llvm")
        kernels = [str(each.inspect_source()) for each in part.imports if each.kind == "cuda"]
        lines = [line.partition(";")[0].strip() for line in str(part.inspect_source("ll")).splitlines()]
        # What it says of LLVM's own functions, and of files, is less where it was read from bitcode.
        found.add(
            ("\n".join(each for each in lines if not each.startswith(("attributes", "source_filename"))), *kernels)
        )
    return found


def test_weights_are_laid_out_alike(scheduled: list[str]) -> None:
    """The constants of a network are those of the one before, laid out by code that was kept."""
    build()
    imported = tvmconv.import_model(model()).mod
    found, anew = constants(imported), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "digest", lambda: None)
        anew = constants(imported)
    assert len(found) == len(anew) > 0
    for one, other in zip(found, anew, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_weight_that_is_read_beside_what_is_made_of_it(scheduled: list[str]) -> None:
    """Of a 1x1 convolution with a zero point the kernel reads the weight as it lies, and sums of it."""
    workload = tvmconv.ConvWorkload.conv2d((1, 64, 9, 9), (32, 64, 1, 1), dtype="uint8", x_zero_point=3)
    workload = msgspec.structs.replace(workload, layout="NHWC", out_layout="NHWC")
    target, weight = resolve_target(SM_90), np.arange(32 * 64, dtype="int8").reshape(workload.w_shape)
    ranges, packed = select_ranges(Problem(workload, constant_weight=True), target), []
    for _ in range(2):
        builder = relax.BlockBuilder()
        kernel = add_kernel(builder, ranges, target, "tensor", constant=True)
        (packing,) = kernel.packings
        assert packing is not None
        packed.append([array.numpy() for array in packing(weight)])
        if name := builder.get()[kernel.function].attrs.get(kept_functions.KEEP):
            store.put(f"{name}.code", b"")  # what compiling it would keep
    assert len(scheduled) == 1
    sums = 3 * weight.astype("int32").sum((1, 2, 3))
    for arrays in packed:
        for array, expected in zip(arrays, (weight, sums), strict=True):
            np.testing.assert_array_equal(array, expected)


def constants(imported: tvm.IRModule) -> list[np.ndarray]:
    """Return the constants of a module with kernels, in order."""
    mod, _ = use_kernels(imported, resolve_target(SM_90))
    arrays: list[np.ndarray] = []
    relax.analysis.post_order_visit(
        mod["main"], lambda node: arrays.append(node.value.numpy()) if isinstance(node, tvm.ir.GenericConst) else None
    )
    return arrays


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(sources, "digest", lambda: "other sources"),
        lambda patch: patch.setattr(sources, "digest", lambda: None),
        lambda patch: patch.setattr(store, "get", lambda key: None),
        lambda patch: [each.write_bytes(each.read_bytes()[:-40]) for each in default_folder().glob("*.code")],
        lambda patch: [each.unlink() for each in default_folder().glob("*.signature")],
    ],
    ids=["other sources", "changed sources", "no file", "damaged", "half of it"],
)
def test_what_is_not_found_is_scheduled(
    scheduled: list[str], monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], object]
) -> None:
    build()
    scheduled.clear()
    change(monkeypatch)
    build()
    assert len([name for name in scheduled if name.startswith("tvmconv")]) == 2


def test_another_target_or_context_has_functions_of_its_own(scheduled: list[str]) -> None:
    build()
    scheduled.clear()
    tvmconv.build(model(), {"kind": "cuda", "arch": "sm_80"})
    assert len([name for name in scheduled if name.startswith("tvmconv")]) == 2
    scheduled.clear()
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        build()
    assert len([name for name in scheduled if name.startswith("tvmconv")]) == 2


def test_a_layer_is_found_in_another_network(scheduled: list[str]) -> None:
    build()
    scheduled.clear()
    graph = Graph((1, 32, 9, 11))
    y = graph.conv("x", (32, 1, 3, 3), pads=[1, 1, 1, 1], group=32)
    tvmconv.build(graph.model(graph.conv(y, (16, 32, 3, 3))), SM_90)
    assert len([name for name in scheduled if name.startswith("tvmconv")]) == 1


def test_the_rest_of_a_network_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled of a layer, which is known by its problem, is the same whatever is around it."""
    contents: dict[str, list[str]] = {}

    def noted(func: tvm.tirx.PrimFunc, _: tvm.target.Target) -> None:
        contents.setdefault(str(func.attrs["global_symbol"]), []).append(kept_functions._json(func))

    monkeypatch.setattr(side_by_side, "name_of", noted)
    build()
    graph = Graph((1, 8, 9, 11))
    y = graph.conv(graph.conv("x", (32, 8, 1, 1)), (32, 1, 3, 3), pads=[1, 1, 1, 1], group=32)
    tvmconv.build(graph.model(graph.node("GlobalAveragePool", graph.conv(y, (64, 32, 3, 3)))), SM_90)
    twice = {name: found for name, found in contents.items() if name.startswith("tvmconv") and len(found) == 2}
    assert len(twice) == 2
    assert all(first == again for first, again in twice.values())


def test_source_that_somebody_changes_is_not_kept(scheduled: list[str]) -> None:
    build()
    scheduled.clear()
    before = tvm.get_global_func(kept_functions.HOOK)
    tvm.register_global_func(kept_functions.HOOK, lambda source, _: f"// changed\n{source}", override=True)
    try:
        found = cuda.sources(build()._executable.mod)
    finally:
        tvm.register_global_func(kept_functions.HOOK, before, override=True)
    assert len([name for name in scheduled if name.startswith("tvmconv")]) == 2
    assert all(source.startswith("// changed") for source in found)


def test_a_declared_function_is_no_computation() -> None:
    """TVM runs functions of constants on the CPU, where it can build them: not those for a GPU, with a body or not."""
    target = resolve_target(SM_90)
    func = lowering.lower(PROBLEM, tvmconv.dispatch.select(PROBLEM, target), target, "kernel")
    for each in (func, kept_functions._without_body(func)):
        builder = relax.BlockBuilder()
        *operands, output = (([int(size) for size in var.ty.shape], str(var.ty.dtype)) for var in each.params)
        constants = [relax.const(np.ones(*operand)) for operand in operands]
        with builder.function("main", []):
            with builder.dataflow():
                call = relax.call_tir(builder.add_func(each, "kernel"), constants, relax.TensorType(*output))
                result = builder.emit_output(call)
            builder.emit_func_output(result)
        with target:
            folded = relax.transform.FoldConstant()(builder.get())
        assert "call_tir(kernel" in str(folded["main"])


def test_a_choice_is_made_once(kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(resolve_target(SM_90))

    def chosen() -> tuple[Any, float]:
        forget()
        return registry.default_config(tensor, PROBLEM, target), registry.estimated_cycles(tensor, PROBLEM, target)

    first = chosen()
    assert first[0] == tensor.default_config(PROBLEM, resolve_target(SM_90))
    assert first[1] == tensor.estimate(PROBLEM, first[0], resolve_target(SM_90))
    with monkeypatch.context() as patch:
        patch.setattr(tensor, "default_config", None)  # a call would fail
        patch.setattr(tensor, "estimate", None)
        assert chosen() == first
    for file in default_folder().glob("*.choice"):
        file.write_bytes(file.read_bytes().replace(b"block_m", b"block_n"))  # damaged: it is chosen again
    assert chosen() == first
    monkeypatch.setattr(sources, "digest", lambda: "other sources")
    monkeypatch.setattr(tensor, "estimate", lambda *_: inf)
    assert chosen()[1] == chosen()[1] == inf


def test_changed_sources_have_no_digest(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    digest = DIGEST.__wrapped__
    before = digest()
    assert before is not None
    assert before == digest()
    monkeypatch.setattr(sources, "BEGAN", Path(sources.__file__).stat().st_mtime)
    assert digest() is None
    assert "sources.py" in caplog.text
    monkeypatch.setattr(
        sources, "BEGAN", (Path(sources.__file__).parents[1] / "schedules/cuda/device/copies.cuh").stat().st_mtime
    )
    assert digest() is None
    assert "copies.cuh" in caplog.text
    monkeypatch.setattr(sources, "BEGAN", time.time())
    monkeypatch.setattr(tvm_ffi, "__version__", "another")
    assert digest() not in (None, before)


def test_the_digest_is_of_what_kernels_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BEGAN", time.time() + 60)
    changes = (
        "cli/run.py",
        "bench/report.json",
        "schedules/cuda/mma.cuh",
        "schedules/cuda/model/rates.json",
        "lowering/kept.py",
        "network/passes/a.py",
    )
    digests = [DIGEST.__wrapped__(tmp_path)]
    for name in changes:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("changed")
        digests.append(DIGEST.__wrapped__(tmp_path))
    assert [after != before for before, after in pairwise(digests)] == [False, False, *4 * [True]]


def test_the_digest_is_of_the_user_s_rates(tmp_path: Path, user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration changes choices, which are kept by the digest."""
    monkeypatch.setattr(sources, "BEGAN", time.time() + 60)
    before = DIGEST.__wrapped__(tmp_path / "package")
    gpu_rates.USER.keep(H100.model, "NVIDIA H100 80GB HBM3", gpu_rates.rates_of(H100))
    after = DIGEST.__wrapped__(tmp_path / "package")
    cpu_rates.USER.keep(AVX512.model, "some CPU", cpu_rates.rates_of(AVX512))
    assert len({before, after, DIGEST.__wrapped__(tmp_path / "package")}) == 3


DIGEST = sources.digest
"""The library's function, instead of which tests run another."""
