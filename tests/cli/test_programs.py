"""Commands on .pt2 files, in which `torch.export.save` keeps programs, and profiles on the command line."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a program with one convolution and an open batch."""
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    module = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU()).eval()
    batch = {0: torch.export.Dim("n", max=8)}
    torch.export.save(torch.export.export(module, (torch.zeros(2, 4, 8, 8),), dynamic_shapes=({**batch},)), path)
    return path


def test_run_with_a_profile(program: Path, tmp_path: Path) -> None:
    data = tvmconv_json("run", program, "--profile", "-o", tmp_path / "y.npz", "--fill-mode", "ones", "--repeat", 2)
    (output,) = data["outputs"]
    assert output["shape"] == [1, 8, 6, 6]
    (row,) = [row for row in data["profile"] if row["kernel"].startswith("tvmconv cpu/")]
    assert 0 < row["seconds"] < 1
    assert sum(row["share"] for row in data["profile"]) == pytest.approx(1)
    (y,) = np.load(tmp_path / "y.npz").values()
    expected = torch.export.load(program).module()(torch.ones(2, 4, 8, 8))[:1]
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert "µs" in tvmconv("run", program, "--profile").stdout


def test_build_then_profile(program: Path, tmp_path: Path) -> None:
    library = tmp_path / "model.so"
    (layer,) = tvmconv_json("build", program, "-o", library)["layers"]
    rows = tvmconv_json("run", library, "--profile")["profile"]
    assert [row["name"] for row in rows if row["kernel"] == layer["kernel"]] == layer["names"]


def test_tasks_inspect_and_tune(program: Path, tmp_path: Path) -> None:
    (task,) = tvmconv_json("tasks", program)["tasks"]
    assert task["workload"]["out_channels"] == 8
    assert tvmconv_json("inspect", program, "--layer", 1)["workload"] == task["workload"]
    assert len(tvmconv_json("tune", program, "-o", tmp_path / "log.jsonl", "--dry-run")["tasks"]) == 1


def test_what_is_refused(program: Path, tmp_path: Path) -> None:
    cut, other = tmp_path / "cut.pt2", tmp_path / "other.pt2"
    cut.write_bytes(program.read_bytes()[:500])
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a", "b")
    renamed = shutil.copy(program, tmp_path / "model.onnx")
    for arguments, said in (
        (("run", cut), "expected a .pt2 file of torch.export.save that exists"),
        (("run", other), "expected a .pt2 file that this torch"),
        (("run", renamed), "expected an ONNX file"),
        (("run", program, "--verify", "onnxruntime"), "verify is 'onnxruntime'; expected none for a .pt2 file"),
        (("build", program, "-o", tmp_path / "n.so", "--input-shapes", "x:[1,4,8,8]"), "shapes is "),
    ):
        done = tvmconv(*arguments)
        assert done.exit_code == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
