"""The cost of importing, the content of the wheel, and the agreement of pinned versions."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("tvm", "torch", "onnx", "onnxruntime", "xgboost", "matplotlib")


@pytest.mark.parametrize(
    "statement",
    [
        "import tvmconv",
        "import tvmconv.cli",
        "import tvmconv; dir(tvmconv); tvmconv.ConvWorkload; tvmconv.TvmconvError",
    ],
)
def test_import_is_light(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_is_there() -> None:
    import tvmconv

    for name in tvmconv.__all__:
        assert getattr(tvmconv, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'convolve'"):
        _ = tvmconv.convolve


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files that git knows, as in a clean checkout."""
    source = tmp_path_factory.mktemp("source")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in files.split("\0"):
        copy = source / name
        if name and (ROOT / name).is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to((ROOT / name).readlink())
        elif name and (ROOT / name).is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    return source


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an sdist of the source, and a wheel that was built from the sdist."""
    output = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(source)]
    subprocess.run(command, capture_output=True, check=True)
    return output


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """Return the wheel."""
    (wheel,) = built.glob("*.whl")
    return wheel


def test_sdist_holds_the_packages_and_what_readers_need(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    packages = {"tvmconv/__init__.py", "tvmconv/schedules/space.py", "tvmconv/tuning_logs/README.md"}
    pages = {path.relative_to(ROOT).as_posix() for room in ("docs", "examples") for path in (ROOT / room).glob("*.*")}
    assert names >= packages | pages | {"CHANGELOG.md", "LICENSE", "Makefile", "README.md"}


def test_editable_install_is_a_folder_on_the_path(source: Path, tmp_path: Path) -> None:
    """Type checkers and editors read such a .pth file, and do not run the import hook that setuptools has otherwise."""
    code = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "/" not in name)
        assert Path(archive.read(name).decode().strip()).resolve() == source.resolve()
    assert (source / "tvmconv/py.typed").is_file()


def test_wheel_holds_every_module_and_the_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    rooms = {"tvmconv": "tvmconv", "schedules": "tvmconv/schedules", "tuning_logs": "tvmconv/tuning_logs"}
    for folder, inside in rooms.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".json", ".jsonl", ".md", ".typed", ".cuh"}:
                assert f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" in names
    assert not [name for name in names if name.startswith(("tests", "schedules", "tuning_logs"))]


def test_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    """The unpacked wheel computes a convolution in a process that sees nothing of this checkout."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import numpy as np, tvmconv, tvmconv.schedules, tvmconv.tuning_logs, pathlib;"
        "x = np.ones((1, 2, 4, 4), 'float32'); w = np.ones((2, 1, 3, 3), 'float32');"
        "print(pathlib.Path(tvmconv.schedules.__file__).parents[2], tvmconv.depthwise(x, w)[0, 0, 1, 1])"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path), "9.0"]


WITHOUT_EXTRAS = """
import sys
for name in ("cloudpickle", "psutil", "tornado", "xgboost"):
    sys.modules[name] = None
from click.testing import CliRunner
from tvmconv import autotvm
from tvmconv.cli import main
from tvmconv.problem.errors import MissingPackageError

def refused(call):
    try:
        call()
    except MissingPackageError as error:
        return str(error)

print(refused(lambda: autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())))
print(refused(lambda: autotvm.measure_option("local", "local")))
print(refused(lambda: autotvm.RPCRunner("key", "127.0.0.1", 9190)))
print(refused(lambda: autotvm.XGBTuner(autotvm.create(autotvm.extract_from_suite("depthwise-tutorial", "llvm")[0].workload, "llvm"))))
for command in ("tune --suite depthwise-tutorial -o t.jsonl --trials 2", "rpc tracker", "rpc server --tracker 127.0.0.1:1 --key k"):
    result = CliRunner().invoke(main, command.split())
    print(result.exit_code, result.output.strip())
"""  # noqa: E501


def test_without_the_extra_for_tuning_all_ways_to_it_say_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    told = "tuning needs cloudpickle: pip install 'tvmconv[tune]'"
    model = "XGBTuner needs xgboost: pip install 'tvmconv[tune]'"
    assert done.stdout.splitlines() == [told, told, told, model, *[f"1 error: {told}"] * 3]


def test_lowest_versions_are_those_of_pyproject() -> None:
    command = [sys.executable, "tests/lowest_versions.py", "onnx", "tune"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = dict(line.split("==") for line in done.stdout.splitlines())
    assert {"click", "msgspec", "numpy", "onnx", "onnxruntime", "psutil", "xgboost-cpu"} <= found.keys()
    text = (ROOT / "pyproject.toml").read_text()
    for name, version in found.items():
        assert f'"{name}>={version}' in text
    for extra in ("apache-tvm", "torch", "ruff"):
        assert extra not in found


def test_linters_are_pinned_alike() -> None:
    pins = dict(re.findall(r'"(ruff|mypy)==([\d.]+)"', (ROOT / "pyproject.toml").read_text()))
    assert set(pins) == {"ruff", "mypy"}
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert dict(re.findall(r"\b(ruff|mypy)==([\d.]+)", hooks)) == pins


def test_version_is_the_same_everywhere() -> None:
    import tvmconv

    assert f'version = "{tvmconv.__version__}"' in (ROOT / "pyproject.toml").read_text()
