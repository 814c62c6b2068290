"""AutoTVM's tutorials: scripts with their calls, as they run with tvmconv's imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.shared.network_graph import Graph
from tvmconv.autotvm.measure import Status
from tvmconv.autotvm.record import load_from_file

pytestmark = pytest.mark.usefixtures("without_torch")

TUTORIALS = Path(__file__).parents[1] / "tutorials"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model of two convolutions, one of them depthwise, for an image of 14x14 pixels."""
    graph = Graph(("batch", 4, 14, 14))
    y = graph.conv("x", (8, 4, 3, 3))
    onnx.save(graph.model(graph.conv(y, (8, 1, 3, 3), group=8)), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


RUN = """
import runpy, sys
from tvmconv.autotvm.tuner import tuner
tuner.FINALISTS, tuner.ROUNDS = 2, 1  # what is measured again at the end takes the most time
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script: str, folder: Path, *arguments: object) -> str:
    command = [sys.executable, "-c", RUN, str(TUTORIALS / script), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_network_on_x86(model: Path, tmp_path: Path) -> None:
    said = run("tune_network_x86.py", tmp_path, model)
    assert "2 tasks" in said
    assert said.count(": tuned: ") == 2
    assert {record.status for record in load_from_file(tmp_path / "network.log")} == {Status.OK}


@pytest.mark.release
def test_network_on_cuda(model: Path, tmp_path: Path) -> None:
    assert run("tune_network_cuda.py", tmp_path, model).count(": tuned: ") == 2
    assert len({record.problem for record in load_from_file(tmp_path / "network.log")}) == 2
    assert not (tmp_path / "network.log.tmp").exists()


def test_conv2d_on_cuda(tmp_path: Path) -> None:
    said = run("tune_conv2d_cuda.py", tmp_path)
    assert "arguments: ['data', 'kernel', 'conv2d_nchw']" in said
    records = [record for record in load_from_file(tmp_path / "conv2d.log") if record.status is Status.OK]
    assert {record.template for record in records} == {"tutorial/conv2d_no_batching"}
    assert "best config: tile_f=[-1, " in said
    assert "scheduled by the best: True" in said
