"""Binaries on disk: kept whole, and never believed without reason."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrt.kernels.resident.store import BinaryStore


@pytest.fixture
def store(tmp_path: Path) -> BinaryStore:
    return BinaryStore(tmp_path / "kernels")


def entry(store: BinaryStore) -> Path:
    (path,) = store.folder.glob("*.bin")
    return path


def test_what_was_put_is_found_again(store: BinaryStore) -> None:
    """By this store and by another on the same folder; the newest counts."""
    store.put("a", b"\x00\xff\n" * 1000)
    store.put("b", b"")
    store.put("a", b"newer")

    other = BinaryStore(store.folder)

    assert b"newer" == store.get("a") == other.get("a")
    assert other.get("b") == b""
    assert store.get("c") is None


def test_the_folder_is_made_for_the_user_alone(store: BinaryStore) -> None:
    """Nobody else may read or write what is loaded into the process."""
    store.put("a", b"code")

    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert entry(store).stat().st_mode & 0o777 == 0o600


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the head": lambda data: data[:10],
    "cut in the digest": lambda data: data[:40],
    "cut in the body": lambda data: data[:-1],
    "longer": lambda data: data + b"\x00",
    "one bit of the body": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "one bit of the head": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "another format": lambda data: data.replace(b"asyncrt-kernels-1", b"asyncrt-kernels-0"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_a_miss(damage: Callable[[bytes], bytes], store: BinaryStore) -> None:
    """And the next put makes it good."""
    store.put("key", b"some code")
    path = entry(store)
    path.write_bytes(damage(path.read_bytes()))

    assert store.get("key") is None

    store.put("key", b"some code")

    assert store.get("key") == b"some code"


def test_an_entry_of_another_key_is_a_miss(store: BinaryStore) -> None:
    """A file that was renamed does not become the code of another kernel."""
    store.put("one", b"code of one")
    store.put("two", b"code of two")
    os.replace(store.path_of("one"), store.path_of("two"))

    assert store.get("two") is None


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let *path* belong to somebody who is neither the user nor root."""
    if os.getuid() == 0:
        os.chown(path, 4321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda owner=os.getuid(): owner + 1)  # noqa: B008 - before the patch


def test_an_entry_of_another_owner_is_a_miss(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's code is not loaded."""
    store.put("key", b"code")
    give_away(entry(store), monkeypatch)

    assert store.get("key") is None


def test_an_entry_that_others_may_write_is_a_miss(store: BinaryStore) -> None:
    """Whoever may write it may have written it."""
    store.put("key", b"code")
    entry(store).chmod(0o666)

    assert store.get("key") is None


def test_a_link_is_a_miss(store: BinaryStore, tmp_path: Path) -> None:
    """Even to a file that is right."""
    store.put("key", b"code")
    path = entry(store)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert store.get("key") is None


def test_a_pipe_is_a_miss(store: BinaryStore) -> None:
    """Nobody waits for somebody to write to it; a device or a folder is none either."""
    os.mkfifo(store.path_of("pipe"))
    store.path_of("folder").mkdir()

    assert store.get("pipe") is None
    assert store.get("folder") is None


def test_an_entry_larger_than_all_may_be_is_a_miss(tmp_path: Path) -> None:
    """It is not read, so that it takes no memory."""
    store = BinaryStore(tmp_path / "kernels", max_bytes=1 << 20)
    store.put("key", b"code")
    with open(store.path_of("key"), "r+b") as file:
        file.truncate(1 << 42)

    assert store.get("key") is None


def test_a_folder_of_another_owner_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from it and nothing written."""
    (tmp_path / "kernels").mkdir()
    give_away(tmp_path / "kernels", monkeypatch)

    store = BinaryStore(tmp_path / "kernels")
    store.put("key", b"code")

    assert not store.usable
    assert "unusable" in repr(store)
    assert store.get("key") is None
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """It is left as it is: its permissions are its owner's business."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)

    store = BinaryStore(tmp_path / "shared")

    assert not store.usable
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o777


def test_a_folder_that_cannot_be_made_is_not_used(tmp_path: Path) -> None:
    """Here a file is in the way."""
    (tmp_path / "file").write_text("in the way")

    store = BinaryStore(tmp_path / "file" / "kernels")
    store.put("key", b"code")

    assert not store.usable
    assert store.get("key") is None


def test_a_path_that_no_system_takes_is_not_used() -> None:
    """It has a character that none may have."""
    store = BinaryStore(Path("with\0nothing"))
    store.put("key", b"code")

    assert not store.usable
    assert store.get("key") is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it stands for a full disk")
def test_a_disk_that_is_full_keeps_nothing_half(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real writes fail there, the last of them when the file is closed."""
    store.put("key", b"old")
    make = tempfile.mkstemp

    def on_full_disk(**where: Any) -> tuple[int, str]:
        handle, name = make(**where)
        os.close(handle)
        return os.open("/dev/full", os.O_WRONLY), name

    monkeypatch.setattr(tempfile, "mkstemp", on_full_disk)
    store.put("key", b"new")
    store.put("other", bytes(1 << 20))

    assert store.get("key") == b"old"
    assert store.get("other") is None
    assert len(list(store.folder.iterdir())) == 1


def test_a_folder_that_may_only_be_read_is_read(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in an image is; what is not there is built each time."""
    store.put("key", b"code")

    def read_only(**where: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", read_only)
    store.put("other", b"code")

    assert store.usable
    assert store.get("key") == b"code"
    assert store.get("other") is None


def test_what_is_interrupted_leaves_nothing_half(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever interrupts it goes on."""

    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put("key", b"new")

    assert list(store.folder.iterdir()) == []


def test_a_full_or_read_only_disk_is_a_miss(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is not kept, nothing half-written stays, and what was there before stays."""
    store.put("key", b"old")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    store.put("key", b"new")

    assert store.get("key") == b"old"
    assert len(list(store.folder.iterdir())) == 1


def test_a_read_only_entry_is_found(store: BinaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it was used cannot be noted there, which matters to nobody."""
    store.put("key", b"code")

    def read_only(path: object) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "utime", read_only)

    assert store.get("key") == b"code"


def test_what_was_unused_longest_leaves_first(tmp_path: Path) -> None:
    """When there is more than allowed; reading counts as use."""
    store = BinaryStore(tmp_path / "kernels", max_bytes=3500)
    for age, key in enumerate("abc"):
        store.put(key, bytes(1000))
        os.utime(store.path_of(key), (age, age))
    store.get("a")

    store.put("d", bytes(1000))

    assert [key for key in "abcd" if store.get(key) is not None] == ["a", "c", "d"]


def test_what_a_killed_process_left_leaves_too(tmp_path: Path) -> None:
    """Half-written files count, so that they do not pile up; files of others are not touched."""
    store = BinaryStore(tmp_path / "kernels", max_bytes=3500)
    half, foreign = store.folder / ".new-abc", store.folder / "notes.txt"
    (store.folder / "folder.bin").mkdir()  # which is none of its files
    os.utime(store.folder / "folder.bin", (0, 0))
    for path in (half, foreign):
        path.write_bytes(bytes(3000))
        os.utime(path, (1, 1))

    store.put("key", bytes(1000))

    assert not half.exists()
    assert foreign.exists()
    assert bytes(1000) == store.get("key")
