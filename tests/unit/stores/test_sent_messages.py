"""The ring of direct messages that left at most once."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from dragoman.core.ports import PASSED, StoreFailed
from dragoman.stores.sqlite.sent_messages import SLOT, SLOTS, SentMessages
from dragoman.stores.sqlite.store import SqliteStore


def letters(*numbers: int) -> list[tuple[bytes, bytes]]:
    return [(n.to_bytes(16, "big"), (n * 7).to_bytes(16, "big")) for n in numbers]


def known(*numbers: int) -> dict[str, str]:
    return {f"{n:032x}": f"{n * 7:032x}" for n in numbers}


def test_the_ring_forgets_the_oldest_and_goes_on_where_it_was(tmp_path: Path) -> None:
    ring = SentMessages(tmp_path / "passed", slots=4)
    ring.read()
    ring.note(letters(1, 2, 3))
    ring.note(letters(4, 5, 6))  # around the end of the file
    ring.close()
    again = SentMessages(tmp_path / "passed", slots=4)
    assert list(again.read().items()) == list(known(3, 4, 5, 6).items())
    again.note(letters(7))
    assert list(again.read()) == list(known(4, 5, 6, 7))
    again.close()


def test_a_slot_that_was_only_begun_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "passed"
    ring = SentMessages(path)
    ring.note(letters(1, 2))
    ring.close()
    os.truncate(path, path.stat().st_size - 1)
    cut = SentMessages(path)
    assert cut.read() == known(1)
    cut.close()


def test_it_remembers_as_many_as_the_port_promises() -> None:
    assert SLOTS == PASSED


def test_messages_are_on_the_disk_before_they_may_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync for all of them, and one that fails is told."""
    ring = SentMessages(tmp_path / "passed")
    written: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: written.append(os.fstat(file).st_size))
    ring.note(letters(1, 2, 3))
    assert written == [4 * SLOT.size]

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(OSError, match="input/output"):
        ring.note(letters(4))
    ring.close()


async def test_a_full_disk_is_a_failure_of_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "hub.db")
    await store.open()
    pid = store.writer_pid
    assert pid is not None
    await store.note({"a" * 32: "b" * 32})
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE, (SLOT.size, resource.RLIM_INFINITY))
    with pytest.raises(StoreFailed, match="cannot be noted"):
        await store.note({"c" * 32: "d" * 32})
    resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    await store.note({"e" * 32: "f" * 32})
    await store.close()
    again = SqliteStore(tmp_path / "hub.db")
    assert {"a" * 32, "e" * 32} <= set((await again.open()).passed)
    await again.close()
