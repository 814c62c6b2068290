"""The types of elements that convolutions read and write: a row for each, and nothing else lists them.

NumPy is loaded where a row is first asked for its type: the command line shows its help without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class StorageType(NamedTuple):
    """The type of stored elements, and how far a stored result may be from the exact one."""

    name: str
    """The name in workloads, records, TVM, torch and `ml_dtypes`."""
    itemsize: int
    """Bytes of an element."""
    sums: str
    """The type that products are summed in."""
    unit: float
    """Largest error of rounding a number to the type, to the nearest, as a share of the number."""
    least: float
    """Largest error of storing a number that is too small for that: GPUs flush float32 ones that are not normal."""
    network: float
    """Error allowed to the output of a network, as a share of its largest number: layers round one after the other."""
    cuda_arch: int
    """The oldest architecture of GPUs that computes with it, such as 80 for sm_80."""
    bounds: tuple[int, int] | None = None
    """The least and the largest integer of the type; None for floating-point numbers."""

    @property
    def weight(self) -> str:
        """Return the type of a weight that elements of the type are multiplied with."""
        return self.name if self.bounds is None else "int8"

    @property
    def numpy(self) -> np.dtype:
        """Return the type of NumPy, which knows bfloat16 by its name once `ml_dtypes` is imported."""
        import ml_dtypes  # noqa: F401
        import numpy as np

        return np.dtype(self.name)


_ROWS = (
    StorageType("float32", 4, "float32", 2.0**-24, 2.0**-126, network=1e-4, cuda_arch=0),
    StorageType("float16", 2, "float32", 2.0**-11, 2.0**-25, network=2e-2, cuda_arch=0),
    StorageType("bfloat16", 2, "float32", 2.0**-8, 2.0**-126, network=0.16, cuda_arch=80),
    StorageType("int8", 1, "int32", 0.0, 0.5, network=0.0, cuda_arch=80, bounds=(-(2**7), 2**7 - 1)),
    StorageType("uint8", 1, "int32", 0.0, 0.5, network=0.0, cuda_arch=80, bounds=(0, 2**8 - 1)),
    StorageType("int32", 4, "int32", 0.0, 0.5, network=0.0, cuda_arch=80, bounds=(-(2**31), 2**31 - 1)),
)

STORAGE_TYPES = {row.name: row for row in _ROWS}
FLOAT32_UNIT = STORAGE_TYPES["float32"].unit
"""The relative error of one float32 operation, rounded to nearest."""
FLOATS = tuple(row.name for row in _ROWS if row.bounds is None)
"""The floating-point types: x, w and the output of a convolution are all of one of them."""
QUANTIZED = tuple(row.name for row in _ROWS if row.itemsize == 1 and row.bounds is not None)
"""The types of x whose products are summed exactly, to an output of any type."""
DTYPES = FLOATS + QUANTIZED
"""The types that x may have."""
DType = Literal["float32", "float16", "bfloat16", "int8", "uint8"]
"""The types that x may have, for type checkers."""
OutDType = Literal[DType, "int32"]
"""The types that an output may have, for type checkers."""
NARROW = tuple(name for name in FLOATS if name != STORAGE_TYPES[name].sums)
"""The types that a result is rounded to once more, from its sum in floating point, when it is stored."""


def one_of(names: Sequence[str]) -> str:
    """Return names as a choice in the message of an error."""
    return " or ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])


KNOWN = one_of(DTYPES)
"""The names of the types of x, for the message of an error."""


MAGNITUDE, INFINITY = 0x7FFFFFFF, 0x7F800000
"""All bits of a float32 number but its sign, and those of infinity: a magnitude above it is a NaN."""


def is_floating(dtype: str | np.dtype) -> bool:
    """Return whether a type holds floating-point numbers; NumPy does not count bfloat16 among them."""
    import numpy as np

    return str(dtype) in FLOATS or np.issubdtype(np.dtype(dtype), np.floating)
