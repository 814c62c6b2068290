"""A survey of everything that tvmconv can use on this machine, with hints how to get the rest.

The requirements on packages are read from tvmconv's installed metadata, so that only `pyproject.toml` holds them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tvmconv.targets.threads import NUMBER, choose, get_num_threads

OK, MISSING, WRONG = "ok", "missing", "wrong"

EXTRAS = {
    "onnx": "importing ONNX models, comparing with ONNX Runtime",
    "torch": "importing PyTorch models",
    "cuda": "CUDA kernels without a CUDA toolkit",
    "tune": "tuning",
}
"""The purpose of each extra that users install."""

INSTALL_CUDA = "pip install 'tvmconv[cuda]'"
INSTALL_DRIVER = "install the driver: https://www.nvidia.com/drivers"
INSTALL_TOOLKIT = "install the CUDA toolkit: https://developer.nvidia.com/cuda-downloads"
CORRECT = "correct the file, or remove it"


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    group: str
    """The group: "required", "optional", "cpu" or "cuda"."""
    name: str
    status: str
    """The state: "ok", "missing", or "wrong" for a thing that is there but not as it has to be."""
    found: str
    """The version or the path that was found, or the fault with it."""
    purpose: str
    """The purpose that it is needed for."""
    remedy: str
    """The way to get it: a command where there is one."""
    extra: str | None = None
    """The extra of tvmconv that brings it."""


def diagnose() -> list[Check]:
    """Run every check, the required ones first. Checks that need TVM are left out where it cannot be loaded."""
    tvm = check_tvm()
    checks = [*check_required(), tvm, *check_extras()]
    checks.append(check_threads())
    if tvm.status == OK:
        checks += [check_cpu(), check_cpu_rates(), check_cxx()]
    checks += [check_nvrtc(), check_nvcc(), check_headers(), *check_gpus()]
    if tvm.status == OK:
        checks.append(check_cuda_runtime())
        checks += check_rates()
    return checks


def is_healthy(checks: list[Check]) -> bool:
    """Return whether everything required is as it has to be."""
    return all(check.status == OK for check in checks if check.group == "required")


def check_required() -> Iterator[Check]:
    """Check Python, tvmconv, and the packages that tvmconv cannot do without."""
    try:
        ours = metadata.metadata("tvmconv")
    except metadata.PackageNotFoundError:
        yield Check("required", "tvmconv", WRONG, "not installed", "knowing what it needs", "pip install tvmconv")
        return
    python, wanted = platform.python_version(), ours["Requires-Python"]
    status = OK if SpecifierSet(wanted).contains(python, prereleases=True) else WRONG
    yield Check("required", "Python", status, python, "running tvmconv", f"install Python {wanted}")
    yield Check("required", "tvmconv", OK, ours["Version"], "", "")
    for requirement in _requirements():
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield check_package(requirement, None)


def check_extras() -> Iterator[Check]:
    """Check the packages of each extra in `EXTRAS`."""
    for requirement in _requirements():
        for extra in EXTRAS:
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                yield check_package(requirement, extra)


def check_package(requirement: Requirement, extra: str | None) -> Check:
    """Check that a package is installed in a version that the requirement allows."""
    version, provider = _installed(requirement.name)
    allowed = requirement.specifier.contains(version, prereleases=True) if version else False
    found = version if provider == requirement.name else f"{version} ({provider})" if version else ""
    return Check(
        group="optional" if extra else "required",
        name=requirement.name,
        status=OK if allowed else WRONG if version else MISSING,
        found=found if allowed or not version else f"{found}, not {requirement.specifier}",
        purpose=EXTRAS[extra] if extra else "running tvmconv",
        remedy=f"pip install 'tvmconv[{extra}]'" if extra else f"pip install '{requirement}'",
        extra=extra,
    )


def check_tvm() -> Check:
    """Check that TVM can be loaded, with its compiler."""
    remedy = "pip install --force-reinstall --no-deps apache-tvm apache-tvm-ffi"
    try:
        import tvm
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return Check("required", "TVM", WRONG, f"cannot be loaded: {error}", "compiling anything", remedy)
    if tvm.get_global_func("target.build.llvm", allow_missing=True) is None:
        return Check("required", "TVM", WRONG, "has no compiler for LLVM", "compiling anything", remedy)
    return Check("required", "TVM", OK, str(Path(tvm.__file__).parent), "compiling anything", remedy)


def check_cpu() -> Check:
    """Report the CPU, as LLVM names it."""
    from tvm.target import codegen

    found = f"{codegen.llvm_get_system_cpu()}, LLVM {codegen.llvm_version_major()}"
    return Check("cpu", "CPU", OK, found, "the target llvm", "")


def check_cpu_rates() -> Check:
    """Check the rates of the CPU, by which configurations are chosen: missing are those that nobody has measured."""
    from tvmconv.problem.errors import InvalidArgumentError
    from tvmconv.schedules.calibrated import Origin
    from tvmconv.schedules.cpu.model.rates import USER, origin_of
    from tvmconv.targets import cpu_of, resolve_target

    cpu = cpu_of(resolve_target("llvm"))
    try:
        origin = origin_of(cpu)
    except InvalidArgumentError as error:
        return Check("cpu", "rates of the CPU", WRONG, str(error), "choosing CPU kernels", CORRECT)
    if origin is Origin.CALIBRATED:
        status, found = OK, f"calibrated on {USER.rows()[cpu.model].device}"
    elif origin is Origin.MEASURED:
        status, found = OK, f"measured on a {cpu.model}"
    else:
        status, found = (
            MISSING,
            f"not measured for {cpu.model}; those of the {cpu.row}, which is most like it, are used",
        )
    return Check("cpu", "rates of the CPU", status, found, "choosing CPU kernels", "tvmconv calibrate --target llvm")


def check_threads() -> Check:
    """Report the number of threads that kernels on a CPU are spread over, and the reason for it."""
    wanted, reason, _ = choose()
    threads = get_num_threads()
    if threads != wanted:
        reason = f"what TVM's pool has, instead of {wanted} ({reason})"
    found = f"{threads}: {reason}; {os.cpu_count()} logical processors"
    return Check("cpu", "threads", OK, found, "kernels on the CPU", f"set {NUMBER}, or call tvmconv.set_num_threads")


def check_cxx() -> Check:
    """Check for the C++ compiler with which TVM links a library."""
    from tvmconv.runtime.storage import find_compiler

    command = find_compiler()
    found = f"{_output(*command, '--version').partition(chr(10))[0]}, {' '.join(command)}" if command else ""
    status = OK if command else MISSING
    return Check("cpu", "C++ compiler", status, found, "saving a kernel or a network", "pip install ziglang")


def check_nvrtc() -> Check:
    """Check for NVIDIA's compiler as a library, the one that tvmconv takes first."""
    from tvmconv.targets import cuda

    purpose = "compiling CUDA kernels, ten times as fast as nvcc"
    if not cuda.has_nvrtc():
        return Check("cuda", "NVRTC", MISSING, "", purpose, INSTALL_CUDA)
    from cuda.bindings import nvrtc
    from cuda.pathfinder import load_nvidia_dynamic_lib

    _, major, minor = nvrtc.nvrtcVersion()
    found = f"{major}.{minor}, {load_nvidia_dynamic_lib('nvrtc').abs_path}"
    return Check("cuda", "NVRTC", OK, found, purpose, INSTALL_CUDA)


