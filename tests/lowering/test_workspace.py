"""The workspace of kernels: passed with the call on a GPU, known in bytes everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm
from tvm import tirx

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build, build_kernel, lower
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import Workspace, take_out
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime.arrays import operand
from tvmconv.schedules.cpu import direct as direct_on_cpu
from tvmconv.schedules.cpu.direct import im2win as im2win_on_cpu
from tvmconv.schedules.cuda.simt.direct import Config
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})
TWIN = resolve_target(TWIN_TARGET)
AVX_512 = resolve_target({"kind": "llvm", "mcpu": "skylake-avx512"})
POOL = "TVMBackendAllocWorkspace"
"""The function by which TVM's code takes memory from its pool."""

DENSE = ConvWorkload.conv2d((2, 16, 9, 11), (24, 16, 3, 3), padding=1, shift=True)
TILE = Config(4, 8, 4, 2, 2, 4, 4, 8, 1, 1)
Parameters = tuple[tuple[tuple[int, ...], str], ...]

PACKED = ((1, 16, 3, 3, 32), "float32")  # 24 channels in a block of 32
SUMS = ((2, 1, 24, 198), "float32")  # 2 parts, 1 group, 2 * 9 * 11 pixels
CASES = {
    "nothing": (DENSE, TILE, ()),
    "packed": (DENSE, replace(TILE, packed=True), (PACKED,)),
    "split-k": (DENSE, replace(TILE, split_k=2), (SUMS,)),
    "packed-split-k": (DENSE, replace(TILE, packed=True, split_k=2, num_stages=2), (PACKED, SUMS)),
    **{
        f"{dtype}-packed": (
            ConvWorkload.conv2d((2, 16, 12, 12), (64, 16, 3, 3), dtype=dtype),
            replace(TILE, packed=True),
            (((2, 16, 3, 3, 32), dtype),),
        )
        for dtype in NARROW
    },
}


@pytest.mark.parametrize(("workload", "config", "parameters"), CASES.values(), ids=CASES.keys())
def test_on_a_gpu_it_comes_with_the_call(
    workload: ConvWorkload, config: Config, parameters: tuple[object, ...]
) -> None:
    executable, workspace, _ = build_kernel(Problem(workload), select(Problem(workload), SM_90, config), SM_90)
    assert workspace.parameters == parameters
    assert POOL not in str(executable.mod.inspect_source("ll"))
    func, _ = take_out(lower(Problem(workload), select(Problem(workload), SM_90, config), SM_90, KERNEL_NAME), SM_90)
    twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(func)}), TWIN)
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    # What was in it before does not matter.
    twin[KERNEL_NAME](*tensors, *(tvm.runtime.tensor(np.full(shape, np.nan, dtype)) for shape, dtype in parameters))
    check_result(workload, operands, tensors[-1].numpy())


def test_on_a_cpu_its_bytes_are_known() -> None:
    """It has the weight, 24 channels in a block of 32, and the whole padded input or all windows where staged."""
    direct, im2win = direct_on_cpu.Config, im2win_on_cpu.Config
    tile, packed = {"vectors": 2, "vector": 16, "rows": 1, "columns": 11, "channels": 4, "tiles": 1}, 4 * 32 * 16 * 9
    for config, staged in (
        (direct(**tile, staged=0, parallel=False), 0),
        (direct(**tile, staged=1, parallel=False), 0),
        (direct(**tile, staged=2, parallel=False), 2 * 16 * 11 * 13),
        (im2win(**tile, staged=1, parallel=False), 0),
        (im2win(**tile, staged=2, parallel=False), 2 * 16 * 9 * 13 * 3),
    ):
        assert tvmconv.compile(DENSE, AVX_512, config).workspace_bytes == packed + 4 * staged, config
    assert tvmconv.compile(ConvWorkload.depthwise((1, 4, 9, 9), (4, 1, 3, 3)), CPU).workspace_bytes == 0


def test_in_a_network_it_is_planned_with_all_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both a constant weight and a computed one are tried, with numbers by serial twins."""
    graph = Graph((2, 16, 9, 11))
    y = graph.node("Relu", graph.conv("x", (24, 16, 3, 3), pads=[1] * 4))
    weight = graph.node("Mul", graph.random(8, 24, 1, 1), graph.node("ReduceMean", "x", keepdims=1))
    model = tvmconv.import_model(graph.model(graph.node("Conv", y, weight)))
    x = np.random.default_rng(0).standard_normal((2, 16, 9, 11)).astype("float32")
    expected = tvmconv.build(model, CPU, precision="strict")(x)
    chosen = {24: replace(TILE, packed=True, split_k=2), 8: replace(TILE, packed=True, vthreads_m=1)}
    monkeypatch.setattr(
        "tvmconv.dispatch.ranges.select",
        lambda problem, target: select(problem, target, chosen[problem.workload.out_channels]),
    )
    mod, layers = use_kernels(model.mod, SM_90, "never", "strict")
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/direct"] * 2
    assert POOL not in str(build(mod, SM_90).mod.imports[0].inspect_source("ll"))
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            mod[name] = serial_twin(func)
    network = tvmconv.network.Network(build(mod, TWIN), str(TWIN), model.inputs, model.outputs, layers, ())
    np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_it_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "operator.so"
    operator = tvmconv.compile(DENSE, algorithm="direct")
    operator.save(path)
    assert tvmconv.load(path).workspace_bytes == operator.workspace_bytes > 0
    older = tmp_path / "older.so"
    older.write_bytes(path.read_bytes().replace(b'"workspace"', b'"something"'))
    with pytest.raises(InvalidArgumentError, match="a file that this version understands; .* made it .it lacks"):
        tvmconv.load(older)


def test_saved_for_a_gpu_it_says_what_it_wants() -> None:
    executable, workspace, _ = build_kernel(
        Problem(DENSE), select(Problem(DENSE), SM_90, replace(TILE, split_k=2)), SM_90
    )
    operator = tvmconv.Operator(Problem(DENSE), SM_90, select(Problem(DENSE), SM_90), executable, workspace)
    assert operator.workspace_bytes == 4 * 2 * 24 * 198
    assert workspace == Workspace(4 * 2 * 24 * 198, (SUMS,))


@pytest.mark.parametrize("batch", [1, 5])
def test_a_call_with_an_open_batch_passes_what_its_batch_wants(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of the CPU stand for those of a GPU."""
    config = replace(TILE, packed=True, split_k=2)
    operator = tvmconv.compile(DENSE, SM_90, config, open_sizes=("batch",))
    monkeypatch.setattr(tvmconv.Operator, "_device_type", tvm.cpu().dlpack_device_type())
    arrays = random_operands(msgspec.structs.replace(DENSE, batch=batch))
    del arrays["output"]
    launch = operator.launch(arrays["x"], [operand(name, array) for name, array in arrays.items()])
    assert [new().shape for new in launch.new_workspace] == [PACKED[0], (2, 1, 24, batch * 9 * 11)]
