"""The rates of GPUs: what is fitted, what a data sheet changes, what a user has calibrated, and rows that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tvmconv.problem.errors import InvalidArgumentError, TvmconvError
from tvmconv.schedules.calibrated import Origin, require_user_file
from tvmconv.schedules.cuda import MODULES
from tvmconv.schedules.cuda.model.rates import USER, Rates, factors_of, origin_of, rates_of, scaled, table
from tvmconv.schedules.fitted import UNFITTED, Table
from tvmconv.support import store
from tvmconv.targets.devices import GPUS, H100, H200, RTX_4090, gpu_named

ROW = msgspec.to_builtins(rates_of(H200))


def test_every_row_is_of_something_known() -> None:
    assert set(table().machines) <= {gpu.model for gpu in GPUS}
    assert {*table().templates, *table().errors} <= {*MODULES.values()}


def test_the_origin_of_rates() -> None:
    origins = {gpu.model: origin_of(gpu) for gpu in GPUS}
    assert [model for model, origin in origins.items() if origin is Origin.MEASURED] == ["H200"]
    assert {*origins.values()} == {Origin.MEASURED, Origin.DATA_SHEET}


def test_an_h100_has_the_rates_of_an_h200() -> None:
    """They differ in memory alone, which is no rate."""
    assert rates_of(H100) == rates_of(H200)
    assert H100.bytes_per_clock < H200.bytes_per_clock


def test_a_faster_clock_waits_for_more_clocks() -> None:
    """Launches and memory take the same time; everything in a multiprocessor takes the same clocks."""
    faster = replace(H200, model="faster", clock=2 * H200.clock)
    before, after = rates_of(H200), scaled(rates_of(H200), H200, faster)
    ratios = {name: getattr(after, name) / getattr(before, name) for name in Rates.__struct_fields__}
    assert {name for name, ratio in ratios.items() if ratio == pytest.approx(2)} == {"launch", "further", "latency"}
    assert {name for name, ratio in ratios.items() if ratio == 1} == ratios.keys() - {"launch", "further", "latency"}
    assert rates_of(faster) == after


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.model)
def test_rates_of_every_gpu_are_positive_and_of_its_order(gpu: Any) -> None:
    """Times in seconds are the H200's, and so is everything else: a scaling that is upside down shows here."""
    assert rates_of(gpu).launch / gpu.clock == pytest.approx(rates_of(H200).launch / H200.clock)
    assert rates_of(gpu).latency / gpu.clock == pytest.approx(rates_of(H200).latency / H200.clock)
    assert rates_of(gpu).issue == rates_of(H200).issue


@pytest.mark.parametrize(
    ("change", "message"),
    [({"l2": -44.0}, r"> 0.0.*l2"), ({"power": 0.0}, r"> 0.0.*power"), ({"mma": "fast"}, r"float.*mma")],
    ids=str,
)
def test_a_rate_that_is_not_positive_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"machines": {"H100": ROW | change}, "templates": {}, "errors": {}}, Table[Rates])


def test_a_rate_that_is_missing_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="latency"):
        msgspec.convert({name: value for name, value in ROW.items() if name != "latency"}, Rates)


def test_a_template_that_was_not_fitted_has_no_factors() -> None:
    assert factors_of("somebody.schedules.cuda.elsewhere") == UNFITTED


def test_the_rates_of_the_user_come_first(user_folder: Path) -> None:
    """They are kept beside those of other GPUs, and read again by the next process."""
    mine, other = (msgspec.structs.replace(rates_of(H200), latency=latency) for latency in (700.0, 900.0))
    l4 = gpu_named("NVIDIA L4")
    assert l4 is not None
    assert USER.keep(l4.model, "NVIDIA L4", mine) == user_folder / "rates.json"
    USER.keep(RTX_4090.model, "NVIDIA GeForce RTX 4070", other)
    USER.forget()
    assert (rates_of(l4), origin_of(l4)) == (mine, Origin.CALIBRATED)
    assert rates_of(RTX_4090) == other
    assert origin_of(H200) is Origin.MEASURED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"rates.json is '.*'; expected JSON"),
        ("[]", r"rates.json is \[\]; expected an object"),
        ({"L4": 3}, "^L4 in .*rates.json is 3; expected an object"),
        ({"L4": {"rates": ROW}}, "^L4.device in .*rates.json is None; expected the name of a machine"),
        ({"L4": {"device": "NVIDIA L4"}}, "^L4.rates in .*rates.json is None; expected an object"),
        (
            {"L4": {"device": "NVIDIA L4", "rates": ROW | {"l2": -4}}},
            "^L4.rates.l2 in .*rates.json is -4; expected a pos",
        ),
        (
            {"L4": {"device": "NVIDIA L4", "rates": ROW | {"l2": "4"}}},
            "^L4.rates.l2 in .*rates.json is '4'; expected a",
        ),
        (
            {"L4": {"device": "NVIDIA L4", "rates": {"launch": 1.0}}},
            "^L4.rates.further in .*rates.json is None; expected a positive number",
        ),
        (
            {"L4": {"device": "NVIDIA L4", "rates": ROW | {"warp": 3}}},
            "^L4.rates.warp in .*rates.json is 3; expected no ",
        ),
    ],
    ids=str,
)
def test_a_user_s_row_that_is_wrong_is_told(content: Any, message: str, user_folder: Path) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (user_folder / "rates.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        rates_of(H100)


def test_nothing_is_kept_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "user_file", lambda name: None)
    with pytest.raises(TvmconvError, match="there is no folder to keep rates.json in"):
        require_user_file("rates.json")
