"""The operator of Relax that runs the steps of a recurrent layer: LSTM, GRU, or a plain RNN.

The products of a layer's input, which need no step before, are a linear layer in front of it; see `recurrent_layers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Literal

import msgspec
import tvm
from tvm import relax
from tvm.ir import register_op_attr

from ..lowering import as_scheduled
from ..schedules.cpu.machine import MOST_LANES
from ..targets import backend_of
from .gpu.recurrence import recurrence_for_gpu
from .recurrence_cells import Recurrence
