"""The kernels that TVM makes of a scheduled function, lowered for the GPU, as an emulator runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline


def device_functions(
    func: tirx.PrimFunc, target: tvm.target.Target, sizes: Mapping[str, int] | None = None
) -> list[tirx.PrimFunc]:
    """Return the kernels that TVM makes of a scheduled function, in their order, with numbers for its open sizes."""
    module = tirx.transform.BindTarget(tvm.target.Target(target, "llvm"))(tvm.IRModule({"kernel": func}))
    # Otherwise the host would compute parts of the expressions of sizes, and pass them on.
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": bool(sizes)}):
        lowered = default_s_tir_pipeline()[0](module)
    found = {name.name_hint: each for name, each in lowered.functions.items()}
    kernels = [found[name] for name in sorted(found) if int(found[name].attrs["calling_conv"]) == 2]
    return [_with_sizes(kernel, sizes or {}) for kernel in kernels]


def _with_sizes(kernel: tirx.PrimFunc, sizes: Mapping[str, int]) -> tirx.PrimFunc:
    """Return a kernel without the parameters that are sizes, which become numbers, also in the size of its grid."""

    def number(var: tvm.ir.Var) -> Any:
        return tirx.IntImm("int32", sizes[var.name]) if var.name in sizes else var

    others = [param for param in kernel.params if param.name not in sizes]
    body = tvm_ffi.structural_map(kernel.body, (tvm.ir.Var, number))
    return tirx.PrimFunc(others, body, kernel.ret_type, attrs=kernel.attrs)
