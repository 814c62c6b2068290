"""A file with a compiled operator or network: a shared library, followed by a description.

The library is what `tvm.runtime.load_module` takes, whatever follows its end: the description as JSON, its length in
eight bytes, and a mark. Loading such a file runs the code in it: load only what you trust.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec
import tvm
import tvm_ffi
from tvm.runtime import Executable, Module
from tvm.support import cc

from tvmconv.problem.errors import CompileError, InvalidArgumentError
from tvmconv.support.version import __version__
from tvmconv.targets import cross_triple, cuda, cuda_arch, device_for, kernel_cache, llvm
from tvmconv.targets.toolchain import compiler_package, find_cross_compiler

MARK = b"tvmconv1"
LENGTH_BYTES = 8

WRITTEN = "a file that `tvmconv build`, export or save wrote"

LEAST_FREE = 64 * 2**20
"""The bytes that have to be free on a disk before anything is exported to it."""


_loads = count(1)

Kind = Literal["operator", "sparse", "network"]
"""The kind of a file's content."""


class Description(msgspec.Struct, frozen=True):
    """The description that a saved file contains."""

    kind: Kind
    tvmconv: str
    """The version of tvmconv that made the file."""
    tvm: str
    library_bytes: int
    target: str
    """The target as JSON."""
    details: dict[str, Any]
    """The facts from which the operator or network is made again, besides the code."""
    kernels: dict[str, bytes] = {}
    """The machine code of CUDA source in the library, as `kernel_cache.collected` returns it."""


def save(
    executable: Executable,
    kind: Kind,
    target: str,
    details: dict[str, Any],
    path: str | PathLike[str],
) -> None:
    """Link the executable and write it with its description; the file appears whole or not at all.

    `target`, as JSON, is the target of the code. TVM makes machine code of CUDA source where it has a GPU; elsewhere it
    is made here, unless no compiler is installed: then a file is compiled where it is loaded. A file with the name of a
    module of Python's standard library is written with a warning, since `import` finds it before the module.
    """
    path = Path(path)
    if path.suffix != ".so":
        raise InvalidArgumentError("path", str(path), "a name that ends in .so")
    if not path.parent.is_dir():
        raise InvalidArgumentError("path", str(path), "a file in a folder that exists")
    if path.stem in sys.stdlib_module_names:
        warnings.warn(
            f"Python programs that start in the folder of {path.name} take it for the standard module {path.stem}, and "
            "fail: choose another name",
            stacklevel=3,
        )
    for needed in (path.parent, tempfile.gettempdir()):
        require_space(needed)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder, "library.so")
        export(executable, library, target)
        size = library.stat().st_size
        kernels = _kernels(executable, target) if cuda.has_compiler() else {}
        encoded = msgspec.json.encode(Description(kind, __version__, tvm.__version__, size, target, details, kernels))
        with library.open("ab") as file:
            file.write(encoded + len(encoded).to_bytes(LENGTH_BYTES, "little") + MARK)
        library.replace(path)


def _kernels(executable: Executable, target: str) -> dict[str, bytes]:
    """Return the machine code of CUDA source that has none in an executable, by its keys in `kernel_cache`."""
    sources = cuda.uncompiled(executable.mod)
    return kernel_cache.collected(sources, cuda_arch(tvm.target.Target(target))) if sources else {}


def export(executable: Executable, library: Path, target: str) -> None:
    """Link the executable, built for a target as JSON, into a shared library, without a description."""
    link = partial(_link, require_compiler_for(target))
    with llvm.options_of(executable.mod):
        executable.export_library(str(library), fcompile=link)


def require_space(folder: str | PathLike[str]) -> None:
    """Refuse a full disk with `OSError`: LLVM would end the whole process where it cannot write an object file."""
    if shutil.disk_usage(folder).free < LEAST_FREE:
        raise OSError(errno.ENOSPC, f"less than {LEAST_FREE // 2**20} MiB are free", str(folder))


def find_compiler() -> tuple[str, ...] | None:
    """Return the command of a C++ compiler: the one that CXX names, g++ or clang++, or that in the package ziglang."""
    named = cc.get_cc()
    if named is not None and shutil.which(named) is not None:
        return (named,)
    return (sys.executable, "-m", "ziglang", "cc") if find_spec("ziglang") else None