def check_nvcc() -> Check:
    """Check for NVIDIA's compiler as a program, which comes with the CUDA toolkit."""
    purpose = "compiling CUDA kernels where NVRTC is missing"
    path = shutil.which("nvcc")
    if path is None:
        return Check("cuda", "nvcc", MISSING, "", purpose, INSTALL_TOOLKIT)
    release = next((line for line in _output(path, "--version").splitlines() if "release" in line), "")
    return Check("cuda", "nvcc", OK, f"{release.rpartition(' ')[2]}, {path}", purpose, INSTALL_TOOLKIT)


def check_headers() -> Check:
    """Check for CUDA's headers, which NVRTC does not bring."""
    from tvmconv.targets import cuda

    folders = cuda.include_paths()
    found = str(folders[0]) if folders else ""
    return Check("cuda", "CUDA headers", OK if found else MISSING, found, "float16 kernels", INSTALL_CUDA)


def check_gpus() -> Iterator[Check]:
    """Check the driver and its GPUs, as the driver's own tool reports them."""
    report = _gpu_report()
    gpus = _gpus_in(report)
    if not gpus:
        found = " ".join(report.split())
        status = WRONG if found else MISSING
        yield Check("cuda", "NVIDIA driver", status, found, "running CUDA kernels", INSTALL_DRIVER)
        return
    yield Check("cuda", "NVIDIA driver", OK, gpus[0][0], "running CUDA kernels", INSTALL_DRIVER)
    for index, (_, name, capability) in enumerate(gpus):
        yield Check("cuda", f"GPU {index}", OK, f"{name}, compute capability {capability}", "running CUDA kernels", "")


