"""CUDA source: its compilation to a cubin without a GPU, and the resources of its kernels."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sysconfig
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmconv.problem.errors import CompileError

if TYPE_CHECKING:
    import tvm

WITHOUT_CUDA = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0", "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
"""Environment variables that keep `import tvm` from beginning to use CUDA, which no fork survives."""

PTXAS_OPTIONS = ("-v", "--warn-on-local-memory-usage")

STANDARD_TYPES = """\
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
"""


@dataclass(frozen=True)
class KernelResources:
    """The resources of one kernel: registers, stack and spill bytes of a thread, and shared bytes of a block."""

    name: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


class Assembled(NamedTuple):
    """The results of one compilation to a cubin: the resources of each kernel, its PTX, and what the assembler said."""

    kernels: tuple[KernelResources, ...]
    ptx: str
    log: str


class _Code(NamedTuple):
    ptx: str
    cubin: bytes
    """The machine code; empty where PTX alone was asked for."""
    log: str


def sources(module: tvm.runtime.Module) -> list[str]:
    """Return the CUDA source of a built module by translation units; none where it is all for a CPU."""
    return [str(unit.inspect_source()) for unit in _units(module)]


def uncompiled(module: tvm.runtime.Module) -> list[str]:
    """Return the sources of units without machine code; where TVM's CUDA runtime is loaded it has made that of all."""
    return [str(unit.inspect_source()) for unit in _units(module) if not unit.is_runnable()]


def _units(module: tvm.runtime.Module) -> list[tvm.runtime.Module]:
    if module.kind == "cuda":
        return [module]
    return [unit for imported in module.imports for unit in _units(imported)]


def compile_source(source: str, arch: str) -> bytes:
    """Compile CUDA source that TVM generated to machine code (a cubin) for an architecture such as "sm_90".

    Uses NVRTC where the package cuda-bindings is installed, else nvcc. `CompileError` holds the compiler's own words,
    or says how to get a compiler.
    """
    return _compile(source, arch, "cubin").cubin


def kernel_resources(source: str, arch: str) -> tuple[KernelResources, ...]:
    """Return the resources of each kernel in the source on an architecture, as ptxas reports them to NVRTC or nvcc."""
    return assembled(source, arch).kernels


def assembled(source: str, arch: str) -> Assembled:
    """Compile CUDA source to machine code, and return its resources, PTX and the assembler's messages."""
    code = _compile(source, arch, "cubin")
    if "ptxas info" not in code.log:  # NVRTC 13.0 keeps it to itself
        code = _nvcc(source, arch, "cubin")
    return Assembled(parse_resources(code.log), code.ptx, code.log)


def to_ptx(source: str, arch: str) -> str:
    """Compile CUDA source to PTX."""
    return _compile(source, arch, "ptx").ptx


def device_arch(device: tvm.runtime.Device) -> str:
    """Return the architecture of a GPU, such as "sm_90"."""
    return "sm_" + str(device.compute_version).replace(".", "")


def runtime_library() -> Path:
    """Return the path of TVM's CUDA runtime, a plug-in beside its other libraries."""
    import tvm

    return Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"


@cache
def load_runtime() -> None:
    """Load TVM's CUDA runtime where TVM itself did not: libcudart may be in the package nvidia-cuda-runtime.

    Without a driver it stays unloaded, and TVM reports that there is no GPU.
    """

    import tvm

    library = _packaged() / "lib" / "libcudart.so.13"
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        with suppress(OSError):
            if library.is_file():
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(runtime_library()))


def without_standard_library(source: str) -> str:
    """Return the source for NVRTC, without C++'s standard headers, and with the types that kernels use from these.

    The includes are most of the compile time of a small kernel. A source that uses the library elsewhere keeps them.
    """
    includes = re.compile(r"^#ifdef __CUDACC_RTC__\n.*?^#endif\n", re.MULTILINE | re.DOTALL)
    rest = includes.sub("", source, count=1)
    return source if "std::" in rest else STANDARD_TYPES + rest


