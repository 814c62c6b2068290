"""Peers that are timed beside tvmconv."""

from __future__ import annotations

from tvmconv.dispatch import dense_algorithms
from tvmconv.problem import FORWARD
from tvmconv.problem.precision import DEFAULT

from .copies import Copy
from .onnxruntime import OnnxRuntime
from .ours import Algorithm, ChannelsLast, Plain, Tvmconv
from .peer import Peer
from .products import Gemm, Im2colGemm, Im2colSpmm
from .pytorch import Compiled, PyTorch
from .tvm import MetaSchedule, Tvm

OURS = Tvmconv()
LIMITS = (Copy("copy", by_kernel=False), Copy("copy-kernel", by_kernel=True))

FOR_SPARSE = ("tvmconv-dense", "im2col-spmm")
"""The names of peers that are of interest only where much of the weight is zero."""


def known_peers(precision: str = DEFAULT) -> dict[str, Peer]:
    """Return all peers by their names, in the order of the columns, with tvmconv's algorithms registered by now.

    The precision is that of peers that are tvmconv.
    """
    peers = (
        Plain(precision, "tvmconv-plain"),
        Tvmconv(precision, "tvmconv-dense"),
        ChannelsLast(precision, "tvmconv-channels-last"),
        *(Algorithm(precision, f"tvmconv-{each}", each) for each in dense_algorithms((FORWARD,))),
        PyTorch(),
        PyTorch("pytorch-channels-last", channels_last=True),
        PyTorch("pytorch-tf32", tf32=True),
        PyTorch("pytorch-tf32-channels-last", channels_last=True, tf32=True),
        PyTorch("pytorch-fp16", half=True),
        Compiled(),
        Gemm(),
        Gemm("gemm-channels-last", channels_last=True),
        Gemm("gemm-tf32", channels_last=True, tf32=True),
        Im2colGemm(),
        Im2colSpmm(),
        OnnxRuntime(),
        Tvm(),
        MetaSchedule(),
    )
    return {peer.name: peer for peer in peers}


def default_peers(sparse: bool = False) -> list[str]:
    """Return the names of the peers for a sparse weight or a dense one, without the one that takes minutes."""
    if not sparse:
        return [name for name in known_peers() if name != MetaSchedule.name and name not in FOR_SPARSE]
    others = (*FOR_SPARSE, Im2colGemm.name, OnnxRuntime.name)
    return [name for name in known_peers() if name in others or name.startswith("pytorch")]
