"""A calibration of a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tvmconv.dispatch.record import load_from_file
from tvmconv.schedules.cuda.model.rates import Rates
from tvmconv.targets import device_facts, gpu_of, resolve_target


def test_a_gpu_is_calibrated_in_minutes(tmp_path: Path) -> None:
    """The command keeps rates that choose no worse, unless other programs use the GPU, and doctor tells of them."""
    environment = {**os.environ, "TVMCONV_CACHE_DIR": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from tvmconv.cli import main; main()", *words, "--json"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=420)

    done, device = run("calibrate", "--minutes", "5"), device_facts("cuda")
    assert device is not None
    if "busy" in done.stderr:
        assert not (tmp_path / "rates.json").exists()
        return
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    model = gpu_of(resolve_target("cuda")).model
    assert (found["device"], found["model"]) == (device.name, model)
    assert found["after"].keys() == {*Rates.__struct_fields__}
    assert found["kernels"] >= 60
    records = load_from_file(found["trials"]).records
    assert len({(record.template, str(record.problem), str(record.knobs)) for record in records}) > 100
    if found["kept"] is not None:
        assert json.loads(Path(found["kept"]).read_text())[model]["rates"] == found["after"]
        checks = {check["name"]: check["found"] for check in json.loads(run("doctor").stdout)["checks"]}
        assert checks["rates of GPU 0"] == f"calibrated on {device.name}"