def require_compiler() -> tuple[str, ...]:
    """Return the command of a C++ compiler; raise `CompileError` where there is none."""
    compiler = find_compiler()
    if compiler is None:
        raise CompileError("linking a library needs a C++ compiler: install g++ or clang++, or pip install ziglang")
    return compiler


def require_compiler_for(target: str) -> tuple[str, ...]:
    """Return the command of a compiler that links libraries for a target as JSON; `CompileError` if there is none."""
    triple = cross_triple(target)
    if triple is None:
        return require_compiler()
    compiler = find_cross_compiler(triple)
    if compiler is None:
        raise CompileError(
            f"linking a library for {triple} needs {triple}-gcc: install Debian's package {compiler_package(triple)}, "
            "or pip install ziglang"
        )
    return compiler


def _link(compiler: tuple[str, ...], library: str, objects: list[str]) -> None:
    command = [*compiler, "-shared", "-fPIC", "-o", library, *objects]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"the C++ compiler {' '.join(compiler)} cannot link the library: {done.stderr}")


def read_description(path: str | PathLike[str]) -> Description:
    """Return a saved file's description, read without running any of its code.

    Raises `InvalidArgumentError` for a file that is missing or was not written by `save`.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidArgumentError("path", str(path), "a file that exists")
    tail = LENGTH_BYTES + len(MARK)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - tail, 0))
        end = file.read()
        length = int.from_bytes(end[:LENGTH_BYTES], "little")
        if not end.endswith(MARK) or length > size - tail:
            raise InvalidArgumentError("path", str(path), WRITTEN)
        file.seek(size - tail - length)
        try:
            description = msgspec.json.decode(file.read(length), type=Description)
        except msgspec.MsgspecError:
            raise InvalidArgumentError("path", str(path), f"{WRITTEN}; this one is damaged") from None
    if description.library_bytes != size - tail - length:
        raise InvalidArgumentError("path", str(path), f"{WRITTEN}; this one is cut off")
    return description


def read(path: str | PathLike[str]) -> tuple[Module, Description]:
    """Return the code in a file that `save` wrote, loaded, and the file's description.

    Raises `InvalidArgumentError` for any other file, and for one made with another version of TVM; `NoDeviceError`
    where the device that it was made for is missing. Neither runs anything of the file.
    """
    description = read_description(path)
    if description.tvm != tvm.__version__:
        expected = f"a file made with apache-tvm {tvm.__version__}, not {description.tvm}"
        raise InvalidArgumentError("path", str(path), expected)
    kernel_cache.use_fast_compiler()
    kernel_cache.remember(description.kernels)
    device_for(description.target)  # without its runtime TVM cannot even read the file
    resolved = Path(path).resolve()
    spelled = _spelled_anew(resolved)
    try:
        return tvm_ffi.load_module(spelled), description  # TVM's own would spell the path as it always does
    except RuntimeError as error:
        message = str(error).replace(spelled, str(resolved))
        raise InvalidArgumentError("path", str(path), f"a library that can be loaded ({message})") from None


class Content:
    """The bytes of a saved file that code was loaded from, also when another file has its name, or none."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 (it is closed when nothing refers to it any more)

    def read(self) -> bytes:
        """Return all bytes."""
        self._file.seek(0)
        return self._file.read()


def saved_bytes(write: Callable[[Path], None]) -> bytes:
    """Return the bytes of the file that a function writes to a path."""
    with tempfile.TemporaryDirectory(prefix="tvmconv-") as folder:
        path = Path(folder, "saved.so")
        write(path)
        return path.read_bytes()


def read_bytes(content: bytes) -> tuple[Module, Description, Content]:
    """Return what `read` returns for a file with these bytes, and its content: the file itself is gone then."""
    with tempfile.TemporaryDirectory(prefix="tvmconv-") as folder:
        path = Path(folder, "saved.so")
        path.write_bytes(content)
        return *read(path), Content(path)


def _spelled_anew(path: Path) -> str:
    """Return the path, spelled as in no load before: `/` and `./` before the name are the load's number in binary.

    The system's loader first looks for a library that it loaded by this very name, whatever file has the name now; by
    another name it finds it only if it is the same file.
    """
    number = f"{next(_loads):b}".replace("0", "/").replace("1", "./")
    return f"{path.parent}/{number}{path.name}"
