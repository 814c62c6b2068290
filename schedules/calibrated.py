"""The rates of machines that their user has calibrated, which come before those of the package."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tvmconv.problem.errors import InvalidArgumentError, TvmconvError
from tvmconv.support import store

R = TypeVar("R", bound=msgspec.Struct)


class Origin(Enum):
    """The origin of a machine's rates."""

    CALIBRATED = "calibrated"
    MEASURED = "measured"
    DATA_SHEET = "data sheet"


class Calibrated(msgspec.Struct, Generic[R], frozen=True):
    """The rates of a machine that its user has calibrated."""

    device: str
    """The name that the driver gives a GPU, or that of a CPU."""
    rates: R


class UserRates(Generic[R]):
    """The rates in a file of the user's folder, by the models of machines; they are read once."""

    def __init__(self, name: str, rates: type[R]) -> None:
        self.name = name
        self._rates = rates
        self._read: Mapping[str, Calibrated[R]] | None = None

    def rows(self) -> Mapping[str, Calibrated[R]]:
        """Return the rates in the file: none where there is no file.

        Raise `InvalidArgumentError`, with the file, the key and its value, where one is not as `tvmconv calibrate`
        writes.
        """
        if self._read is None:
            path = store.user_file(self.name)
            self._read = {} if path is None or not path.is_file() else self._rows_of(path)
        return self._read

    def keep(self, model: str, device: str, rates: R) -> Path:
        """Write the rates of a machine to the file, beside those of others; return its path."""
        path = require_user_file(self.name)
        rows = {**self.rows(), model: Calibrated(device, rates)}
        store.write_whole(path, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
        self.forget()
        return path

    def forget(self) -> None:
        """Forget the file, so that it is read again."""
        self._read = None

    def _rows_of(self, path: Path) -> dict[str, Calibrated[R]]:
        try:
            content = msgspec.json.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(str(path), str(error), "JSON, as `tvmconv calibrate` writes it") from None
        rows = _object(path, "", content)
        return {model: self._row(path, model, _object(path, model, row)) for model, row in rows.items()}

    def _row(self, path: Path, model: str, row: dict[str, Any]) -> Calibrated[R]:
        device, rates = row.get("device"), _object(path, f"{model}.rates", row.get("rates"))
        if not isinstance(device, str):
            raise InvalidArgumentError(f"{model}.device in {path}", device, "the name of a machine")
        for name in self._rates.__struct_fields__:
            value = rates.get(name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise InvalidArgumentError(f"{model}.rates.{name} in {path}", value, "a positive number")
        if unknown := rates.keys() - {*self._rates.__struct_fields__}:
            name = min(unknown)
            raise InvalidArgumentError(f"{model}.rates.{name} in {path}", rates[name], "no such rate")
        return Calibrated(device, msgspec.convert(rates, self._rates))


def require_user_file(name: str) -> Path:
    """Return the path of a file of the user; raise `TvmconvError` where nothing is to be kept."""
    path = store.user_file(name)
    if path is None:
        raise TvmconvError(f"there is no folder to keep {name} in: TVMCONV_CACHE_DIR names one")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _object(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{key} in {path}" if key else str(path), value, "an object")
    return value
