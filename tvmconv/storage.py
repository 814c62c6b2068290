"""One file for a compiled operator or network: a shared library, with a description behind it.

The library is what `tvm.runtime.load_module` takes, whatever follows its end: the description as JSON, its length in
eight bytes, and a mark. Loading such a file runs the code in it: load only what you trust.
"""

from __future__ import annotations

import shutil
import tempfile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from . import __version__
from .errors import CompileError, InvalidArgumentError
from .targets import device_of, resolve_target

if TYPE_CHECKING:
    from tvm.runtime import Executable

    from .network import Network
    from .operators import Operator

MARK = b"tvmconv1"
LENGTH_BYTES = 8


def save(executable: Executable, kind: str, metadata: dict[str, Any], path: str | PathLike[str]) -> None:
    """Links the executable and writes it with its description; the file appears whole or not at all."""
    import tvm
    from tvm.support import cc

    path = Path(path)
    if path.suffix != ".so":
        raise InvalidArgumentError("path", str(path), "a name that ends in .so, by which TVM knows a library")
    if not path.parent.is_dir():
        raise InvalidArgumentError("path", str(path), "a file in a folder that exists")
    compiler = cc.get_cc()
    if compiler is None or shutil.which(compiler) is None:
        raise CompileError("linking a library needs a C++ compiler: install g++ or clang++, or set CXX")
    description = {"kind": kind, "tvmconv": __version__, "tvm": tvm.__version__, **metadata}
    encoded = msgspec.json.encode(description)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder, "library.so")
        try:
            executable.export_library(str(library))
        except RuntimeError as error:
            raise CompileError(f"the C++ compiler {compiler} cannot link the library: {error}") from None
        with library.open("ab") as file:
            file.write(encoded + len(encoded).to_bytes(LENGTH_BYTES, "little") + MARK)
        library.replace(path)


def read_description(path: str | PathLike[str]) -> dict[str, Any]:
    """What a saved file says of itself, read without running any of it.

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
            raise InvalidArgumentError("path", str(path), "a file that tvmconv exported")
        file.seek(size - tail - length)
        try:
            return dict(msgspec.json.decode(file.read(length), type=dict[str, Any]))
        except msgspec.MsgspecError:
            raise InvalidArgumentError("path", str(path), "a file that tvmconv exported, undamaged") from None


def load(path: str | PathLike[str]) -> Operator | Network:
    """The operator or network in a file that `Operator.save` or `Network.export` wrote.

    Raises `InvalidArgumentError` for any other file, and for one made with another version of TVM; `NoDeviceError`
    where the device that it was built for is missing.
    """
    description = read_description(path)
    import tvm

    if description["tvm"] != tvm.__version__:
        raise InvalidArgumentError(
            "path", str(path), f"a file made with apache-tvm {tvm.__version__}, not {description['tvm']}"
        )
    device_of(resolve_target(description["target"]))  # without its runtime TVM cannot even read the file
    module = tvm.runtime.load_module(str(Path(path).resolve()))
    if description["kind"] == "operator":
        from .operators import Operator

        return Operator.from_saved(module, description)
    from .network import Network

    return Network.from_saved(module, description)
