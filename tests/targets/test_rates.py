"""The rates of GPUs: what is fitted, what is taken for a GPU that was not measured, and rows that are wrong."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tvmconv.schedules.cuda import MODULES
from tvmconv.targets.devices import GPUS, H100
from tvmconv.targets.rates import UNFITTED, Rates, Table, factors_of, rates_of, table


def test_every_row_is_of_something_known() -> None:
    assert set(table().gpus) <= {gpu.model for gpu in GPUS}
    assert {*table().templates, *table().errors} <= {*MODULES.values()}


def test_a_gpu_that_was_not_measured_has_the_rates_of_an_h100() -> None:
    assert rates_of(replace(H100, model="H300")) == rates_of(H100)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"l2": -44.0}, r"> 0.0.*l2"), ({"power": 0.0}, r"> 0.0.*power"), ({"mma": "fast"}, r"float.*mma")],
    ids=str,
)
def test_a_rate_that_is_not_positive_is_refused(change: dict[str, object], message: str) -> None:
    row = msgspec.to_builtins(rates_of(H100)) | change
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"gpus": {"H100": row}, "templates": {}, "errors": {}}, Table)


def test_a_rate_that_is_missing_is_refused() -> None:
    row = msgspec.to_builtins(rates_of(H100))
    del row["latency"]
    with pytest.raises(msgspec.ValidationError, match="latency"):
        msgspec.convert(row, Rates)


def test_a_template_that_was_not_fitted_has_no_factors() -> None:
    assert factors_of("somebody.schedules.cuda.elsewhere") == UNFITTED
