"""The scripts of `benchmarks/`: each can be imported, and those of one convolution measure small ones here."""

from __future__ import annotations

import pytest

from tests.shared.scripts import FOLDER, rows_of, script
from tvmconv import ConvWorkload
from tvmconv.targets import cuda

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("brief")

ON_GPU = ("causal_triton",)
"""The scripts that need Triton."""
SMALL = ConvWorkload.depthwise((1, 4, 9, 8), (4, 1, 3, 3), stride=2, padding=(0, 1, 1, 0))


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.glob("*.py")} - {*ON_GPU}))
def test_it_can_be_imported(name: str) -> None:
    with script(name) as module:
        assert module.__doc__
        assert hasattr(module, "rows") <= hasattr(module, "main")


def test_gradients_beside_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"target": "llvm", "suites": ["tiny"], "dtype": "float32", "batch": None, "order": "channels_last"}
    with script("gradients") as gradients:
        monkeypatch.setattr(gradients, "load_suite", lambda *_: {"small": SMALL})
        monkeypatch.setattr(gradients, "SECONDS", {"llvm": 0.001})
        rows = rows_of(gradients, **options, rounds=1, cold=False)
        assert [(row["name"], row["kind"]) for row in rows] == [
            ("small", kind) for kind in ("forward", "input", "weight")
        ]
        for row in rows:
            assert row["error"] < gradients.CLOSE["float32"]
            assert list(row["times"]) == ["tvmconv", "pytorch", "copy"]
        monkeypatch.setattr(gradients, "CLOSE", {"float32": 0.0})
        with pytest.raises(AssertionError, match="forward of depthwise 1x4x9x8"):
            rows_of(gradients, **options, rounds=1, cold=False)


def test_sequences_beside_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    with script("sequences") as sequences:
        monkeypatch.setattr(sequences, "SECONDS", 0.001)
        rows = rows_of(sequences, target="llvm", shape=[1, 8, 32], dtypes=["float32"], rounds=1)
        assert [row["name"] for row in rows] == [
            "float32, (B, D, L)",
            "float32, (B, D, L), silu",
            "float32, (B, L, D)",
            "float32, (B, L, D), silu",
        ]
        for row in rows:
            assert row["error"] < sequences.CLOSE["float32"]
            assert list(row["times"]) == ["copy", "tvmconv", "pytorch"]


def test_both_learn_alike() -> None:
    pytest.importorskip("sklearn")
    with script("training") as training:
        losses = [training.learned(("digits", "float32", "contiguous", "eager", by), 12, "cpu") for by in training.BY]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_steps_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with script("cliffs") as cliffs:
        assert cliffs.step_between((100, 1.0), (100, 2.5)) == 2.5
        assert cliffs.step_between((100, 2.5), (101, 1.0)) == -2.5
        assert cliffs.step_between((100, 1.0), (200, 3.0)) is None
        assert cliffs.step_between((100, 1.0), (200, 5.0)) == 2.5
        monkeypatch.setattr(cliffs, "SECONDS", 0.001)
        monkeypatch.setitem(cliffs.WALKS, "small", lambda: [cliffs.Case(1, 4, 1, 5, 6), cliffs.Case(8, 4, 1, 5, 6)])
        monkeypatch.setattr(cliffs, "STEP", 0)
        options = {"target": "llvm", "walks": ["small"], "dtypes": ["float32"], "orders": ["contiguous"]}
        first, second = rows_of(cliffs, **options, rounds=1)
        assert (first["case"], first["cause"], first["step"]) == (
            {"channels": 1, "outputs": 4, "height": 5, "width": 6}, "cpu/depthwise", None,
        )  # fmt: skip
        times = [row["times"]["tvmconv"]["low"] for row in (first, second)]
        assert second["step"] == pytest.approx(times[1] / times[0] / 8)


def test_resources_of_machine_code() -> None:
    """Registers and local memory are those that the compiler tells of each kernel."""
    source = """
    extern "C" __global__ void few(float* x) { x[threadIdx.x] *= 2; }
    extern "C" __global__ void local(float* x, int n) {
      float held[64];
      for (int i = 0; i < 64; ++i) held[i] = x[i * threadIdx.x];
      for (int i = 0; i < n; ++i) x[i] = held[(i * n) % 64];
    }
    """
    told = cuda.kernel_resources(source, "sm_90")
    with script("collect") as collect:
        found = collect.kernels_of(cuda.compile_source(source, "sm_90"))
        assert sorted((each["registers"], each["local_bytes"]) for each in found) == sorted(
            (each.registers, each.stack_bytes) for each in told
        )
        assert min(each["code_bytes"] for each in found) > 0
        assert collect.code_of([cuda.compile_source(source, "sm_90")])["kernels"] == 2