def parse_resources(log: str) -> tuple[KernelResources, ...]:
    """Return the kernels in the output of ptxas with -v."""
    kernels = []
    for part in log.split("Compiling entry function ")[1:]:
        if "Used" not in part or "spill stores" not in part:
            raise CompileError(f"ptxas reports resources in a form that is not known: {part}")

        def number(pattern: str, text: str = part) -> int:
            found = re.search(pattern, text)
            return int(found.group(1)) if found else 0

        kernels.append(
            KernelResources(
                name=part.split("'")[1],
                registers=number(r"Used (\d+) registers"),
                shared_bytes=number(r"(\d+) bytes smem"),
                stack_bytes=number(r"(\d+) bytes stack frame"),
                spill_store_bytes=number(r"(\d+) bytes spill stores"),
                spill_load_bytes=number(r"(\d+) bytes spill loads"),
            )
        )
    return tuple(kernels)


def has_compiler() -> bool:
    """Return whether CUDA source can be compiled here."""
    return has_nvrtc() or shutil.which("nvcc") is not None


@cache
def has_nvrtc() -> bool:
    """Return whether NVRTC can be loaded, through the package cuda-bindings."""
    try:
        from cuda.bindings import nvrtc

        error, _, _ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return bool(error == nvrtc.nvrtcResult.NVRTC_SUCCESS)


@cache
def include_paths() -> tuple[Path, ...]:
    """Return the folders with CUDA's headers: those of the installed NVIDIA packages, else those of the toolkit."""
    toolkits = [Path("/usr/local/cuda/include")]
    if nvcc := shutil.which("nvcc"):
        toolkits.insert(0, Path(nvcc).resolve().parent.parent / "include")
    found = [folder for folder in (_packaged() / "include", *toolkits) if (folder / "cuda_fp16.h").is_file()]
    # The C++ standard library for devices, which few kernels use, may be in the toolkit alone.
    return tuple(found[:1] + [folder / "cccl" for folder in found if (folder / "cccl").is_dir()][:1])


def _packaged() -> Path:
    """Return the folder in which the packages of NVIDIA put their headers and libraries."""
    return Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13")


def _compile(source: str, arch: str, form: str) -> _Code:
    """Compile the source to a "cubin", or to "ptx" alone, by the compiler that is installed."""
    if arch == "sm_90" and "wgmma" in source:
        arch = "sm_90a"  # an instruction of this architecture alone
    return _nvrtc(source, arch, form) if has_nvrtc() else _nvcc(source, arch, form)


def _nvrtc(source: str, arch: str, form: str) -> _Code:
    from cuda.bindings import nvrtc

    def check(error: Any) -> None:
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC, for {arch}: {nvrtc.nvrtcGetErrorString(error)[1].decode()}")

    def read(size_of: Any, get: Any) -> bytes:
        error, size = size_of(program)
        check(error)
        buffer = bytearray(size)
        check(get(program, buffer)[0])
        return bytes(buffer)

    options = [
        f"--gpu-architecture={arch if form == 'cubin' else arch.replace('sm_', 'compute_')}",
        "--device-int128",
        "--diag-suppress=177",  # TVM declares common subexpressions that it does not use
        *(f"--ptxas-options={option}" for option in PTXAS_OPTIONS),
        *(f"--include-path={folder}" for folder in include_paths()),
    ]
    error, program = nvrtc.nvrtcCreateProgram(without_standard_library(source).encode(), b"tvmconv.cu", 0, None, None)
    check(error)
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode(errors="replace")
        if error == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise CompileError(f"NVRTC, for {arch}:\n{log}")
        check(error)
        ptx = read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()
        cubin = read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if form == "cubin" else b""
        return _Code(ptx, cubin, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvcc(source: str, arch: str, form: str) -> _Code:
    if shutil.which("nvcc") is None:
        raise CompileError("no CUDA compiler is installed: pip install 'tvmconv[cuda]', or put nvcc on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        code, ptx, cubin = (Path(folder, f"tvmconv.{each}") for each in ("cu", "ptx", "cubin"))
        code.write_text(source)
        options = ["--diag-suppress=177", f"--ptxas-options={','.join(PTXAS_OPTIONS)}"]
        options += ["--keep", f"--keep-dir={folder}"]  # the PTX, on the way to a cubin
        output = ptx if form == "ptx" else cubin
        command = ["nvcc", f"--{form}", f"-arch={arch}", *options, "-o", str(output), str(code)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"nvcc, for {arch}:\n{done.stderr}")
        return _Code(ptx.read_text(), b"" if form == "ptx" else cubin.read_bytes(), done.stderr)
