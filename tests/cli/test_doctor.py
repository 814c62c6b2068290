"""`tvmconv doctor`: its findings on this machine, and its messages when a part is not as it should be."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from tvmconv import targets
from tvmconv.checking import doctor
from tvmconv.cli import main
from tvmconv.runtime import storage
from tvmconv.schedules.cpu.model import rates as cpu_rates
from tvmconv.schedules.cuda.model import rates
from tvmconv.targets.devices import AVX512, CPUS, H200
from tvmconv.targets.threads import get_num_threads


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Replace the installed versions of packages by others; an empty one stands for a missing package."""
    told: dict[str, str] = {}
    installed = metadata.version

    def version(name: str) -> str:
        if told.get(name) == "":
            raise metadata.PackageNotFoundError(name)
        return told.get(name) or installed(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "packages_distributions", dict)
    return told


def by_name(checks: list[doctor.Check]) -> dict[str, doctor.Check]:
    return {check.name: check for check in checks}


def test_json() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["ok"] is True
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["Python"]["found"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert checks["apache-tvm"]["found"] == metadata.version("apache-tvm")
    assert checks["TVM"]["status"] == "ok"
    assert checks["threads"]["found"].startswith(f"{get_num_threads()}: ")
    assert {"C++ compiler", "NVRTC", "nvcc", "CUDA headers", "NVIDIA driver", "TVM's CUDA runtime"} <= checks.keys()
    for check in report["checks"]:
        assert check.keys() == {"group", "name", "status", "found", "purpose", "remedy", "extra"}
        assert check["status"] in {"ok", "missing", "wrong"}
        assert check["status"] == "missing" or check["found"]


def test_every_requirement_is_checked() -> None:
    """The requirements come from the metadata; the code does not repeat them."""
    checks = by_name([*doctor.check_required(), *doctor.check_extras()])
    for text in metadata.requires("tvmconv") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        developers_only = marker is not None and any(marker.evaluate({"extra": extra}) for extra in ("dev", "docs"))
        assert requirement.name in checks or developers_only, text
    assert "ruff" not in checks


def test_every_extra_has_a_purpose() -> None:
    assert set(metadata.metadata("tvmconv").get_all("Provides-Extra", [])) == {*doctor.EXTRAS, "dev", "docs"}


def test_a_pin_that_is_not_met_fails(versions: dict[str, str]) -> None:
    versions["apache-tvm-ffi"] = "0.1.15"
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    row = next(line for line in result.stdout.splitlines() if line.startswith("wrong"))
    (pin,) = (Requirement(text) for text in metadata.requires("tvmconv") or () if text.startswith("apache-tvm-ffi"))
    assert row.split()[1:4] == ["apache-tvm-ffi", "0.1.15,", "not"]
    assert f"pip install '{pin}'" in result.stdout


def test_a_missing_requirement_fails(versions: dict[str, str]) -> None:
    versions["msgspec"] = ""
    checks = doctor.diagnose()
    assert by_name(checks)["msgspec"].status == doctor.MISSING
    assert not doctor.is_healthy(checks)


def test_a_missing_extra_does_not_fail(versions: dict[str, str]) -> None:
    versions.update({"onnx": "", "scipy": "", "onnxruntime": "0.1"})
    checks = doctor.diagnose()
    found = by_name(checks)
    assert found["onnx"].status == found["scipy"].status == doctor.MISSING
    assert found["onnxruntime"].status == doctor.WRONG
    assert found["onnx"].remedy == "pip install 'tvmconv[onnx]'"
    assert doctor.is_healthy(checks)


def test_a_package_under_another_name_counts(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    versions.update({"xgboost": "", "xgboost-cpu": "3.2.0"})
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"xgboost": ["xgboost-cpu"]})
    check = doctor.check_package(Requirement("xgboost>=3,<4"), "tune")
    assert (check.status, check.found) == (doctor.OK, "3.2.0 (xgboost-cpu)")


def test_tvm_that_cannot_be_loaded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    checks = doctor.diagnose()
    assert by_name(checks)["TVM"].status == doctor.WRONG
    assert not doctor.is_healthy(checks)


