"""Machine code that is kept between processes, by the content of the source that it was compiled from.

Networks share the kernels of layers that are alike, and one that is built again has all of them. They lie in
`TVMCONV_CACHE_DIR`, by default `tvmconv` in the user's folder for caches; a folder that cannot be written to keeps
nothing, and nobody minds. Files may be removed at any time; one that a full disk or a power cut has damaged is made
again, as its end is a digest of the rest.

TVM finds them as well: `use_fast_compiler` replaces its own way of compiling CUDA source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tvmconv.version import __version__

from . import cuda
from .files import write_whole
from .threads import usable_cpus

_compiled: dict[str, bytes] = {}
"""The machine code that is known, by names of sources: all of it, since images of loaded files are nowhere else."""

UNUSABLE = (OSError, RuntimeError)
"""The errors of a folder that cannot be used: `Path.home` raises a RuntimeError where the user has none."""


def folder() -> Path:
    """Return the folder of the files."""
    if named := os.environ.get("TVMCONV_CACHE_DIR"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmconv"


def compile_all(sources: Sequence[str], arch: str) -> list[bytes]:
    """Compile CUDA sources to machine code for an architecture, side by side unless they are known."""
    with ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(lambda source: compiled(source, arch), sources))


def compiled(source: str, arch: str) -> bytes:
    """Return one source as machine code."""
    image = known(source, arch)
    if image is None:
        image = cuda.compile_source(source, arch)
        _compiled[_name(source, arch)] = image
        keep(_name(source, arch), image)
    return image


def known(source: str, arch: str) -> bytes | None:
    """Return the machine code of a source that was compiled before, in this process or in another."""
    name = _name(source, arch)
    image = _compiled.get(name)
    if image is None and (image := kept(name)) is not None:
        _compiled[name] = image
    return image


def keep(name: str, content: bytes) -> None:
    """Write a file of the folder, if that can be."""
    with suppress(*UNUSABLE):
        write_whole(folder() / name, content + sha256(content).digest())


def kept(name: str) -> bytes | None:
    """Return the content of a file that `keep` wrote; None where it is missing or damaged."""
    with suppress(*UNUSABLE):
        whole = (folder() / name).read_bytes()
        content, digest = whole[: -sha256().digest_size], whole[-sha256().digest_size :]
        if digest == sha256(content).digest():
            return content
    return None


def keep_line(name: str, line: bytes) -> None:
    """Write a line behind those of a file of the folder, if that can be."""
    with suppress(*UNUSABLE):
        folder().mkdir(parents=True, exist_ok=True)
        with (folder() / name).open("ab", buffering=0) as file:  # in one piece, also where others write
            file.write(sha256(line).hexdigest().encode() + b" " + line + b"\n")


def kept_lines(name: str) -> list[bytes]:
    """Return the lines that `keep_line` wrote; one that is damaged is left out."""
    with suppress(*UNUSABLE):
        pairs = (each.partition(b" ") for each in (folder() / name).read_bytes().split(b"\n"))
        return [line for digest, _, line in pairs if digest == sha256(line).hexdigest().encode()]
    return []


def collected(sources: Sequence[str], arch: str) -> dict[str, bytes]:
    """Return the machine code of sources by names that `remember` takes, to be kept in a file with them."""
    names = (_name(source, arch) for source in sources)
    return dict(zip(names, compile_all(sources, arch), strict=True))


def remember(images: Mapping[str, bytes]) -> None:
    """Take the result of `collected`: these sources are known from now on."""
    _compiled.update(images)


def use_fast_compiler(kernels: Path | None = None) -> None:
    """Make TVM compile its CUDA source through `cuda.compile_source`: about ten times faster for a small kernel.

    TVM does so on the GPU's own machine, when a module is built there or loaded as source, through a function that it
    finds by this name. A machine's GPUs are taken to be alike. Sources that `precompile` compiled into the folder
    `kernels`, or that are `known`, are not compiled again.
    """
    import tvm

    def compile_for_device(source: str) -> bytes:
        if kernels is not None and (image := _kernel_file(source, kernels)).is_file():
            return image.read_bytes()
        return compiled(source, cuda.device_arch(tvm.cuda(0)))

    tvm.register_global_func("tvm_callback_cuda_compile", compile_for_device, override=True)


def precompile(source: str, arch: str, kernels: Path) -> Path:
    """Compile CUDA source ahead of the process that will run it, into a folder that `use_fast_compiler` is told.

    Returns the file. Several processes may do so with the same source while another runs it: it appears whole. One that
    is there is not made again.
    """
    path = _kernel_file(source, kernels)
    if not path.is_file():
        write_whole(path, cuda.compile_source(source, arch))
    return path


def _kernel_file(source: str, kernels: Path) -> Path:
    return kernels / f"{sha256(source.encode()).hexdigest()}.cubin"


def _name(source: str, arch: str) -> str:
    key = "\n".join((__version__, arch, *cuda.PTXAS_OPTIONS, source))
    return f"{sha256(key.encode()).hexdigest()}.cubin"
