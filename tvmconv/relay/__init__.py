"""The names of Relay, which TVM has dropped, over `import_model` and `build`: its scripts run with other imports.

Scripts keep their calls, and import other modules:

    from tvmconv import autotvm, relay
    from tvmconv.contrib import graph_executor

    mod, params = relay.frontend.from_onnx(model, {"x": (1, 3, 224, 224)})
    with autotvm.apply_history_best("tuned.jsonl"):
        library = relay.build(mod, "cuda", params=params)
    module = graph_executor.GraphModule(library["default"](tvm.cuda()))
"""

from __future__ import annotations

from tvmconv.problem.errors import names_of

from . import frontend, op
from . import library as build_module
from .gone import NAMES
from .library import Library, build, load_module

__all__ = ["Library", "build", "build_module", "frontend", "load_module", "op"]

__getattr__ = names_of(__name__, NAMES)