def check_rates() -> Iterator[Check]:
    """Check the rates of each GPU, by which configurations are chosen: missing are those that nobody has measured."""
    for index, (_, name, capability) in enumerate(_gpus_in(_gpu_report())):
        status, found = rates_for(name, f"sm_{capability.replace('.', '')}")
        remedy = "tvmconv calibrate" if status == MISSING else CORRECT
        yield Check("cuda", f"rates of GPU {index}", status, found, "choosing CUDA kernels", remedy)


def rates_for(name: str, arch: str) -> tuple[str, str]:
    """Return the status of the rates of a GPU, by the driver's name and the architecture, and their origin in words."""
    from tvmconv.problem.errors import InvalidArgumentError
    from tvmconv.schedules.calibrated import Origin
    from tvmconv.schedules.cuda.model.rates import USER, origin_of
    from tvmconv.targets.devices import gpu_for, gpu_named, model_of

    gpu, of_targets = gpu_for(name, arch), gpu_for(model_of(name, arch) or "", arch)
    try:
        origin = origin_of(gpu)
        if origin_of(of_targets) is Origin.CALIBRATED:
            return OK, f"calibrated on {USER.rows()[of_targets.model].device}"
    except InvalidArgumentError as error:
        return WRONG, str(error)
    if gpu_named(name) is None:
        return MISSING, f"not measured for this GPU; those of the {gpu.model}, which is most like it, are used"
    if origin is Origin.MEASURED:
        return OK, f"measured on a GPU of the model {gpu.model}"
    return MISSING, f"not measured for this GPU; those of the {gpu.model}'s data sheet are used"


def check_cuda_runtime() -> Check:
    """Check TVM's CUDA runtime, a plug-in that is silently left out where one of its libraries is missing."""
    import tvm

    from tvmconv.targets.cuda import load_runtime, runtime_library

    load_runtime()
    name, purpose = "TVM's CUDA runtime", "running CUDA kernels"
    if tvm.cuda(0).exist:
        return Check("cuda", name, OK, f"loaded, device 0 is {tvm.cuda(0).device_name}", purpose, "")
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "loaded, but it sees no GPU" + (f": CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else "")
        return Check("cuda", name, WRONG, why, purpose, "unset CUDA_VISIBLE_DEVICES" if hidden is not None else "")
    try:
        ctypes.CDLL(str(runtime_library()))
    except OSError as error:
        remedy = INSTALL_CUDA if "cudart" in str(error) else INSTALL_DRIVER
        return Check("cuda", name, MISSING, str(error), purpose, remedy)
    return Check("cuda", name, WRONG, "not loaded with TVM, though all its libraries are here", purpose, "")


def _requirements() -> list[Requirement]:
    """Return the requirements in tvmconv's metadata, with those of extras; none where it is not installed."""
    try:
        return [Requirement(text) for text in metadata.requires("tvmconv") or ()]
    except metadata.PackageNotFoundError:
        return []


def _installed(name: str) -> tuple[str, str]:
    """Return version and name of the package, or of another that brings its module, as xgboost-cpu does."""
    try:
        return metadata.version(name), name
    except metadata.PackageNotFoundError:
        providers = metadata.packages_distributions().get(name.replace("-", "_"))
    return (metadata.version(providers[0]), providers[0]) if providers else ("", "")


def _gpu_report() -> str:
    """Return a line for each GPU with the driver's version, its name and its compute capability, or what went wrong."""
    path = shutil.which("nvidia-smi")
    return _output(path, "--query-gpu=driver_version,name,compute_cap", "--format=csv,noheader") if path else ""


def _gpus_in(report: str) -> list[list[str]]:
    return [line.split(", ") for line in report.splitlines() if line.count(", ") == 2]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
