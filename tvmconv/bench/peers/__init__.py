"""What is timed beside tvmconv: one file a library, each with one or more `Peer`s."""

from __future__ import annotations

from .copies import Copy
from .im2col import Im2colGemm
from .metaschedule import MetaSchedule
from .onnxruntime import OnnxRuntime
from .ours import Algorithm, Plain, Tvmconv
from .peer import Peer
from .pytorch import Compiled, PyTorch
from .tvm import Tvm

OURS = Tvmconv()
LIMITS = (Copy("copy", by_kernel=False), Copy("copy-kernel", by_kernel=True))

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Plain(),
        Algorithm("direct"),
        Algorithm("im2win"),
        PyTorch(),
        PyTorch("pytorch-channels-last", channels_last=True),
        PyTorch("pytorch-tf32", tf32=True),
        PyTorch("pytorch-fp16", half=True),
        Compiled(),
        Im2colGemm(),
        OnnxRuntime(),
        Tvm(),
        MetaSchedule(),
    )
}
"""Every peer by its name, in the order of the columns."""

DEFAULT_PEERS = tuple(name for name in PEERS if name != MetaSchedule.name)
"""All but the one that takes minutes for a workload."""
