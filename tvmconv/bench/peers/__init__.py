"""Peers that are timed beside tvmconv: one file for each library, with one or more `Peer`s."""

from __future__ import annotations

from .copies import Copy
from .im2col import Im2colGemm
from .metaschedule import MetaSchedule
from .onnxruntime import OnnxRuntime
from .ours import Algorithm, Plain, Tvmconv
from .peer import Peer
from .pytorch import Compiled, PyTorch
from .sparse import Dense, Im2colSpmm, Structured
from .tvm import Tvm

OURS = Tvmconv()
LIMITS = (Copy("copy", by_kernel=False), Copy("copy-kernel", by_kernel=True))

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Plain(),
        Dense(),
        Algorithm("direct"),
        Algorithm("im2win"),
        PyTorch(),
        PyTorch("pytorch-channels-last", channels_last=True),
        PyTorch("pytorch-tf32", tf32=True),
        PyTorch("pytorch-fp16", half=True),
        Structured("pytorch-half-channels", channels=True),
        Structured("pytorch-half-filters", filters=True),
        Structured("pytorch-quarter", channels=True, filters=True),
        Compiled(),
        Im2colGemm(),
        Im2colSpmm(),
        OnnxRuntime(),
        Tvm(),
        MetaSchedule(),
    )
}
"""All peers by their names, in the order of the columns."""

FOR_SPARSE = ("tvmconv-dense", "pytorch-half-channels", "pytorch-half-filters", "pytorch-quarter", "im2col-spmm")
"""The names of peers that are of interest only where much of the weight is zero."""

DEFAULT_PEERS = tuple(name for name in PEERS if name != MetaSchedule.name and name not in FOR_SPARSE)
"""The names of the peers for a dense weight: all but the one that takes minutes for a workload."""

SPARSE_PEERS = tuple(
    name
    for name in PEERS
    if name in FOR_SPARSE or name.startswith("pytorch") or name in (Im2colGemm.name, OnnxRuntime.name)
)
"""The names of the peers for a sparse weight."""