def test_nothing_but_the_required(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """A machine without compilers and driver is healthy; each missing part says how to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(storage, "find_spec", lambda name: None)
    checks = doctor.diagnose()
    found = by_name(checks)
    for name in ("C++ compiler", "nvcc", "NVIDIA driver"):
        assert found[name].status == doctor.MISSING
        assert found[name].remedy
    assert doctor.is_healthy(checks)


def test_a_driver_that_does_not_answer_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "_output", lambda *command: "NVIDIA-SMI has failed:\nno driver is loaded\n")
    (driver,) = doctor.check_gpus()
    assert (driver.status, driver.found) == (doctor.WRONG, "NVIDIA-SMI has failed: no driver is loaded")


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    report = "580.159.04, NVIDIA H100 80GB HBM3, 9.0\n580.159.04, NVIDIA A10, 8.6\n"
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "_output", lambda *command: report)
    found = by_name(list(doctor.check_gpus()))
    assert found["NVIDIA driver"].found == "580.159.04"
    assert found["GPU 0"].found == "NVIDIA H100 80GB HBM3, compute capability 9.0"
    assert found["GPU 1"].found == "NVIDIA A10, compute capability 8.6"


def test_rates_of_the_cpu(monkeypatch: pytest.MonkeyPatch, user_folder: Path) -> None:
    """Rates are measured, those of a relative, or calibrated; a wrong file is told."""
    row = CPUS["znver5"]
    monkeypatch.setattr(targets, "cpu_of", lambda target: row)
    found = doctor.check_cpu_rates()
    assert (found.status, found.found) == (doctor.OK, "measured on a Zen 5")
    row = AVX512
    found = doctor.check_cpu_rates()
    assert (found.status, found.remedy) == (doctor.MISSING, "tvmconv calibrate --target llvm")
    assert found.found == "not measured for AVX-512; those of the Zen 5, which is most like it, are used"
    cpu_rates.USER.keep(row.model, "some CPU", cpu_rates.shipped_rates(row))
    assert doctor.check_cpu_rates().found == "calibrated on some CPU"
    (user_folder / "rates-cpu.json").write_text('{"AVX-512": {}}')
    cpu_rates.USER.forget()
    found = doctor.check_cpu_rates()
    assert (found.status, found.remedy) == (doctor.WRONG, "correct the file, or remove it")


def test_rates_of_gpus(monkeypatch: pytest.MonkeyPatch, user_folder: Path) -> None:
    """Rates are measured, told by a data sheet, those of a relative, or calibrated; a wrong file is told."""
    names = ("NVIDIA H200, 9.0", "NVIDIA L40S, 8.9", "NVIDIA GeForce RTX 4070, 8.9", "NVIDIA L4, 8.9")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "_output", lambda *command: "".join(f"580.1, {name}\n" for name in names))
    rates.USER.keep("L4", "NVIDIA L4", rates.rates_of(H200))
    assert [(check.name, check.status, check.found) for check in doctor.check_rates()] == [
        ("rates of GPU 0", doctor.OK, "measured on a GPU of the model H200"),
        ("rates of GPU 1", doctor.MISSING, "not measured for this GPU; those of the L40S's data sheet are used"),
        (
            "rates of GPU 2",
            doctor.MISSING,
            "not measured for this GPU; those of the RTX 4090, which is most like it, are used",
        ),
        ("rates of GPU 3", doctor.OK, "calibrated on NVIDIA L4"),
    ]
    assert {check.remedy for check in doctor.check_rates() if check.status == doctor.MISSING} == {"tvmconv calibrate"}
    (user_folder / "rates.json").write_text('{"L4": {"device": "NVIDIA L4", "rates": {"launch": -1}}}')
    rates.USER.forget()
    wrong = by_name(list(doctor.check_rates()))["rates of GPU 0"]
    assert wrong.status == doctor.WRONG
    assert wrong.found == f"L4.rates.launch in {user_folder / 'rates.json'} is -1; expected a positive number"
