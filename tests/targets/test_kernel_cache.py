"""Kernels of networks for CUDA: each is compiled once, side by side with others, and lies in what is exported."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import onnx
import pytest
import tvm
import tvm_ffi

from tests.shared.network_graph import Graph
from tvmconv.network import build
from tvmconv.runtime import storage
from tvmconv.support.store import default_folder
from tvmconv.targets import cuda, has_gpu, kernel_cache

SM_90 = {"kind": "cuda", "arch": "sm_90"}
LOADER = "ffi.Module.load_from_bytes.cuda"

without_gpu = pytest.mark.skipif(has_gpu(), reason="on a GPU's machine TVM has compiled them itself")


def model(*channels: int) -> onnx.ModelProto:
    """Return a network of 3x3 convolutions from some channels to others."""
    graph = Graph((1, channels[0], 9, 11))
    y = "x"
    for before, after in pairwise(channels):
        y = graph.conv(y, (after, before, 3, 3), pads=[1, 1, 1, 1])
    return graph.model(y)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the sources that are compiled from now on; nothing is known before."""
    sources: list[str] = []
    compile_source = cuda.compile_source

    def noted(source: str, arch: str) -> bytes:
        sources.append(source)
        return compile_source(source, arch)

    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_compiled", {})
    monkeypatch.setattr(cuda, "compile_source", noted)
    return sources


def test_each_function_is_a_cuda_module() -> None:
    """A module of the host calls each kernel, which a module that it imports has, compiled by itself."""
    network = build(model(16, 32, 16), SM_90)
    (first,) = network._executable.mod.imports
    hosts = [first, *(each for each in first.imports if each.kind == "llvm")]
    assert len(hosts) == len(cuda.sources(network._executable.mod)) == 2
    for host in hosts:
        (source,) = (str(each.inspect_source()) for each in host.imports if each.kind == "cuda")
        names = [kernel.name for kernel in cuda.kernel_resources(source, "sm_90")]
        assert names
        assert all(f'c"{name}\\00"' in str(host.inspect_source("ll")) for name in names)


@without_gpu
def test_a_layer_is_compiled_once_for_all_networks(tmp_path: Path, compiled: list[str]) -> None:
    """The layers before it make no difference, nor is it another process that has compiled it."""
    build(model(16, 32, 32, 8), SM_90).export(tmp_path / "first.so")
    assert len(compiled) == len(set(compiled)) == 3
    kernel_cache._compiled.clear()
    other = build(model(16, 32, 64, 32, 32, 8), SM_90)
    other.export(tmp_path / "second.so")
    assert len(compiled) == 3 + 2
    assert len(cuda.sources(other._executable.mod)) == 5


@without_gpu
@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_holds_the_machine_code(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Where it is loaded nothing is compiled, unless it was exported where there is no compiler."""
    if not is_known:
        monkeypatch.setattr(cuda, "has_compiler", lambda: False)
    network = build(model(16, 32, 16), SM_90)
    network.export(tmp_path / "network.so")
    assert len(compiled) == (2 if is_known else 0)
    for file in default_folder().glob("*"):
        file.unlink()
    kernel_cache._compiled.clear()
    compiled.clear()
    monkeypatch.setattr(storage, "device_for", lambda target: tvm.cpu())
    monkeypatch.setattr(tvm, "cuda", lambda number: None)
    monkeypatch.setattr(cuda, "device_arch", lambda device: "sm_90")
    loaded = load_as_with_gpu(tmp_path / "network.so", cuda.sources(network._executable.mod))
    assert len(loaded) == 2
    assert all(image[:4] == b"\x7fELF" for image in loaded)
    assert len(compiled) == (0 if is_known else 2)


def load_as_with_gpu(path: Path, sources: list[str]) -> list[bytes]:
    """Read a file as TVM does where there is a GPU; return what its compiler makes of the sources in it."""
    images: list[bytes] = []
    nothing = tvm.compile(tvm.IRModule(), "llvm").mod

    def loaded(content: bytes) -> tvm.runtime.Module:
        compiler = tvm.get_global_func("tvm_callback_cuda_compile")
        (source,) = [each for each in sources if each.encode() in content]
        images.append(bytes(compiler(source)))
        return nothing

    tvm.register_global_func(LOADER, loaded)
    try:
        storage.read(path)
    finally:
        tvm_ffi.registry.remove_global_func(LOADER)
    return images
