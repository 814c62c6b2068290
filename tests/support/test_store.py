"""The store on disk: its limit, its trust in a folder, and processes that share it, die or have no room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from tvmconv.support import system
from tvmconv.support.store import BLOCK, Store, user_file, write_whole

USER_FILE = user_file
"""The library's function, instead of which tests run another."""


def key(number: int) -> str:
    return f"{sha256(bytes([number])).hexdigest()}.code"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVMCONV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_of_the_user_lies_beside_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert USER_FILE("rates.json") == folder / "rates.json"
    monkeypatch.setenv("TVMCONV_CACHE_DIR", os.devnull)
    assert USER_FILE("rates.json") is None
    monkeypatch.delenv("TVMCONV_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert USER_FILE("rates.json") is None


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_what_was_put_is_returned_in_a_folder_of_the_user_alone(folder: Path) -> None:
    store = Store()
    assert store.get(key(1)) is None
    store.put(key(1), b"content")
    assert Store().get(key(1)) == b"content"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"d" + content[1:], lambda _: b""])
def test_a_damaged_file_is_missing(folder: Path, damage: object) -> None:
    Store().put(key(1), b"content")
    path = folder / key(1)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert Store().get(key(1)) is None


def test_the_oldest_used_go_and_files_of_others_stay(folder: Path) -> None:
    store = Store(limit=8 * BLOCK)
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_bytes(bytes(100 * BLOCK))
    for number in range(8):
        store.put(key(number), bytes(100))
        os.utime(folder / key(number), (number, number))
    assert store.get(key(0)) is not None  # used now
    for number in range(8, 30):
        store.put(key(number), bytes(100))
    names = {path.name for path in folder.iterdir()}
    assert "notes.txt" in names
    assert len(names) <= 1 + 8
    assert key(29) in names
    assert names.isdisjoint(map(key, range(1, 8)))


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_code_is_not_read_where_others_can_write(folder: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.put(key(1), b"content")
    folder.chmod(mode)
    assert [store.get(key(1)), store.get(key(1))] == [None, None]
    (record,) = caplog.records
    assert "chmod 700" in record.getMessage()


@pytest.mark.parametrize(
    ("owner", "mode", "safe"),
    [(1000, 0o700, True), (1000, 0o755, True), (0, 0o755, True), (1001, 0o700, False), (0, 0o775, False)],
)
def test_who_may_have_written_a_folder(owner: int, mode: int, safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_uid=owner, st_mode=mode))
    assert system.is_safe(Path("folder")) == safe


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_told_once(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    store.put(key(1), b"content")

    def fail(path: Path, content: bytes) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", fail)
    for other in (2, 3):
        store.put(key(other), b"content")
    assert store.get(key(1)) == b"content"
    (record,) = caplog.records
    assert os.strerror(number) in record.getMessage()
    assert [path.name for path in folder.iterdir()] == [key(1)]


def test_dev_null_keeps_nothing_and_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TVMCONV_CACHE_DIR", os.devnull)
    Store().put(key(1), b"content")
    assert Store().get(key(1)) is None
    assert caplog.records == []


WRITE = """
import sys
from hashlib import sha256
from tvmconv.support.store import Store
store = Store(limit=64 * 4096)
for number in range(400):
    key = sha256(bytes([number % 200])).hexdigest() + ".code"
    store.put(key, bytes([number % 200]) * 9000)
    content = store.get(key)
    assert content is None or content == bytes([number % 200]) * 9000
    if number == int(sys.argv[1]):
        import os
        os.kill(os.getpid(), 9)
"""


def test_processes_write_at_once_and_one_is_killed(folder: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, kill]) for kill in ("-1", "-1", "50")]
    assert [writer.wait() for writer in writers] == [0, 0, -9]
    store = Store(limit=64 * BLOCK)
    found = [store.get(path.name) for path in folder.glob("*.code")]
    assert found
    assert all(content is not None and len(set(content)) == 1 for content in found)
    assert 3 * len(found) <= 64 + 2 * 64 // 16


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "report", b"before")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "report", b"after")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]
