"""Machine code that is kept between processes, by the content of the source that it was compiled from.

Networks share the kernels of equal layers, and a network that is built again has all of them.

TVM finds them as well: `use_fast_compiler` replaces its own way of compiling CUDA source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from tvmconv.support.store import store, write_whole
from tvmconv.support.version import __version__

from . import cuda
from .threads import usable_cpus

_compiled: dict[str, bytes] = {}
"""The machine code that this process knows, by names of sources; code of loaded files is nowhere else."""


def compile_all(sources: Sequence[str], arch: str) -> list[bytes]:
    """Compile CUDA sources to machine code for an architecture, in parallel; known ones are not compiled again."""
    with ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(lambda source: compiled(source, arch), sources))


def compiled(source: str, arch: str) -> bytes:
    """Return one source as machine code."""
    image = cached_code(source, arch)
    if image is None:
        image = cuda.compile_source(source, arch)
        _compiled[_name(source, arch)] = image
        store.put(_name(source, arch), image)
    return image


def cached_code(source: str, arch: str) -> bytes | None:
    """Return the machine code of a source that was compiled before, in this process or in another."""
    name = _name(source, arch)
    image = _compiled.get(name)
    if image is None and (image := store.get(name)) is not None:
        _compiled[name] = image
    return image


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
    `kernels`, or that are `cached_code`, are not compiled again.
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
