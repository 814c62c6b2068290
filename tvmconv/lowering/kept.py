"""Compiled functions of networks, which are kept on disk and found again before they are scheduled.

The name of each is a hash of all that decides its code: problems and configurations, the target, and the sources of
this library. A function that is found is declared in a module, without a body, and its code is added where others are
compiled. A function that was scheduled elsewhere is named by its content, and is looked up when it is to be lowered.
Machine code is not kept here: `kernel_cache` has it by the CUDA source.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock, local
from typing import Any, NamedTuple

import msgspec
import tvm
from tvm import tirx
from tvm.runtime import Module
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.build import codegen_build

from tvmconv.problem.errors import CompileError
from tvmconv.support.store import store
from tvmconv.targets import sources

from .workspace import Workspace

KEEP, CODE = "tvmconv.keep_as", "tvmconv.code"
"""The attributes of functions: the name to keep a function under, and the code of a declared function."""

HOOK = "tvm_callback_cuda_postproc"
"""The global function that TVM's generator of CUDA source passes each source through."""

Kernels = tuple[tvm.IRModule, tvm.target.Target]
"""Functions of a GPU that belong together, and their target."""

_this_thread, _registering = local(), Lock()
_hook: list[Any] = []
"""The function of this file that is registered as the hook, once it is."""


class Declared(NamedTuple):
    """A function that was found, without a body; its code is in an attribute."""

    function: tirx.PrimFunc
    workspace: Workspace
    packings: tuple[Any, ...]
    """The functions that lay a weight out, as they were given to `declare`."""


class _Signature(msgspec.Struct, frozen=True):
    function: str
    workspace: Workspace
    packings: tuple[tuple[bytes, list[tuple[list[int], str]], bool] | None, ...]


class _Unit(msgspec.Struct, frozen=True):
    """A CUDA module: its functions without bodies and its target, as JSON, and its source."""

    functions: str
    target: str
    source: str


class _Code(msgspec.Struct, frozen=True):
    """The bitcode of a function on the host, and the CUDA modules that it launches the kernels of."""

    host: bytes
    units: tuple[_Unit, ...]


def name_for(*content: object) -> str | None:
    """Return the name to keep a function under: a hash of the text of `content`, the library's sources and passes.

    None where sources have changed while they are in use, and where TVM's CUDA source goes through someone else's hook.
    """
    digest = sources.digest()
    if digest is None or not _has_hook():
        return None
    context = tvm.transform.PassContext.current()
    passes = context.opt_level, dict(context.config), list(context.required_pass), list(context.disabled_pass)
    return sha256(repr((digest, passes, content)).encode()).hexdigest()


def declare(name: str, func: tirx.PrimFunc, workspace: Workspace, packings: Sequence[Any]) -> tirx.PrimFunc:
    """Keep a function's signature under a name; return the function, whose code is kept when it is compiled."""
    signature = _Signature(_json(_without_body(func)), workspace, tuple(packings))
    store.put(f"{name}.signature", msgspec.msgpack.encode(signature))
    return func.with_attr(KEEP, name)


def kept_function(name: str) -> Declared | None:
    """Return the function that was kept under a name; None where there is none, or only a part of it."""
    signature, code = (store.get(f"{name}.{part}") for part in ("signature", "code"))
    if signature is None or code is None:
        return None
    known = msgspec.msgpack.decode(signature, type=_Signature)
    return Declared(tvm.ir.load_json(known.function).with_attr(CODE, code), known.workspace, known.packings)


def name_of(func: tirx.PrimFunc, target: tvm.target.Target) -> str | None:
    """Return the name that a function's code is kept under: the one that it was given, or else one for its content.

    None for a function that was found, and where `name_for` returns None.
    """
    if CODE in func.attrs:
        return None
    return func.attrs.get(KEEP) or name_for(_json(func), str(target))


def keep_code(name: str, host: Module, units: Iterable[tuple[Kernels, Module]]) -> None:
    """Keep the code of a function: its module of the host, and its CUDA modules."""
    kept = tuple(
        _Unit(
            _json(tvm.IRModule({var: each.with_body(tirx.Evaluate(0)) for var, each in kernels.functions.items()})),
            str(str(target)),
            str(str(module.inspect_source())),
        )
        for (kernels, target), module in units
    )
    store.put(f"{name}.code", msgspec.msgpack.encode(_Code(bitcode(host), kept)))


def code_of(func: tirx.PrimFunc, name: str | None) -> Module | None:
    """Return the compiled module of a function that is declared, or was kept under a name; None for any other."""
    code = func.attrs.get(CODE) or (None if name is None else store.get(f"{name}.code"))
    if code is None:
        return None
    known = msgspec.msgpack.decode(bytes(code), type=_Code)
    host = from_bitcode(known.host)
    for unit in known.units:
        host.import_module(_unit(unit))
    return host


def bitcode(module: Module) -> bytes:
    """Return a module of LLVM as bitcode."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.bc")
        module.write_to_file(str(path), "bc")
        return path.read_bytes()


def from_bitcode(content: bytes) -> Module:
    """Return the module that `bitcode` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.bc")
        path.write_bytes(content)
        return tvm.get_global_func("ffi.Module.load_from_file.ll")(str(path), "ll")


def _json(node: Any) -> str:
    return str(str(tvm.ir.save_json(node)))  # the inner one is of a class of TVM's own


def _without_body(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with a body that TVM cannot build for a CPU, as it would do there to fold constants."""
    kernel = tirx.IterVar(None, tirx.Var("blockIdx.x", "int32"), tirx.IterVar.ThreadIndex, "blockIdx.x")
    body = tirx.Evaluate(tirx.call_extern("int32", "declared"))
    launch = tirx.For(tirx.Var("b", "int32"), 0, 1, tirx.ForKind.THREAD_BINDING, body, kernel)
    return func.with_body(SBlockRealize([], True, SBlock([], [], [], "declared", launch)))


def _unit(unit: _Unit) -> Module:
    """Return the CUDA module of a source that was kept; TVM builds it from functions without bodies."""
    _this_thread.source = unit.source
    try:
        module = codegen_build(tvm.ir.load_json(unit.functions), tvm.target.Target(unit.target))
    finally:
        _this_thread.source = None
    if str(module.inspect_source()) != unit.source:
        raise CompileError(f"{HOOK} was registered while a network was built, which may have code that was kept")
    return module


def _has_hook() -> bool:
    """Return whether the hook is that of this file, which is registered unless there is one."""
    with _registering:
        if tvm.get_global_func(HOOK, allow_missing=True) is None:
            tvm.register_global_func(HOOK, lambda source, _: getattr(_this_thread, "source", None) or source)
            _hook[:] = [tvm.get_global_func(HOOK)]
    return any(tvm.get_global_func(HOOK).same_as(each) for each in _hook)
