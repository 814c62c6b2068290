"""The rules of convolutions of quantized numbers: integers of one byte, whose products are summed exactly."""

from __future__ import annotations

import msgspec

from .dtypes import DTYPES, KNOWN, NARROW, QUANTIZED, STORAGE_TYPES, one_of
from .epilogue import Epilogue
from .errors import InvalidArgumentError
from .parameters import is_integer

OutputType = str | msgspec.UnsetType
ZeroPoint = int | msgspec.UnsetType


def resolve_quantization(
    dtype: str, out_dtype: OutputType, x_zero_point: ZeroPoint, epilogue: Epilogue, terms: int
) -> tuple[OutputType, ZeroPoint]:
    """Return the type of the output and the zero point of x in their only forms; `terms` are the products of a sum.

    Raises `InvalidArgumentError` for what makes no sense, and where integers may have sums that int32 does not hold.
    """
    if dtype not in DTYPES:
        raise InvalidArgumentError("dtype", dtype, KNOWN)
    unwidened = (msgspec.UNSET, dtype)
    wider = (STORAGE_TYPES[dtype].sums,) if dtype in NARROW else ()
    if dtype not in QUANTIZED and out_dtype not in (*unwidened, *wider):
        others = "".join(f"{name}, " for name in wider)
        raise InvalidArgumentError("out_dtype", out_dtype, f"{dtype}, as x is, {others}or x in {one_of(QUANTIZED)}")
    zero_point = _resolve_zero_point("x_zero_point", x_zero_point, dtype)
    if epilogue.factor is not msgspec.UNSET and (dtype not in QUANTIZED or out_dtype not in QUANTIZED):
        raise InvalidArgumentError("factor", epilogue.factor, f"1, for an output that is not in {one_of(QUANTIZED)}")
    if dtype not in QUANTIZED:
        _resolve_zero_point("out_zero_point", epilogue.zero_point, dtype)
        return msgspec.UNSET if out_dtype in unwidened else out_dtype, zero_point
    out_dtype = "int32" if out_dtype is msgspec.UNSET else out_dtype
    if out_dtype not in tuple(STORAGE_TYPES):
        raise InvalidArgumentError("out_dtype", out_dtype, one_of([*STORAGE_TYPES]))
    if out_dtype == "int32" and epilogue != Epilogue():
        others = one_of([name for name in STORAGE_TYPES if name != "int32"])
        raise InvalidArgumentError("out_dtype", out_dtype, f"{others}, for the epilogue {epilogue}")
    _resolve_zero_point("out_zero_point", epilogue.zero_point, out_dtype)
    limit = _max_terms(dtype, 0 if zero_point is msgspec.UNSET else zero_point)
    if terms > limit:
        expected = f"at most {limit} terms of a sum, kernel elements times channels of a group, for sums in int32"
        raise InvalidArgumentError("w", f"{terms} terms", expected)
    return out_dtype, zero_point


def _resolve_zero_point(name: str, zero_point: object, dtype: str) -> ZeroPoint:
    """Return the zero point of numbers of a type, unset for 0; other types than quantized ones have no other."""
    if zero_point is msgspec.UNSET or (is_integer(zero_point) and zero_point == 0):
        return msgspec.UNSET
    if dtype not in QUANTIZED:
        raise InvalidArgumentError(name, zero_point, f"0, for numbers in {dtype}")
    low, high = STORAGE_TYPES[dtype].bounds or (0, 0)
    if not is_integer(zero_point) or not low <= zero_point <= high:
        raise InvalidArgumentError(name, zero_point, f"an integer from {low} to {high}, for numbers in {dtype}")
    return int(zero_point)


def _max_terms(dtype: str, zero_point: int) -> int:
    """Return the number of products that int32 has room for, of any numbers of x, with their zero point or without."""
    (low, high), (_, largest) = (STORAGE_TYPES[name].bounds or (0, 0) for name in (dtype, "int32"))
    weight = -(STORAGE_TYPES[STORAGE_TYPES[dtype].weight].bounds or (0, 0))[0]
    return largest // (weight * max(-low, high, high - zero_point, zero_point - low))
