"""`benchmarks/ablation.py`: the configurations without an optimization, their results, and the rows."""

from __future__ import annotations

import pytest
import tvm

from tests.shared.scripts import rows_of, script
from tests.shared.sparing import every
from tvmconv import ConvWorkload
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch import select, template_named
from tvmconv.lowering import build, lower
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

CPU, H100 = resolve_target("llvm"), resolve_target("nvidia/nvidia-h100")
LAYER = ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 3, 3), padding=1, shift=True, activation="relu")
POINTWISE = ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 1, 1), shift=True, activation="relu")
SWITCHES = {
    "cuda": ["micro-kernel", "vector loads", "prefetch", "packing"],
    "llvm": ["micro-kernel", "vectors", "staging", "threads"],
}


@pytest.mark.parametrize("algorithm", ["direct", "im2win"])
def test_a_thesis_layer_has_every_switch(algorithm: str) -> None:
    template = template_named(f"cuda/{algorithm}")
    for workload in load_suite("im2win-thesis", "cuda").values():
        space = template.space(Problem(workload), H100)
        found = template.ablations(space.default)
        assert list(found) == SWITCHES["cuda"]
        assert not any(space.violated(config) for config in found.values())
        assert found["micro-kernel"].outputs == 1


@pytest.mark.parametrize("algorithm", every(2, ["direct", "im2win"]))
def test_configurations_compute_the_layer(algorithm: str) -> None:
    """The configurations are right as serial twins, all in one module."""
    template = template_named(f"cuda/{algorithm}")
    problem = Problem(LAYER)
    configs = template.ablations(template.default_config(problem, H100))
    kernels = {
        f"kernel{i}": serial_twin(
            lower(Problem(LAYER), select(Problem(LAYER), H100, config, algorithm), H100, f"kernel{i}")
        )
        for i, config in enumerate(configs.values())
    }
    executable = build(tvm.IRModule(kernels), CPU)
    for kernel in kernels:
        operands = random_operands(LAYER)
        tensors = [tvm.runtime.tensor(array) for array in operands.values()]
        executable[kernel](*tensors)
        check_result(LAYER, operands, tensors[-1].numpy())


@pytest.mark.parametrize("algorithm", every(2, ["direct", "im2win", "pointwise"]))
def test_measured_on_a_cpu(algorithm: str, brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    layer = POINTWISE if algorithm == "pointwise" else LAYER
    options = {"layers": ["layer"], "target": "llvm", "batch": None, "algorithm": algorithm, "rounds": 1}
    with script("ablation") as ablation:
        monkeypatch.setattr(ablation, "load_suite", lambda *_: {"layer": layer, "other": layer})
        (row,) = rows_of(ablation, **options)
        assert row["template"] == f"cpu/{algorithm}"
        assert {"micro-kernel", "vectors"} <= row["without"].keys() <= set(SWITCHES["llvm"])
        # Others have no windows, or none without it.
        assert ("staging" in row["without"]) == (algorithm == "direct")
        assert all(each["time"]["median"] > 0 and each["config"] != row["config"] for each in row["without"].values())
        assert all(each["left"] > 0 for each in row["without"].values())
        with pytest.raises(InvalidArgumentError, match="layers is 'conv13'; expected some of layer, other"):
            rows_of(ablation, **{**options, "layers": ["conv13"]})
